#include "nn/latent_attention.h"

#include "base/error.h"
#include "base/philox.h"
#include "nn/latent_state.h"
#include "ops/columns.h"
#include "parallel/collectives.h"

namespace megatron::nn {
namespace {

const LatentAttentionConfig& checked(const LatentAttentionConfig& c, int ranks) {
  MG_CHECK(c.heads % ranks == 0,
           "--num-attention-heads {} is not a multiple of --tensor-model-parallel-size {}: every "
           "rank computes the same number of heads; change one of them",
           c.heads, ranks);
  return c;
}

}  // namespace

LatentAttention::LatentAttention(Builder& builder, const std::string& name,
                                 const LatentAttentionConfig& config,
                                 const LatentAttentionPlace& place)
    : config_(checked(config, builder.tensor().size())),
      place_(place),
      tensor_(builder.tensor()),
      context_(builder.ranks().context_parallel(place.index)),
      q_latent_(config.query_rank == 0
                    ? std::nullopt
                    : std::optional<Latent>(
                          {ReplicatedLinear(builder, name + ".q_down", place.hidden,
                                            config.query_rank, config.bias, place.init),
                           latent_norm(builder, name + ".q_latent_norm", config.query_rank)})),
      q_(builder, name + (config.query_rank == 0 ? ".q" : ".q_up"),
         config.query_rank == 0 ? place.hidden : config.query_rank,
         {config.heads * config.head.key()}, false, place.init),
      latent_{ReplicatedLinear(builder, name + ".kv_down", place.hidden, config.cached(),
                               config.bias, place.init),
              latent_norm(builder, name + ".kv_latent_norm", config.latent_rank)},
      kv_up_(builder, name + ".kv_up", config.latent_rank,
             {config.heads * (config.head.plain + config.head.value)}, false, place.init),
      output_(builder, name + ".output", config.heads * config.head.value, place.hidden,
              config.output_bias, place.output_init),
      heads_(config.heads / tensor_.size()),
      dropout_stream_(hash_name(name + ".dropout")) {
  check_exchange(config.heads, config.heads, tensor_.size(), context_);
}

std::optional<AddNorm> LatentAttention::latent_norm(Builder& builder, const std::string& name,
                                                    int64_t width) const {
  if (!config_.normalized) return std::nullopt;
  return AddNorm(builder, name, width, {.kind = place_.norm, .epsilon = config_.norm_epsilon});
}

Var LatentAttention::normed(Tape& tape, const std::optional<AddNorm>& norm,
                            const Var& latent) const {
  return norm ? (*norm)(tape, latent, Var()).normed : latent;
}

Var LatentAttention::query_input(Tape& tape, const Var& x_TH) const {
  if (!q_latent_) return x_TH;
  return normed(tape, q_latent_->norm, q_latent_->down(tape, x_TH));
}

ops::Rotary LatentAttention::rotary(const Batch& batch) const {
  if (place_.rotary == nullptr) return {};
  const RotaryTable table = place_.rotary->of(batch.text_length());
  return {.cos = table.cos,
          .sin = table.sin,
          .positions = batch.positions,
          .interleaved = place_.rotary->config().interleaved};
}

ops::AttentionOptions LatentAttention::options(const Batch& batch, bool train) const {
  ops::AttentionOptions options{.scale = place_.score_scale};
  if (batch.segment_starts.defined())
    options.window_start = batch.segment_starts.view({batch.layout.sequences, batch.layout.held()});
  if (train && place_.dropout > 0) {
    options.dropout = {.p = static_cast<float>(place_.dropout),
                       .seed = place_.seed,
                       .stream = dropout_stream_,
                       .rows = {.sample_ids = batch.sample_ids},
                       .first_head = tensor_.rank() * heads_};
  }
  return options;
}

// The heads of this rank, for all tokens of its tensor-parallel ranks.
ops::Heads LatentAttention::heads(Tape& tape, const Var& query_input, const Var& latent,
                                  const Var& rotary_key, const Batch& batch) const {
  return ops::latent_heads(tape, q_(tape, query_input), kv_up_(tape, latent), rotary_key,
                           batch.layout.sequences, config_.head, rotary(batch));
}

// Attention of the next tokens of sequences of which a state holds the latents.
Var LatentAttention::continued(Tape& tape, const Var& query_input, const Var& latent,
                               const Var& rotary_key, const Batch& batch) const {
  MG_ASSERT(batch.layout.sequences == 1 && !batch.segment_starts.defined());
  return Var(attend_to_latents(
      tape, *batch.continuation.state, place_.layer, config_.head, rotary(batch),
      place_.score_scale,
      {.q = q_(tape, query_input).value, .latent = latent.value, .rotary_key = rotary_key.value},
      kv_up_, batch.continuation));
}

Var LatentAttention::operator()(Tape& tape, const Var& x_TH, const Batch& batch, bool train) const {
  const Var in = query_input(tape, x_TH);
  auto [latent, key] = ops::split_columns(tape, latent_.down(tape, x_TH), config_.latent_rank);
  latent = normed(tape, latent_.norm, latent);
  key = parallel::whole_rows(tape, key, tensor_, "rotary_key");
  if (batch.continuation.state != nullptr)
    return output_(tape, continued(tape, in, latent, key, batch));
  const Bundle made = tape.module("mla_up_proj", {{"query", in}, {"latent", latent}, {"key", key}},
                                  [this, &batch](Tape& t, const Bundle& b) {
                                    const ops::Heads heads =
                                        this->heads(t, b["query"], b["latent"], b["key"], batch);
                                    return Bundle{{"q", heads.q}, {"k", heads.k}, {"v", heads.v}};
                                  },
                                  {"q", "k", "v"});
  const ops::Heads heads{.q = made["q"], .k = made["k"], .v = made["v"], .gate = {}};
  return output_(tape, core_attention(tape, heads, options(batch, train), batch, context_));
}

}  // namespace megatron::nn
