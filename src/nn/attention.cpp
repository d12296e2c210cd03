#include "nn/attention.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/philox.h"
#include "nn/sequence_state.h"

namespace megatron::nn {

RotaryTable RotaryTable::make(Runtime& runtime, DType model_type, int64_t positions,
                              int64_t rotary_dims, double base) {
  const int64_t pairs = rotary_dims / 2;
  const DType type = kernels::accumulator(model_type);
  RotaryTable table;
  table.cos =
      Tensor::empty(runtime.arena(MemoryClass::parameters), {positions, pairs}, type, "rotary.cos");
  table.sin =
      Tensor::empty(runtime.arena(MemoryClass::parameters), {positions, pairs}, type, "rotary.sin");
  if (!runtime.device().has_data()) return table;
  std::vector<double> frequencies(static_cast<size_t>(pairs));
  std::vector<double> cos(static_cast<size_t>(positions * pairs)), sin(cos);
  for (int64_t i = 0; i < pairs; ++i) {
    frequencies[static_cast<size_t>(i)] =
        std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(rotary_dims));
  }
  for (size_t i = 0; i < cos.size(); ++i) {
    const double angle =
        static_cast<double>(i / frequencies.size()) * frequencies[i % frequencies.size()];
    cos[i] = std::cos(angle);
    sin[i] = std::sin(angle);
  }
  copy_from(table.cos, std::span<const double>(cos), runtime.stream());
  copy_from(table.sin, std::span<const double>(sin), runtime.stream());
  return table;
}

namespace {

const AttentionConfig& checked(const AttentionConfig& c, int ranks) {
  MG_CHECK(c.heads % ranks == 0,
           "--num-attention-heads {} is not a multiple of --tensor-model-parallel-size {}: every "
           "rank computes as many heads; change one of them",
           c.heads, ranks);
  MG_CHECK(c.kv_heads % ranks == 0 || ranks % c.kv_heads == 0,
           "--num-query-groups {} is neither a multiple nor a divisor of "
           "--tensor-model-parallel-size {}; change one of them",
           c.kv_heads, ranks);
  MG_CHECK(
      c.kv_heads * c.head_size % ranks == 0,
      "the {} values of a head's key (--kv-channels) cannot be divided among the {} ranks that "
      "share it (--tensor-model-parallel-size {}, --num-query-groups {}); change one of them",
      c.head_size, ranks / c.kv_heads, ranks, c.kv_heads);
  return c;
}

std::vector<int64_t> qkv_blocks(const AttentionConfig& c) {
  const int64_t q = c.heads * c.head_size, k = c.kv_heads * c.head_size;
  return {q, k, k};
}

}  // namespace

Attention::Attention(Builder& builder, const std::string& name, const AttentionConfig& config,
                     const RotaryTable* rotary, parallel::Init init, parallel::Init output_init)
    : config_(checked(config, builder.tensor().size())),
      tensor_(builder.tensor()),
      qkv_(builder, name + ".qkv", config.hidden, qkv_blocks(config), config.qkv_bias, init),
      output_(builder, name + ".output", config.heads * config.head_size, config.hidden,
              config.output_bias, output_init),
      rotary_(rotary),
      heads_(config.heads / tensor_.size()),
      key_heads_(std::max<int64_t>(config.kv_heads / tensor_.size(), 1)),
      dropout_stream_(hash_name(name + ".dropout")) {}

Var Attention::project(Tape& tape, const Var& x_TH) const {
  const Var qkv = qkv_(tape, x_TH);
  if (config_.kv_heads >= tensor_.size()) return qkv;
  return parallel::gather_key_head(tape, qkv, heads_ * config_.head_size,
                                   config_.kv_heads * config_.head_size, config_.head_size,
                                   tensor_);
}

Var Attention::operator()(Tape& tape, const Var& x_TH, const Batch& batch, bool train) const {
  ops::Rotary rotary;
  if (rotary_ != nullptr)
    rotary = {.cos = rotary_->cos, .sin = rotary_->sin, .positions = batch.positions};
  ops::AttentionOptions options;
  options.scale = 1 / std::sqrt(static_cast<double>(config_.head_size));
  if (batch.segment_starts.defined())
    options.window_start = batch.segment_starts.view({batch.sequences, batch.length});
  if (train && config_.dropout > 0) {
    options.dropout = {.p = static_cast<float>(config_.dropout),
                       .seed = config_.seed,
                       .stream = dropout_stream_,
                       .sample_ids = batch.sample_ids,
                       .first_head = tensor_.rank() * heads_};
  }
  ops::PackedHeads packed{project(tape, x_TH), batch.sequences, heads_, key_heads_, rotary};
  const Continuation& c = batch.continuation;
  if (c.state == nullptr && !tape.recomputes("core_attn"))
    return output_(tape, ops::attention(tape, std::move(packed), options));
  ops::Heads heads = ops::split_heads(tape, std::move(packed));
  if (c.state != nullptr) {
    MG_ASSERT(!batch.segment_starts.defined());
    heads = c.state->extend(tape, config_.layer, heads, c);
    options.q_positions = c.q_positions;
    options.k_positions = c.k_positions;
  }
  const Bundle inner =
      tape.module("core_attn", {{"q", heads.q}, {"k", heads.k}, {"v", heads.v}},
                  [options](Tape& t, const Bundle& in) {
                    return Bundle{{"y", ops::attention(t, {in["q"], in["k"], in["v"]}, options)}};
                  },
                  {"y"});
  return output_(tape, inner["y"]);
}

}  // namespace megatron::nn
