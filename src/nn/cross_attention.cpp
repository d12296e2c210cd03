#include "nn/cross_attention.h"

#include "autograd/other_batch_rows.h"
#include "base/error.h"
#include "base/philox.h"
#include "nn/sequence_state.h"
#include "ops/columns.h"

namespace megatron::nn {
namespace {

const AttentionConfig& divided(const AttentionConfig& c, int ranks) {
  MG_CHECK(c.heads % ranks == 0 && c.kv_heads % ranks == 0,
           "cross attention has {} heads and {} key-value heads, which must both be multiples of "
           "--tensor-model-parallel-size {}; change one of them",
           c.heads, c.kv_heads, ranks);
  return c;
}

}  // namespace

CrossAttention::CrossAttention(Builder& builder, const std::string& name,
                               const AttentionConfig& config, const AttentionPlace& place)
    : config_(divided(config, builder.tensor().size())),
      place_(place),
      tensor_(builder.tensor()),
      context_(builder.ranks().context_parallel(place.index)),
      q_(builder, name + ".q", place.hidden, {config.heads * config.head_size}, config.qkv_bias,
         place.init),
      kv_(builder, name + ".kv", place.hidden,
          {config.kv_heads * config.head_size, config.kv_heads * config.head_size}, config.qkv_bias,
          place.init),
      output_(builder, name + ".output", config.heads * config.head_size, place.hidden,
              config.output_bias, place.output_init),
      heads_(config.heads / tensor_.size()),
      kv_heads_(config.kv_heads / tensor_.size()),
      dropout_stream_(hash_name(name + ".dropout")) {}

ops::AttentionOptions CrossAttention::options(const Batch& batch, bool train) const {
  ops::AttentionOptions options;
  options.scale = config_.score_scale();
  options.causal = false;
  const Shape tokens{batch.layout.sequences, batch.layout.held()};
  if (batch.encoder_starts.defined()) options.window_start = batch.encoder_starts.view(tokens);
  if (batch.encoder_ends.defined()) options.window_end = batch.encoder_ends.view(tokens);
  if (train && place_.dropout > 0) {
    options.dropout = {.p = static_cast<float>(place_.dropout),
                       .seed = place_.seed,
                       .stream = dropout_stream_,
                       .rows = {.sample_ids = batch.sample_ids},
                       .first_head = tensor_.rank() * heads_};
  }
  return options;
}

Var CrossAttention::keys_and_values(Tape& tape, const Var& encoded, const Batch& texts) const {
  const OtherBatchRows rows(tape, texts.all_rows());
  return kv_(tape, encoded);
}

// Attention over the texts in the batch's state, to which those of `encoded` are added.
Var CrossAttention::continued(Tape& tape, const Var& q, const Var& encoded,
                              const Batch& batch) const {
  ops::Heads heads{.q = ops::as_heads(tape, q, 1, heads_), .k = {}, .v = {}, .gate = {}};
  if (batch.encoder != nullptr) {
    const auto [k, v] = ops::split_columns(tape, keys_and_values(tape, encoded, *batch.encoder),
                                           kv_heads_ * config_.head_size);
    heads.k = ops::as_heads(tape, k, 1, kv_heads_);
    heads.v = ops::as_heads(tape, v, 1, kv_heads_);
  }
  const Continuation& c = batch.continuation;
  return Var(c.state->attend_encoded(tape, place_.layer, heads, options(batch, false), c));
}

Var CrossAttention::operator()(Tape& tape, const Var& x_TH, const Var& encoded, const Batch& batch,
                               bool train) const {
  if (batch.continuation.state != nullptr)
    return output_(tape, continued(tape, q_(tape, x_TH), encoded, batch));
  MG_ASSERT(batch.encoder != nullptr);
  const int64_t sequences = batch.layout.sequences;
  const auto [k, v] = ops::split_columns(tape, keys_and_values(tape, encoded, *batch.encoder),
                                         kv_heads_ * config_.head_size);
  const Bundle inner = tape.module(
      "core_attn",
      {{"q", ops::as_heads(tape, q_(tape, x_TH), sequences, heads_)},
       {"k", ops::as_heads(tape, k, sequences, kv_heads_)},
       {"v", ops::as_heads(tape, v, sequences, kv_heads_)}},
      [this, options = options(batch, train), &queries = batch.context_tokens,
       &keys = batch.encoder->context_tokens](Tape& t, const Bundle& in) {
        return Bundle{{"y", parallel::cross_attention(t, {in["q"], in["k"], in["v"], {}}, options,
                                                      queries, keys, context_)}};
      },
      {"y"});
  return output_(tape, inner["y"]);
}

}  // namespace megatron::nn
