#include "nn/attention.h"

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
  std::vector<double> frequencies(static_cast<size_t>(pairs)), cos(frequencies), sin(frequencies);
  for (int64_t i = 0; i < pairs; ++i) {
    frequencies[static_cast<size_t>(i)] =
        std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(rotary_dims));
  }
  for (int64_t p = 0; p < positions; ++p) {
    for (size_t i = 0; i < frequencies.size(); ++i) {
      const double angle = static_cast<double>(p) * frequencies[i];
      cos[i] = std::cos(angle);
      sin[i] = std::sin(angle);
    }
    Tensor cos_row = table.cos.slice(0, p, 1), sin_row = table.sin.slice(0, p, 1);
    copy_from(cos_row, std::span<const double>(cos));
    copy_from(sin_row, std::span<const double>(sin));
  }
  return table;
}

Attention::Attention(Builder& builder, const std::string& name, const AttentionConfig& config,
                     const RotaryTable* rotary, parallel::Init init, parallel::Init output_init)
    : config_(config),
      qkv_(builder, name + ".qkv", config.hidden,
           (config.heads + 2 * config.key_heads) * config.head_size, config.qkv_bias, init),
      output_(builder, name + ".output", config.heads * config.head_size, config.hidden,
              config.output_bias, output_init),
      rotary_(rotary),
      dropout_stream_(hash_name(name + ".dropout")) {}

Var Attention::operator()(Tape& tape, const Var& x_TH, const Batch& batch, bool train) const {
  ops::Rotary rotary;
  if (rotary_ != nullptr)
    rotary = {.cos = rotary_->cos, .sin = rotary_->sin, .positions = batch.positions};
  ops::Heads heads = ops::split_heads(tape, qkv_(tape, x_TH), batch.sequences, config_.heads,
                                      config_.key_heads, rotary);
  ops::AttentionOptions options;
  options.scale = 1 / std::sqrt(static_cast<double>(config_.head_size));
  if (const Continuation& c = batch.continuation; c.state != nullptr) {
    MG_ASSERT(!batch.segment_begins.defined());
    heads = c.state->extend(tape, config_.layer, heads, c);
    options.q_positions = c.q_positions;
    options.k_positions = c.k_positions;
  }
  if (batch.segment_begins.defined())
    options.q_begins = batch.segment_begins.view({batch.sequences, batch.length});
  if (train && config_.dropout > 0) {
    options.dropout = {.p = static_cast<float>(config_.dropout),
                       .seed = config_.seed,
                       .stream = dropout_stream_,
                       .samples = batch.samples};
  }
  return output_(tape, ops::attention(tape, heads, options));
}

}  // namespace megatron::nn
