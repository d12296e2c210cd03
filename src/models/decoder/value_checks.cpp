#include "models/decoder/value_checks.h"

#include <cmath>
#include <utility>

#include "base/error.h"
#include "models/facts.h"

namespace megatron::models {

void check_size(int64_t value, int64_t limit, std::string_view flag) {
  MG_CHECK(value > 0 && value <= limit, "--{} is {}; it must lie in [1, {}]", flag, value, limit);
}

void check_number(double value, bool good, std::string_view flag, std::string_view wanted) {
  MG_CHECK(good && std::isfinite(value), "--{} is {}; it must be {}", flag, value, wanted);
}

void check_rotary(const std::string& name, const nn::RotaryConfig& r, int64_t head_size) {
  check_number(r.base, r.base > 0, "rotary-base", "positive");
  check_number(r.fraction, r.fraction > 0 && r.fraction <= 1, "rotary-percent", "in (0, 1]");
  const int64_t dims = r.dims(head_size);
  MG_CHECK(dims > 0,
           "--rotary-percent {} of the head size {} is less than one pair of dims to rotate; "
           "change one of them",
           r.fraction, head_size);
  MG_CHECK(r.fraction < 1 || head_size % 2 == 0,
           "the head size is {}; rotary position embeddings need an even one: change "
           "--kv-channels or --num-attention-heads",
           head_size);
  if (r.scaling == nn::RopeScaling::none) return;
  const auto positive = [&](double value, std::string_view what) {
    MG_CHECK(value > 0 && std::isfinite(value),
             "the RoPE scaling '{}' has {} = {}; it must be positive", name, what, value);
  };
  if (r.scaling != nn::RopeScaling::longrope) positive(r.factor, "factor");
  if (r.scaling == nn::RopeScaling::linear) return;
  MG_CHECK(
      r.original_positions > 0 && r.original_positions <= kMaxPositions,
      "the RoPE scaling '{}' has original_max_position_embeddings = {}; it must lie in [1, {}]",
      name, r.original_positions, kMaxPositions);
  if (r.scaling == nn::RopeScaling::llama3) {
    positive(r.low_freq_factor, "low_freq_factor");
    MG_CHECK(r.high_freq_factor > r.low_freq_factor && std::isfinite(r.high_freq_factor),
             "the RoPE scaling '{}' has high_freq_factor = {}; it must be above low_freq_factor, "
             "{}",
             name, r.high_freq_factor, r.low_freq_factor);
  }
  if (r.scaling == nn::RopeScaling::yarn) {
    positive(r.beta_fast, "beta_fast");
    positive(r.beta_slow, "beta_slow");
    MG_CHECK(r.base > 1, "--rotary-base is {}; YaRN scaling needs one above 1", r.base);
    for (const double value : {r.mscale, r.mscale_all_dim, r.attention_factor})
      MG_CHECK(value >= 0 && std::isfinite(value),
               "the RoPE scaling '{}' has a scale of {}; it must be 0 or more", name, value);
  }
  if (r.scaling == nn::RopeScaling::dynamic)
    MG_CHECK(dims > 2, "dynamic RoPE scaling rotates {} dims; it needs at least 4", dims);
  if (r.scaling == nn::RopeScaling::longrope) {
    for (const auto& [factors, what] :
         {std::pair{&r.short_factor, "short_factor"}, {&r.long_factor, "long_factor"}}) {
      MG_CHECK(std::ssize(*factors) == dims / 2,
               "the RoPE scaling '{}' has {} numbers in {}; {} rotated dims need {}", name,
               factors->size(), what, dims, dims / 2);
      for (const double value : *factors) positive(value, what);
    }
    MG_CHECK(
        r.original_positions > 1 || r.attention_factor > 0,
        "the RoPE scaling '{}' has original_max_position_embeddings = 1; longrope needs at least "
        "2",
        name);
  }
}

}  // namespace megatron::models
