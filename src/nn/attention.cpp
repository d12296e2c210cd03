#include "nn/attention.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/philox.h"
#include "nn/sequence_state.h"
#include "ops/attention_sinks.h"
#include "ops/clip.h"
#include "ops/gate.h"
#include "ops/rope.h"
#include "parallel/head_norm.h"

namespace megatron::nn {
namespace {

const AttentionConfig& checked(const AttentionConfig& c, int ranks) {
  MG_CHECK(c.heads % ranks == 0,
           "--num-attention-heads {} is not a multiple of --tensor-model-parallel-size {}: every "
           "rank computes the same number of heads; change one of them",
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
  MG_CHECK(c.qk_norm != QkNorm::full_width || c.kv_heads % ranks == 0,
           "normalizing keys over all heads needs --num-query-groups ({}) to be a multiple of "
           "--tensor-model-parallel-size {}; lower the latter",
           c.kv_heads, ranks);
  return c;
}

std::vector<int64_t> qkv_blocks(const AttentionConfig& c) {
  const int64_t q = c.heads * c.head_size, k = c.kv_heads * c.head_size;
  if (c.output_gate) return {q, q, k, k};
  return {q, k, k};
}

}  // namespace

void check_exchange(int64_t all_heads, int64_t all_keys, int tensor,
                    const parallel::ContextParallel& context) {
  const int ranks = context.head_ranks();
  const int64_t heads = all_heads / tensor, keys = std::max<int64_t>(all_keys / tensor, 1);
  MG_CHECK(
      heads % ranks == 0 && (keys % ranks == 0 || ranks % keys == 0),
      "--cp-comm-type {} divides the {} heads and {} query groups of a tensor-parallel rank "
      "(--num-attention-heads {}, --num-query-groups {}, --tensor-model-parallel-size {}) among "
      "the {} ranks of {}: use p2p or all_gather, or change one of them",
      name(context.exchange), heads, keys, all_heads, all_keys, tensor, ranks,
      context.exchange == parallel::ContextExchange::a2a
          ? "--context-parallel-size"
          : "a group of --hierarchical-context-parallel-sizes");
}

Var attend_texts(Tape& tape, const ops::Heads& heads, const ops::AttentionOptions& options,
                 std::span<const TextRun> texts) {
  MG_ASSERT(!tape.recording() && !options.causal && !options.window_start.defined() &&
            !options.window_end.defined());
  const Tensor &q = heads.q.value, &k = heads.k.value, &v = heads.v.value;
  const Tensor out = tape.empty({1, q.size(1), q.size(2), v.size(3)}, q.dtype(), "attention.out");
  for (const TextRun& run : texts) {
    kernels::AttentionArgs args = ops::call_form(options);
    args.q = by_sequence(q, run);
    args.k = by_sequence(k, run);
    args.v = by_sequence(v, run);
    args.sinks = ops::sinks_of(options, q.size(2), tape);
    args.bias = options.bias.value;
    args.out = by_sequence(out, run);
    args.lse = tape.empty({run.texts, q.size(2), run.length}, kernels::accumulator(q.dtype()),
                          "attention.lse");
    tape.kernels().attention(args, tape.stream());
  }
  return Var(out.view({q.size(1), q.size(2) * v.size(3)}));
}

double AttentionConfig::score_scale() const {
  return scale != 0 ? scale : 1 / std::sqrt(static_cast<double>(head_size));
}

double AttentionConfig::seen_pairs(int64_t length) const {
  const auto pairs =
      [this](int64_t tokens) {  // query-key pairs among tokens that see only each other
        const auto t = static_cast<double>(tokens),
                   most = static_cast<double>(window > 0 ? std::min(window, tokens) : tokens);
        return t * most - most * (most - 1) / 2;
      };
  if (two_sided) return 2 * pairs(length) - static_cast<double>(length);
  const int64_t part = chunk > 0 ? chunk : std::max<int64_t>(length, 1);
  return static_cast<double>(length / part) * pairs(part) + pairs(length % part) -
         static_cast<double>(length) / 2;
}

Var core_attention(Tape& tape, const ops::Heads& heads, const ops::AttentionOptions& options,
                   const Batch& batch, const parallel::ContextParallel& context) {
  Bundle in{{"q", heads.q}, {"k", heads.k}, {"v", heads.v}};
  const bool biased = options.bias.value.defined();
  if (biased) in.set("bias", options.bias);
  ops::AttentionOptions unbiased = options;
  unbiased.bias = {};
  const Bundle inner = tape.module(
      "core_attn", in,
      [&context, unbiased, biased, &tokens = batch.context_tokens](Tape& t, const Bundle& from) {
        ops::AttentionOptions own = unbiased;
        if (biased) own.bias = from["bias"];
        return Bundle{{"y", parallel::context_attention(t, {from["q"], from["k"], from["v"], {}},
                                                        own, tokens, context)}};
      },
      {"y"});
  return inner["y"];
}

Attention::Attention(Builder& builder, const std::string& name, const AttentionConfig& config,
                     const AttentionPlace& place)
    : config_(checked(config, builder.tensor().size())),
      place_(place),
      tensor_(builder.tensor()),
      context_(builder.ranks().context_parallel(place.index)),
      qkv_(builder, name + ".qkv", place.input > 0 ? place.input : place.hidden, qkv_blocks(config),
           config.qkv_bias, place.init),
      q_norm_(add_norm(builder, name + ".q_norm", config.heads)),
      k_norm_(add_norm(builder, name + ".k_norm", config.kv_heads)),
      sinks_(config.sinks == Sinks::learned
                 ? Weight(builder.add(name + ".sinks", {config.heads}, place.init,
                                      {.divisions = {{.axis = 0, .blocks = {config.heads}}}}))
                 : Weight()),
      output_(builder, name + ".output", config.heads * config.head_size, place.hidden,
              config.output_bias, place.output_init),
      heads_(config.heads / tensor_.size()),
      kv_heads_(std::max<int64_t>(config.kv_heads / tensor_.size(), 1)),
      dropout_stream_(builder.random_stream(name, ".dropout")) {
  check_exchange(config.heads, config.kv_heads, tensor_.size(), context_);
  if (config.sinks != Sinks::zero) return;
  Runtime& runtime = builder.runtime();
  zero_sinks_ = Tensor::empty(runtime.arena(MemoryClass::parameters), {heads_},
                              kernels::accumulator(builder.type()), "attention.zero_sinks");
  kernels::table(runtime.stream()).fill({.out = zero_sinks_, .value = 0}, runtime.stream());
}

// A norm of single heads has one weight for all of them; each rank's gradient covers only its own
// heads.
Attention::Norm Attention::add_norm(Builder& builder, const std::string& name,
                                    int64_t heads) const {
  Norm norm;
  if (config_.qk_norm == QkNorm::none || config_.qk_norm == QkNorm::l2) return norm;
  const bool full = config_.qk_norm == QkNorm::full_width;
  const Shape shape = {full ? heads * config_.head_size : config_.head_size};
  Builder::Options options;
  if (full) {
    options.divisions = {{.axis = 0, .blocks = {shape[0]}}};
  } else {
    options.partial = tensor_.size() > 1;
  }
  norm.weight = builder.add(name + ".weight", shape, place_.norm.weight_init(), options);
  if (place_.norm.has_bias()) norm.bias = builder.add(name + ".bias", shape, zeros(), options);
  return norm;
}

Var Attention::project(Tape& tape, const Var& x_TH) const {
  const Var qkv = qkv_(tape, x_TH);
  if (config_.kv_heads >= tensor_.size()) return qkv;
  return parallel::gather_key_head(
      tape, qkv, (config_.output_gate ? 2 : 1) * heads_ * config_.head_size,
      config_.kv_heads * config_.head_size, config_.head_size, tensor_);
}

ops::AttentionOptions Attention::options(const Batch& batch, bool train) const {
  ops::AttentionOptions options;
  options.scale = config_.score_scale() / (lost_amplitude() * lost_amplitude());
  options.soft_cap = config_.soft_cap;
  options.causal = !config_.two_sided;
  options.window = config_.window;
  options.chunk = config_.chunk;
  options.sinks = sinks_;
  options.zero_sinks = zero_sinks_;
  if (batch.segment_starts.defined())
    options.window_start = batch.segment_starts.view({batch.layout.sequences, batch.layout.held()});
  if (config_.two_sided && batch.segment_ends.defined())
    options.window_end = batch.segment_ends.view({batch.layout.sequences, batch.layout.held()});
  if (train && place_.dropout > 0) {
    options.dropout = {.p = static_cast<float>(place_.dropout),
                       .seed = place_.seed,
                       .stream = dropout_stream_,
                       .rows = {.sample_ids = batch.sample_ids},
                       .first_head = tensor_.rank() * heads_};
  }
  return options;
}

Var Attention::normed(Tape& tape, const Var& x, const Norm& norm, int64_t heads) const {
  const bool full = config_.qk_norm == QkNorm::full_width;
  const NormConfig& c = place_.norm;
  const bool layer = c.kind == Normalization::layer_norm && config_.qk_norm != QkNorm::l2;
  return parallel::head_norm(tape, x,
                             {.kind = layer ? kernels::NormKind::layer : kernels::NormKind::rms,
                              .weight = norm.weight,
                              .bias = norm.bias,
                              .weight_offset = c.weight_offset(),
                              .eps = c.epsilon / (lost_amplitude() * lost_amplitude())},
                             full ? heads * config_.head_size : 0, tensor_);
}

// In Llama 4 norms by length come after the rotation and cancel the amplitude of its angles. Here
// they come before it.
double Attention::lost_amplitude() const {
  if (config_.qk_norm != QkNorm::l2 || place_.rotary == nullptr) return 1;
  return place_.rotary->config().amplitude(0);
}

bool Attention::changes_heads() const {
  return config_.qk_norm != QkNorm::none || config_.qkv_clip > 0;
}

// Normalizes and clips queries and keys before they are rotated.
ops::Heads Attention::changed(Tape& tape, ops::PackedHeads&& packed) const {
  if (!changes_heads()) return ops::split_heads(tape, std::move(packed));
  const ops::Rotary rotary = std::exchange(packed.rotary, {});
  ops::Heads heads = ops::split_heads(tape, std::move(packed));
  if (config_.qk_norm != QkNorm::none) {
    heads.q = normed(tape, heads.q, q_norm_, config_.heads);
    heads.k = normed(tape, heads.k, k_norm_, config_.kv_heads);
  }
  if (config_.qkv_clip > 0)
    for (Var* part : {&heads.q, &heads.k, &heads.v})
      *part = ops::clip(tape, *part, config_.qkv_clip);
  if (rotary.cos.defined()) {
    heads.q = ops::rotate(tape, std::move(heads.q), rotary);
    heads.k = ops::rotate(tape, std::move(heads.k), rotary);
  }
  return heads;
}

ops::Rotary Attention::rotary(const Batch& batch) const {
  if (place_.rotary == nullptr) return {};
  const RotaryTable table = place_.rotary->of(batch.text_length());
  return {.cos = table.cos,
          .sin = table.sin,
          .positions = batch.positions,
          .interleaved = place_.rotary->config().interleaved};
}

Var Attention::operator()(Tape& tape, const Var& x_TH, const Batch& batch, bool train,
                          const Var& bias) const {
  ops::AttentionOptions options = this->options(batch, train);
  options.bias = bias;
  Var qkv = project(tape, x_TH);
  ops::PackedHeads packed{std::move(qkv), batch.layout.sequences, heads_,
                          kv_heads_,      rotary(batch),          config_.output_gate};
  const Continuation& c = batch.continuation;
  if (!changes_heads() && !config_.output_gate && place_.temperature == nullptr &&
      c.state == nullptr && batch.texts.empty() && context_.group == nullptr &&
      !tape.recomputes("core_attn"))
    return output_(tape, ops::attention(tape, std::move(packed), options));
  ops::Heads heads = changed(tape, std::move(packed));
  if (place_.temperature != nullptr)
    heads.q = ops::rotate(tape, std::move(heads.q),
                          {.cos = place_.temperature->cos,
                           .sin = place_.temperature->sin,
                           .positions = batch.positions});
  const Var gate = heads.gate;
  if (c.state != nullptr) {
    MG_CHECK(
        !config_.two_sided,
        "attention that sees later tokens cannot continue the texts of a KV cache: use a decoder");
    MG_ASSERT(batch.layout.sequences == 1 && !batch.segment_starts.defined());
    const Var y(c.state->attend(tape, place_.layer, heads, options, c));
    return output_(tape, config_.output_gate ? ops::gate(tape, y, gate) : y);
  }
  const Var y = batch.texts.empty() ? core_attention(tape, heads, options, batch, context_)
                                    : attend_texts(tape, heads, options, batch.texts);
  return output_(tape, config_.output_gate ? ops::gate(tape, y, gate) : y);
}

}  // namespace megatron::nn
