#include "models/decoder/mixers/attention.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "models/decoder/value_checks.h"

namespace megatron::models {
namespace {

using HeadMixer = LayerPart<nn::AttentionConfig>;

class AttentionSublayer final : public Sublayer {
 public:
  AttentionSublayer(nn::Builder& builder, const std::string& name,
                    const nn::AttentionConfig& config, const nn::AttentionPlace& place)
      : config_(config), attention_(builder, name, config, place) {}
  Var operator()(Tape& tape, const Var& x_TH, const nn::Batch& batch, bool train) const override {
    MG_ASSERT(config_.relative.buckets == 0);
    return attention_(tape, x_TH, batch, train);
  }
  Var with(Tape& tape, const Var& x_TH, const Bundle& passed_on, const nn::Batch& batch,
           bool train) const override {
    return attention_(tape, x_TH, batch, train,
                      config_.relative.buckets > 0 ? passed_on[kDistanceBias] : Var());
  }
  nn::LayerCache cache() const override {
    MG_CHECK(
        !config_.two_sided,
        "attention that sees later tokens cannot continue a text: this model is an encoder and "
        "keeps no keys for generation; use a decoder");
    return {.kv_heads = attention_.kv_heads(),
            .head_size = config_.head_size,
            .window = config_.window};
  }

 private:
  nn::AttentionConfig config_;
  nn::Attention attention_;
};

// Heads of a token one after another; each, or all together, are normalised and rotated.
void norm_heads(const PlainParts& parts, PlainRows& x, const std::string& name,
                const nn::AttentionConfig& a, const nn::NormConfig& norm) {
  if (a.qk_norm == nn::QkNorm::none) return;
  nn::NormConfig kind = norm;
  if (a.qk_norm == nn::QkNorm::l2) {
    kind.kind = nn::Normalization::rms_norm;
    kind.epsilon /=
        std::pow(parts.amplitude(a.rotary), 2);  // in Llama 4 the norm follows the rotation
  }
  const auto width = static_cast<int64_t>(x.at(0).size());
  const int64_t row = a.qk_norm == nn::QkNorm::full_width ? width : a.head_size;
  PlainRow weight, bias;
  if (a.qk_norm != nn::QkNorm::l2) {
    weight = parts.tensor(name + ".weight", {row});
    if (kind.has_bias()) bias = parts.tensor(name + ".bias", {row});
  }
  for (PlainRow& all : x) {
    for (auto begin = all.begin(); begin != all.end(); begin += row) {
      const PlainRow y = PlainParts::normed(PlainRow(begin, begin + row), weight, bias, kind);
      std::copy(y.begin(), y.end(), begin);
    }
  }
}

void clip(PlainRows& x, double limit) {
  for (PlainRow& row : x)
    for (double& element : row) element = std::clamp(element, -limit, limit);
}

double temperature(const nn::Temperature& by, size_t t) {
  const auto step = static_cast<size_t>(by.step);
  return 1 + by.scale * std::log(1 + static_cast<double>((t + 1) / step));
}

// The first position that a query at t sees.
int64_t first_seen(int64_t t, const nn::AttentionConfig& a) {
  int64_t first = 0;
  if (a.window > 0) first = std::max(first, t - a.window + 1);
  if (a.chunk > 0) first = std::max(first, t / a.chunk * a.chunk);
  return first;
}
int64_t last_seen(int64_t t, int64_t length, const nn::AttentionConfig& a) {
  if (!a.two_sided) return t;
  return a.window > 0 ? std::min(length, t + a.window) - 1 : length - 1;
}

// The number that is added to the scores of head n, by T5's rule in terms of its definition: exact
// distances, then equal steps of the logarithm.
double relative_bias(const PlainRow& table, int64_t distance, int64_t n,
                     const nn::AttentionConfig& a) {
  if (table.empty()) return 0;
  int64_t buckets = a.relative.buckets, first = 0;
  if (a.two_sided) {
    buckets /= 2;
    if (distance > 0) first = buckets;
  }
  const int64_t length = a.two_sided ? std::abs(distance) : std::max<int64_t>(-distance, 0),
                exact = buckets / 2;
  int64_t bucket = length;
  if (length >= exact) {
    const float steps = std::log(static_cast<float>(length) / static_cast<float>(exact)) /
                        static_cast<float>(std::log(static_cast<double>(a.relative.max_distance) /
                                                    static_cast<double>(exact))) *
                        static_cast<float>(buckets - exact);
    bucket = std::min(exact + static_cast<int64_t>(steps), buckets - 1);
  }
  return table[static_cast<size_t>((first + bucket) * a.heads + n)];
}

// Appends head n of token t's result to `row`. table: of relative positions, or empty.
void attend(const PlainRows& q, const PlainRows& k, const PlainRows& v, size_t t, int64_t n,
            const nn::AttentionConfig& a, double sink, const PlainRow& table, PlainRow& row) {
  const auto size = static_cast<size_t>(a.head_size), begin = static_cast<size_t>(n) * size;
  const size_t shared = static_cast<size_t>(n / (a.heads / a.kv_heads)) * size;
  const double scale = a.scale != 0 ? a.scale : 1 / std::sqrt(static_cast<double>(a.head_size));
  double sum = sink;
  PlainRow value(size);
  const auto at = static_cast<int64_t>(t);
  const auto last = static_cast<size_t>(last_seen(at, std::ssize(k), a));
  for (auto s = static_cast<size_t>(first_seen(at, a)); s <= last; ++s) {
    double score = 0;
    for (size_t d = 0; d < size; ++d) score += scale * q[t][begin + d] * k[s][shared + d];
    if (a.soft_cap > 0) score = a.soft_cap * std::tanh(score / a.soft_cap);
    score += relative_bias(table, static_cast<int64_t>(s) - at, n, a);
    const double p = std::exp(score);
    sum += p;
    for (size_t d = 0; d < size; ++d) value[d] += p * v[s][shared + d];
  }
  for (const double d : value) row.push_back(d / sum);
}

void check_two_sided(const DecoderValue& model, const nn::AttentionConfig& a) {
  MG_CHECK(
      a.chunk == 0,
      "two-sided attention has an attention chunk size of {}: chunks are for causal attention; "
      "use a window (--window-size)",
      a.chunk);
  MG_CHECK(
      a.temperature.scale == 0,
      "two-sided attention has an attention temperature of {}: it grows with the tokens that a "
      "causal query sees; remove it",
      a.temperature.scale);
  MG_CHECK(model.prediction.depths == 0,
           "two-sided attention sees the tokens that --mtp-num-layers {} would predict; use 0",
           model.prediction.depths);
}

void check_relative(const DecoderValue& model, const nn::AttentionConfig& a) {
  const nn::RelativeBuckets& r = a.relative;
  if (r.buckets == 0) return;
  constexpr int64_t kMaxDistance = 1 << 16;
  // The buckets of one direction; half of them are for exact distances.
  const int64_t one_way = a.two_sided ? r.buckets / 2 : r.buckets;
  MG_CHECK(r.buckets > 0 && r.buckets <= kMaxDistance && one_way >= 2 && one_way % 2 == 0,
           "--relative-attention-num-buckets is {}; it must be a multiple of {} up to {}",
           r.buckets, a.two_sided ? 4 : 2, kMaxDistance);
  MG_CHECK(r.max_distance > one_way / 2 && r.max_distance <= kMaxDistance,
           "--relative-attention-max-distance is {}; it must lie in [{}, {}], above the distances "
           "that have a bucket of their own",
           r.max_distance, one_way / 2 + 1, kMaxDistance);
  MG_CHECK(a.rotary.empty() && !model.learned_positions,
           "a layer has both relative and {} positions; it can have only one kind",
           a.rotary.empty() ? "learned" : "rotary");
  MG_CHECK(a.kv_heads == a.heads,
           "--num-query-groups is {}; with relative positions it must be --num-attention-heads, {}",
           a.kv_heads, a.heads);
}

}  // namespace

void HeadMixer::check(const DecoderValue& model, const nn::AttentionConfig& a) {
  check_size(a.heads, kMaxHeads, "num-attention-heads");
  check_size(a.kv_heads, kMaxHeads, "num-query-groups");
  MG_CHECK(
      a.heads % a.kv_heads == 0,
      "--num-attention-heads {} is not a multiple of --num-query-groups {}; change one of them",
      a.heads, a.kv_heads);
  check_size(a.head_size, kMaxHeadSize, "kv-channels");
  MG_CHECK(a.heads * a.head_size <= kMaxWidth,
           "--num-attention-heads {} times the head size {} (--kv-channels) is above {}", a.heads,
           a.head_size, kMaxWidth);
  MG_CHECK(std::isfinite(a.scale) && a.scale >= 0,
           "the scale of attention scores is {}; it must be positive", a.scale);
  check_number(a.soft_cap, a.soft_cap >= 0, "attn-logit-softcapping", "0 or more");
  MG_CHECK(a.window >= 0 && a.window <= kMaxPositions,
           "--window-size covers {} tokens; the number must lie in [1, {}]", a.window,
           kMaxPositions);
  MG_CHECK(a.chunk >= 0 && a.chunk <= kMaxPositions,
           "the attention chunk size is {} tokens; it must lie in [1, {}]", a.chunk, kMaxPositions);
  if (a.two_sided) check_two_sided(model, a);
  check_relative(model, a);
  check_number(a.qkv_clip, a.qkv_clip >= 0, "clip-qkv", "0 or more");
  check_number(a.temperature.scale, true, "attention-temperature-scale", "finite");
  if (a.temperature.scale != 0) {
    MG_CHECK(a.temperature.step > 0,
             "the attention temperature changes every {} positions; the number must be positive",
             a.temperature.step);
    MG_CHECK(a.head_size % 2 == 0,
             "the head size is {}; an attention temperature needs an even one: change "
             "--kv-channels or --num-attention-heads",
             a.head_size);
    constexpr int64_t kMax = 1 << 24;
    MG_CHECK(model.positions() <= kMax,
             "--max-position-embeddings is {}; with an attention temperature, which needs a table "
             "of all positions, the maximum is {}",
             model.positions(), kMax);
  }
  if (a.rotary.empty()) return;
  const auto found = model.rotary.find(a.rotary);
  MG_CHECK(found != model.rotary.end(),
           "a layer uses the rotary position embedding '{}', which the model does not define",
           a.rotary);
  check_rotary(found->first, found->second, a.head_size);
}

int64_t HeadMixer::parameters(const nn::AttentionConfig& a, const nn::NormConfig& norm, int64_t h) {
  const int64_t q = a.heads * a.head_size, k = a.kv_heads * a.head_size;
  const int64_t qkv = (a.output_gate ? 2 : 1) * q + 2 * k;
  int64_t size = h * qkv + (a.qkv_bias ? qkv : 0) + q * h + (a.output_bias ? h : 0);
  if (a.qk_norm == nn::QkNorm::head) size += 2 * norm.parameters(a.head_size);
  if (a.qk_norm == nn::QkNorm::full_width) size += norm.parameters(q) + norm.parameters(k);
  if (!a.relative.shared) size += a.relative.buckets * a.heads;
  return size + (a.sinks == nn::Sinks::learned ? a.heads : 0);
}

double HeadMixer::forward_flops(const nn::AttentionConfig& a, int64_t hidden, int64_t length) {
  const auto t = static_cast<double>(length), h = static_cast<double>(hidden),
             q = static_cast<double>(a.heads * a.head_size),
             k = static_cast<double>(a.kv_heads * a.head_size);
  return 2 * t * h * ((a.output_gate ? 2 : 1) * q + 2 * k) + 2 * t * q * h +
         2 * 2 * a.seen_pairs(length) * q;
}

double HeadMixer::cross_flops(const nn::AttentionConfig& a, int64_t hidden, int64_t length,
                              int64_t encoder) {
  const auto t = static_cast<double>(length), e = static_cast<double>(encoder),
             h = static_cast<double>(hidden), q = static_cast<double>(a.heads * a.head_size),
             k = static_cast<double>(a.kv_heads * a.head_size);
  return 2 * t * h * q + 2 * e * h * 2 * k + 2 * t * q * h + 2 * 2 * t * e * q;
}

void HeadMixer::add_facts(const nn::AttentionConfig& a, ModelFacts& facts) {
  facts.two_sided = facts.two_sided || a.two_sided;
  const parallel::AttentionReach reach{a.window, a.chunk, a.two_sided};
  if (reach.limited() && std::ranges::find(facts.reaches, reach) == facts.reaches.end())
    facts.reaches.push_back(reach);
  if (facts.attention) return;
  facts.attention = AttentionFacts{
      .heads = a.heads, .key_heads = a.kv_heads, .head_size = a.head_size, .qkv_bias = a.qkv_bias};
  if (rotary(a)) facts.positions = Positions::rotary;
}

std::optional<RotaryUse> HeadMixer::rotary(const nn::AttentionConfig& a) {
  if (a.rotary.empty()) return {};
  return RotaryUse{a.rotary, a.head_size};
}

std::vector<int64_t> HeadMixer::matrices(const nn::AttentionConfig& a, std::string_view parameter) {
  if (parameter != ".qkv.weight") return {};
  const int64_t q = a.heads * a.head_size, k = a.kv_heads * a.head_size;
  if (a.output_gate) return {q, q, k, k};
  return {q, k, k};
}

std::vector<int64_t> HeadMixer::cross_matrices(const nn::AttentionConfig& a,
                                               std::string_view parameter) {
  const int64_t k = a.kv_heads * a.head_size;
  return parameter == ".kv.weight" ? std::vector{k, k} : std::vector<int64_t>();
}

nn::AttentionPlace HeadMixer::place_of(const nn::AttentionConfig& config, const LayerPlace& place) {
  const DecoderValue& model = place.model;
  return {.hidden = model.hidden_size,
          .norm = model.layer(place.index).norm,
          .rotary = place.positions.rotary(rotary(config)),
          .temperature = place.positions.temperature(config),
          .dropout = model.attention_dropout,
          .seed = place.seed,
          .layer = place.state_layer,
          .index = place.index,
          .init = matrix_init(model),
          .output_init = output_init(model)};
}

std::unique_ptr<Sublayer> HeadMixer::build(nn::Builder& builder, const std::string& name,
                                           const nn::AttentionConfig& config,
                                           const LayerPlace& place) {
  return std::make_unique<AttentionSublayer>(builder, name, config, place_of(config, place));
}

// The table of relative positions of a layer, which may be that of the first layer of its stack.
PlainRow relative_table(const PlainParts& parts, const std::string& name,
                        const nn::AttentionConfig& a) {
  if (a.relative.buckets == 0) return {};
  std::string owner = name;
  if (a.relative.shared)
    owner = fmt::format("layers.{}.attention", a.two_sided ? 0 : parts.model().encoder_layers);
  return parts.tensor(owner + ".relative_bias.weight", {a.relative.buckets, a.heads});
}

PlainRows HeadMixer::plain_cross(const PlainParts& parts, const PlainRows& x,
                                 const PlainRows& encoded, const std::string& name,
                                 const nn::AttentionConfig& config) {
  nn::AttentionConfig a = config;
  a.two_sided = true;  // every token sees all of the other text
  const int64_t query = a.heads * a.head_size, key = a.kv_heads * a.head_size;
  const PlainRows q = parts.linear(x, name + ".q", query, a.qkv_bias);
  PlainRows k, v;
  for (const PlainRow& row : parts.linear(encoded, name + ".kv", 2 * key, a.qkv_bias)) {
    k.emplace_back(row.begin(), row.begin() + key);
    v.emplace_back(row.begin() + key, row.end());
  }
  PlainRows out;
  for (size_t t = 0; t < x.size(); ++t) {
    PlainRow row;
    for (int64_t n = 0; n < a.heads; ++n) attend(q, k, v, t, n, a, 0, {}, row);
    out.push_back(std::move(row));
  }
  return parts.linear(out, name + ".output", parts.model().hidden_size, a.output_bias);
}

PlainRows HeadMixer::plain(const PlainParts& parts, const PlainRows& x, const std::string& name,
                           const nn::AttentionConfig& a, const nn::NormConfig& norm) {
  const int64_t query = a.heads * a.head_size, key = a.kv_heads * a.head_size,
                gates = a.output_gate ? query : 0;
  PlainRows q, gate, k, v;
  for (const PlainRow& row : parts.linear(x, name + ".qkv", query + gates + 2 * key, a.qkv_bias)) {
    auto at = row.begin();
    for (const auto& [part, size] : {std::pair{&q, query}, {&gate, gates}, {&k, key}, {&v, key}}) {
      part->emplace_back(at, at + size);
      at += size;
    }
  }
  norm_heads(parts, q, name + ".q_norm", a, norm);
  norm_heads(parts, k, name + ".k_norm", a, norm);
  if (a.qkv_clip > 0)
    for (PlainRows* rows : {&q, &k, &v}) clip(*rows, a.qkv_clip);
  const double amplitude = a.qk_norm == nn::QkNorm::l2 ? 1 : parts.amplitude(a.rotary);
  parts.rotate(q, a.rotary, a.head_size, amplitude);
  parts.rotate(k, a.rotary, a.head_size, amplitude);
  for (size_t t = 0; t < q.size(); ++t)
    for (double& element : q[t]) element *= temperature(a.temperature, t);
  const PlainRow sinks =
      a.sinks == nn::Sinks::learned ? parts.tensor(name + ".sinks", {a.heads}) : PlainRow();
  const PlainRow table = relative_table(parts, name, a);
  PlainRows out;
  for (size_t t = 0; t < x.size(); ++t) {
    PlainRow row;
    for (int64_t n = 0; n < a.heads; ++n) {
      double sink = 0;  // e^sink
      if (a.sinks != nn::Sinks::none)
        sink = std::exp(sinks.empty() ? 0 : sinks[static_cast<size_t>(n)]);
      attend(q, k, v, t, n, a, sink, table, row);
    }
    for (size_t i = 0; i < gate[t].size(); ++i) row[i] /= 1 + std::exp(-gate[t][i]);
    out.push_back(std::move(row));
  }
  return parts.linear(out, name + ".output", parts.model().hidden_size, a.output_bias);
}

}  // namespace megatron::models
