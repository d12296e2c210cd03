#include "models/decoder/mixers/latent_attention.h"

#include <cmath>

#include "base/error.h"
#include "models/decoder/value_checks.h"

namespace megatron::models {
namespace {

using LatentMixer = LayerPart<nn::LatentAttentionConfig>;

// Factor of the scores: that of the key's size, and YaRN's by mscale_all_dim.
double score_scale(const nn::LatentAttentionConfig& a, const DecoderValue& model) {
  const double yarn = a.rotary.empty() ? 1 : model.rotary.at(a.rotary).score_scale();
  return yarn / std::sqrt(static_cast<double>(a.head.key()));
}

class LatentSublayer final : public Sublayer {
 public:
  LatentSublayer(nn::Builder& builder, const std::string& name,
                 const nn::LatentAttentionConfig& config, const nn::LatentAttentionPlace& place)
      : attention_(builder, name, config, place) {}
  Var operator()(Tape& tape, const Var& x_TH, const nn::Batch& batch, bool train) const override {
    return attention_(tape, x_TH, batch, train);
  }
  nn::LayerCache cache() const override { return attention_.cache(); }

 private:
  nn::LatentAttention attention_;
};

nn::NormConfig latent_norm(const nn::LatentAttentionConfig& a, const nn::NormConfig& norm) {
  return {.kind = norm.kind, .epsilon = a.norm_epsilon};
}

PlainRow slice(const PlainRow& row, int64_t begin, int64_t size) {
  return {row.begin() + begin, row.begin() + begin + size};
}

}  // namespace

void LatentMixer::check(const DecoderValue& model, const nn::LatentAttentionConfig& a) {
  check_size(a.heads, kMaxHeads, "num-attention-heads");
  if (a.query_rank != 0) check_size(a.query_rank, kMaxHidden, "q-lora-rank");
  check_size(a.latent_rank, kMaxHidden, "kv-lora-rank");
  check_size(a.head.plain, kMaxHeadSize, "qk-head-dim");
  check_size(a.head.rotated, kMaxHeadSize, "qk-pos-emb-head-dim");
  check_size(a.head.value, kMaxHeadSize, "v-head-dim");
  for (const int64_t size : {a.head.key(), a.head.plain + a.head.value})
    MG_CHECK(a.heads * size <= kMaxWidth, "{} heads (--num-attention-heads) of size {} exceed {}",
             a.heads, size, kMaxWidth);
  check_number(a.norm_epsilon, a.norm_epsilon > 0, "norm-epsilon", "positive");
  if (a.rotary.empty()) return;
  const auto found = model.rotary.find(a.rotary);
  MG_CHECK(found != model.rotary.end(),
           "a layer uses the rotary position embedding '{}', which the model does not define",
           a.rotary);
  check_rotary(found->first, found->second, a.head.rotated);
}

int64_t LatentMixer::parameters(const nn::LatentAttentionConfig& a, const nn::NormConfig& norm,
                                int64_t h) {
  const nn::NormConfig of_latents = latent_norm(a, norm);
  const auto latent = [&](int64_t down, int64_t normalized) {  // the product and its norm
    return h * down + (a.bias ? down : 0) + (a.normalized ? of_latents.parameters(normalized) : 0);
  };
  const int64_t q = a.heads * a.head.key(), o = a.heads * a.head.value;
  const int64_t queries =
      a.query_rank == 0 ? h * q : latent(a.query_rank, a.query_rank) + a.query_rank * q;
  return queries + latent(a.cached(), a.latent_rank) +
         a.latent_rank * a.heads * (a.head.plain + a.head.value) + o * h + (a.output_bias ? h : 0);
}

double LatentMixer::forward_flops(const nn::LatentAttentionConfig& a, int64_t hidden,
                                  int64_t length) {
  const auto t = static_cast<double>(length), h = static_cast<double>(hidden),
             heads = static_cast<double>(a.heads), rank = static_cast<double>(a.query_rank);
  const auto key = static_cast<double>(a.head.key()), value = static_cast<double>(a.head.value);
  const double queries = a.query_rank == 0 ? h * heads * key : rank * (h + heads * key);
  const double up = static_cast<double>(a.latent_rank * (a.head.plain + a.head.value)) * heads;
  return 2 * t * (queries + h * static_cast<double>(a.cached()) + up + h * heads * value) +
         2 * nn::AttentionConfig{}.seen_pairs(length) * heads * (key + value);
}

void LatentMixer::add_facts(const nn::LatentAttentionConfig& a, ModelFacts& facts) {
  if (facts.attention) return;
  facts.attention = AttentionFacts{.heads = a.heads,
                                   .key_heads = a.heads,
                                   .head_size = a.head.key(),
                                   .latent = LatentFacts{.query_rank = a.query_rank,
                                                         .rank = a.latent_rank,
                                                         .rotated = a.head.rotated,
                                                         .value_size = a.head.value}};
  if (rotary(a)) facts.positions = Positions::rotary;
}

std::optional<RotaryUse> LatentMixer::rotary(const nn::LatentAttentionConfig& a) {
  if (a.rotary.empty()) return {};
  return RotaryUse{a.rotary, a.head.rotated};
}

std::vector<int64_t> LatentMixer::matrices(const nn::LatentAttentionConfig&, std::string_view) {
  return {};
}

std::unique_ptr<Sublayer> LatentMixer::build(nn::Builder& builder, const std::string& name,
                                             const nn::LatentAttentionConfig& config,
                                             const LayerPlace& place) {
  const DecoderValue& model = place.model;
  return std::make_unique<LatentSublayer>(
      builder, name, config,
      nn::LatentAttentionPlace{.hidden = model.hidden_size,
                               .norm = model.layer(place.index).norm.kind,
                               .rotary = place.positions.rotary(rotary(config)),
                               .score_scale = score_scale(config, model),
                               .dropout = model.attention_dropout,
                               .seed = place.seed,
                               .layer = place.state_layer,
                               .index = place.index,
                               .init = matrix_init(model),
                               .output_init = output_init(model)});
}

PlainRows LatentMixer::plain(const PlainParts& parts, const PlainRows& x, const std::string& name,
                             const nn::LatentAttentionConfig& a, const nn::NormConfig& norm) {
  const auto& [plain, rotated, value] = a.head;
  const nn::NormConfig of_latents = latent_norm(a, norm);
  const auto normed = [&](const PlainRows& rows, const std::string& which) {
    return a.normalized ? parts.normed(rows, name + which, of_latents) : rows;
  };
  const PlainRows q =
      a.query_rank == 0
          ? parts.linear(x, name + ".q", a.heads * a.head.key(), false)
          : parts.linear(
                normed(parts.linear(x, name + ".q_down", a.query_rank, a.bias), ".q_latent_norm"),
                name + ".q_up", a.heads * a.head.key(), false);
  PlainRows latents, shared;
  for (const PlainRow& row : parts.linear(x, name + ".kv_down", a.cached(), a.bias)) {
    latents.push_back(slice(row, 0, a.latent_rank));
    shared.push_back(slice(row, a.latent_rank, rotated));
  }
  const double amplitude = parts.amplitude(a.rotary);
  parts.rotate(shared, a.rotary, rotated, amplitude);
  const PlainRows kv = parts.linear(normed(latents, ".kv_latent_norm"), name + ".kv_up",
                                    a.heads * (plain + value), false);
  const double scale = score_scale(a, parts.model());
  PlainRows out(x.size());
  for (int64_t n = 0; n < a.heads; ++n) {
    PlainRows rotary_queries, values;
    for (const PlainRow& row : q)
      rotary_queries.push_back(slice(row, n * a.head.key() + plain, rotated));
    parts.rotate(rotary_queries, a.rotary, rotated, amplitude);
    for (const PlainRow& row : kv) values.push_back(slice(row, n * (plain + value) + plain, value));
    for (size_t t = 0; t < x.size(); ++t) {
      PlainRow scores(t + 1);
      for (size_t s = 0; s <= t; ++s) {
        for (int64_t d = 0; d < plain; ++d)
          scores[s] += q[t][static_cast<size_t>(n * a.head.key() + d)] *
                       kv[s][static_cast<size_t>(n * (plain + value) + d)];
        for (size_t d = 0; d < static_cast<size_t>(rotated); ++d)
          scores[s] += rotary_queries[t][d] * shared[s][d];
        scores[s] *= scale;
      }
      const PlainRow result = PlainParts::weighted(scores, values, 0);
      out[t].insert(out[t].end(), result.begin(), result.end());
    }
  }
  return parts.linear(out, name + ".output", parts.model().hidden_size, a.output_bias);
}

}  // namespace megatron::models
