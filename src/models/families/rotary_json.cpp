#include "models/families/rotary_json.h"

#include <array>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "models/families/config_json.h"

namespace megatron::models {
namespace {

using nn::RopeScaling;

struct ScalingName {
  std::string_view name;
  RopeScaling scaling;
};
constexpr std::array kScalings = {
    ScalingName{"default", RopeScaling::none},    ScalingName{"linear", RopeScaling::linear},
    ScalingName{"dynamic", RopeScaling::dynamic}, ScalingName{"llama3", RopeScaling::llama3},
    ScalingName{"yarn", RopeScaling::yarn},       ScalingName{"longrope", RopeScaling::longrope}};

std::string_view name_of(RopeScaling scaling) {
  for (const ScalingName& known : kScalings)
    if (known.scaling == scaling) return known.name;
  MG_ASSERT(false);
}

// The members of a block under the names that error messages give them: "rope_scaling.factor".
class Block {
 public:
  Block(const Json& block, std::string name) : name_(std::move(name)) {
    MG_CHECK(block.is_object(), "config.json has {} = {}; it must be an object", name_,
             block.dump());
    for (const auto& [key, value] : block.as_object()) {
      MG_CHECK(!key.ends_with("_attention"),
               "config.json has {} by layer type ({}); this model type has the same for all layers",
               name_, key);
      members_.set(path(key), value);
    }
    const std::string type = text("rope_type", text("type", "default"));
    if (find("rope_type") == nullptr && find("type") == nullptr && find("factor") != nullptr)
      log::warning(
          "config.json has {} = {} and no {}: positions are not scaled, as in transformers; if "
          "they should be, give the type (linear, dynamic, yarn, llama3 or longrope)",
          path("factor"), find("factor")->dump(), path("rope_type"));
    for (const ScalingName& known : kScalings)
      if (known.name == type) scaling_ = known.scaling;
    MG_CHECK(scaling_.has_value(),
             "config.json has {} = '{}'; supported: default, linear, dynamic, llama3, yarn, "
             "longrope",
             path("rope_type"), type);
  }

  RopeScaling scaling() const { return *scaling_; }
  std::string path(std::string_view key) const { return name_ + "." + std::string(key); }
  // Returns null if the key is absent or null.
  const Json* find(std::string_view key) const { return present(members_, path(key)); }
  bool contains(std::string_view key) const { return members_.contains(path(key)); }

  std::string text(std::string_view key, const std::string& otherwise) const {
    return models::text(members_, path(key), otherwise);
  }
  bool boolean(std::string_view key, bool otherwise) const {
    return models::boolean(members_, path(key), otherwise);
  }
  double positive(std::string_view key, double otherwise) const {
    return models::positive(members_, path(key), otherwise);
  }
  double number(std::string_view key, double otherwise) const {
    const double value = models::number(members_, path(key), otherwise);
    MG_CHECK(value >= 0 && std::isfinite(value),
             "config.json has {} = {}; it must be a number of 0 or more", path(key), value);
    return value;
  }
  int64_t integer(std::string_view key, int64_t otherwise) const {
    return models::integer(members_, path(key), otherwise);
  }
  // Throws Error if a key is absent that the kind of scaling needs.
  double needed(std::string_view key) const {
    check(key, find(key) != nullptr);
    return models::positive(members_, path(key));
  }
  std::vector<double> needed_list(std::string_view key) const {
    check(key, find(key) != nullptr);
    const Json& list = *find(key);
    std::vector<double> values;
    const std::string what = fmt::format(
        "config.json has {} = {}; it must be a list of positive numbers", path(key), list.dump());
    MG_CHECK(list.is_array(), "{}", what);
    for (const Json& value : list.as_array()) {
      MG_CHECK(value.is_number() && value.as_number() > 0, "{}", what);
      values.push_back(value.as_number());
    }
    return values;
  }
  void check(std::string_view key, bool there) const {
    MG_CHECK(there, "config.json has {} = {} and no {}, which it needs", path("rope_type"),
             name_of(*scaling_), path(key));
  }

 private:
  std::string name_;
  Json members_ = Json(Json::Object{});
  std::optional<RopeScaling> scaling_;
};

double ratio(int64_t positions, int64_t original) {
  return static_cast<double>(positions) / static_cast<double>(original);
}

// A factor of null is the ratio of the two contexts.
double yarn_factor(const Block& p, int64_t positions, int64_t original) {
  p.check("factor", p.contains("factor"));
  return p.positive("factor", ratio(positions, original));
}

void read_yarn(const Block& p, nn::RotaryConfig& rotary) {
  rotary.beta_fast = p.positive("beta_fast", 32);
  rotary.beta_slow = p.positive("beta_slow", 1);
  rotary.mscale = p.number("mscale", 0);
  rotary.mscale_all_dim = p.number("mscale_all_dim", 0);
  rotary.truncate = p.boolean("truncate", !p.contains("truncate"));  // null means false
}

// An explicit factor stands for the ratio of the two contexts, from which the attention factor
// follows (Ding et al. 2024).
double longrope_attention(double factor, int64_t original) {
  return factor <= 1 ? 1
                     : std::sqrt(1 + std::log(factor) / std::log(static_cast<double>(original)));
}

void read_scaling(const Json& config, const Block& p, nn::RotaryConfig& rotary) {
  const int64_t positions = integer(config, "max_position_embeddings");
  const int64_t original = integer(config, "original_max_position_embeddings",
                                   p.integer("original_max_position_embeddings", positions));
  if (rotary.scaling != RopeScaling::longrope && rotary.scaling != RopeScaling::yarn)
    rotary.factor = p.needed("factor");
  switch (rotary.scaling) {
    case RopeScaling::none:
    case RopeScaling::linear: return;
    case RopeScaling::dynamic:
      MG_CHECK(rotary.factor >= 1, "config.json has {} = {}; dynamic scaling needs 1 or more",
               p.path("factor"), rotary.factor);
      rotary.original_positions = positions;
      return;
    case RopeScaling::llama3:
      rotary.original_positions = original;
      rotary.low_freq_factor = p.needed("low_freq_factor");
      rotary.high_freq_factor = p.needed("high_freq_factor");
      MG_CHECK(rotary.high_freq_factor > rotary.low_freq_factor,
               "config.json has {} = {}; it must be above low_freq_factor, {}",
               p.path("high_freq_factor"), rotary.high_freq_factor, rotary.low_freq_factor);
      return;
    case RopeScaling::yarn:
      rotary.original_positions = original;
      rotary.factor = yarn_factor(p, positions, original);
      read_yarn(p, rotary);
      break;
    case RopeScaling::longrope:
      rotary.original_positions = original;
      rotary.short_factor = p.needed_list("short_factor");
      rotary.long_factor = p.needed_list("long_factor");
      if (p.find("factor") != nullptr)
        rotary.attention_factor = longrope_attention(p.needed("factor"), original);
  }
  if (p.find("attention_factor") != nullptr) rotary.attention_factor = p.needed("attention_factor");
}

}  // namespace

nn::RotaryConfig read_rotary(const Json& config, bool partial) {
  const Json *parameters = present(config, "rope_parameters"),
             *scaling = present(config, "rope_scaling");
  if (scaling != nullptr && !(*scaling == Json(Json::Object{})))
    return read_rotary_block(config, *scaling, "rope_scaling", partial);
  return read_rotary_block(config, parameters == nullptr ? Json(Json::Object{}) : *parameters,
                           "rope_parameters", partial);
}

nn::RotaryConfig read_rotary_block(const Json& config, const Json& block, const std::string& name,
                                   bool partial) {
  const Block p(block, name);
  nn::RotaryConfig rotary{.scaling = p.scaling()};
  rotary.base = p.find("rope_theta") != nullptr ? p.positive("rope_theta", 0)
                                                : positive(config, "rope_theta");
  const double fraction =
      p.positive("partial_rotary_factor", positive(config, "partial_rotary_factor", 1));
  if (partial) {
    MG_CHECK(fraction <= 1, "config.json has partial_rotary_factor = {}; the maximum is 1",
             fraction);
    rotary.fraction = fraction;
  } else {
    MG_CHECK(fraction == 1 || rotary.scaling == RopeScaling::none,
             "config.json has partial_rotary_factor = {} and {} = {}; this model type rotates "
             "whole heads: leave the factor out",
             fraction, p.path("rope_type"), name_of(rotary.scaling));
  }
  if (rotary.scaling != RopeScaling::none) read_scaling(config, p, rotary);
  return rotary;
}

Json write_rotary(const nn::RotaryConfig& rotary, bool partial) {
  Json p(Json::Object{});
  const RopeScaling scaling = rotary.scaling;
  const bool extended = scaling == RopeScaling::yarn || scaling == RopeScaling::llama3 ||
                        scaling == RopeScaling::longrope;
  if (scaling == RopeScaling::yarn) {
    p.set("beta_fast", rotary.beta_fast);
    p.set("beta_slow", rotary.beta_slow);
  }
  if (rotary.attention_factor != 0) p.set("attention_factor", rotary.attention_factor);
  if (scaling != RopeScaling::none && scaling != RopeScaling::longrope)
    p.set("factor", rotary.factor);
  if (scaling == RopeScaling::llama3) {
    p.set("high_freq_factor", rotary.high_freq_factor);
    p.set("low_freq_factor", rotary.low_freq_factor);
  }
  if (scaling == RopeScaling::yarn) {
    if (rotary.mscale != 0) p.set("mscale", rotary.mscale);
    if (rotary.mscale_all_dim != 0) p.set("mscale_all_dim", rotary.mscale_all_dim);
  }
  if (scaling == RopeScaling::longrope)
    p.set("long_factor", Json::Array(rotary.long_factor.begin(), rotary.long_factor.end()));
  if (extended) p.set("original_max_position_embeddings", rotary.original_positions);
  if (partial) p.set("partial_rotary_factor", rotary.fraction);
  p.set("rope_theta", rotary.base);
  p.set("rope_type", name_of(scaling));
  if (scaling == RopeScaling::longrope)
    p.set("short_factor", Json::Array(rotary.short_factor.begin(), rotary.short_factor.end()));
  if (scaling == RopeScaling::yarn && !rotary.truncate) p.set("truncate", false);
  return p;
}

}  // namespace megatron::models
