#include "nn/rotary.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/error.h"
#include "kernels/table.h"

namespace megatron::nn {
namespace {

double number(int64_t value) { return static_cast<double>(value); }

// Scale of attention for a context extended by `factor` (Peng et al. 2023, 3.4).
double yarn_scale(double factor, double mscale) {
  return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1;
}

// Index, as a real number, of the pair that makes `rotations` turns over the original context.
double pair_of(const RotaryConfig& c, double dims, double rotations) {
  return dims * std::log(number(c.original_positions) / (rotations * 2 * M_PI)) /
         (2 * std::log(c.base));
}

void scale_llama3(const RotaryConfig& c, std::vector<double>& frequencies) {
  const double longest = number(c.original_positions) / c.low_freq_factor,
               shortest = number(c.original_positions) / c.high_freq_factor;
  for (double& f : frequencies) {
    const double wavelength = 2 * M_PI / f;
    if (wavelength < shortest) continue;
    if (wavelength > longest) {
      f /= c.factor;
      continue;
    }
    const double smooth = (number(c.original_positions) / wavelength - c.low_freq_factor) /
                          (c.high_freq_factor - c.low_freq_factor);
    f = (1 - smooth) * f / c.factor + smooth * f;
  }
}

void scale_yarn(const RotaryConfig& c, std::vector<double>& frequencies) {
  const double dims = 2 * number(static_cast<int64_t>(frequencies.size()));
  double low = pair_of(c, dims, c.beta_fast), high = pair_of(c, dims, c.beta_slow);
  if (c.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dims - 1);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] *= ramp / c.factor + (1 - ramp);
  }
}

// Number of rows of the first table. Tables on the host grow with the texts, because a model may
// claim far more positions than any text has. Those on a GPU do not, because captured graphs hold
// their addresses.
int64_t first_rows(int64_t rows, const Stream::Target& target) {
  constexpr int64_t kFirst = 1 << 17;
  return target.kind == DeviceKind::cuda ? rows : std::min(rows, kFirst);
}

int64_t more_rows(int64_t length, int64_t positions, const Stream::Target& target) {
  if (target.kind == DeviceKind::cuda) return positions;
  return std::min(positions, static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(length))));
}

}  // namespace

int64_t RotaryConfig::dims(int64_t head_size) const {
  return static_cast<int64_t>(number(head_size) * fraction) / 2 * 2;
}

std::vector<double> RotaryConfig::frequencies(int64_t head_size, int64_t length) const {
  const int64_t rotated = dims(head_size);
  const bool beyond = length > original_positions;
  double b = base;
  if (scaling == RopeScaling::dynamic && beyond) {
    const double stretch = factor * number(length) / number(original_positions) - (factor - 1);
    b *= std::pow(stretch, number(rotated) / number(rotated - 2));
  }
  std::vector<double> result;
  for (int64_t i = 0; i < rotated / 2; ++i)
    result.push_back(std::pow(b, -2 * number(i) / number(rotated)));
  switch (scaling) {
    case RopeScaling::none:
    case RopeScaling::dynamic: break;
    case RopeScaling::linear:
      for (double& f : result) f /= factor;
      break;
    case RopeScaling::llama3: scale_llama3(*this, result); break;
    case RopeScaling::yarn: scale_yarn(*this, result); break;
    case RopeScaling::longrope: {
      const std::vector<double>& factors = beyond ? long_factor : short_factor;
      for (size_t i = 0; i < result.size(); ++i) result[i] /= factors.at(i);
    }
  }
  return result;
}

double RotaryConfig::amplitude(int64_t positions) const {
  if (attention_factor != 0) return attention_factor;
  if (scaling == RopeScaling::yarn) {
    if (mscale != 0 && mscale_all_dim != 0)
      return yarn_scale(factor, mscale) / yarn_scale(factor, mscale_all_dim);
    return yarn_scale(factor, 1);
  }
  if (scaling == RopeScaling::longrope) {
    const double stretch = number(positions) / number(original_positions);
    return stretch <= 1 ? 1
                        : std::sqrt(1 + std::log(stretch) / std::log(number(original_positions)));
  }
  return 1;
}

double RotaryConfig::score_scale() const {
  if (scaling != RopeScaling::yarn || mscale_all_dim == 0) return 1;
  const double amplitude = yarn_scale(factor, mscale_all_dim);
  return amplitude * amplitude;
}

bool RotaryConfig::same_table(int64_t length, int64_t other) const {
  if (!depends_on_length() || length == other) return true;
  const bool within = length <= original_positions && other <= original_positions;
  const bool beyond = length > original_positions && other > original_positions;
  return within || (beyond && scaling == RopeScaling::longrope);
}

RotaryTables::RotaryTables(Runtime& runtime, DType model_type, int64_t positions, int64_t head_size,
                           const RotaryConfig& config)
    : runtime_(runtime),
      type_(kernels::accumulator(model_type)),
      positions_(positions),
      head_size_(head_size),
      config_(config) {
  const int64_t rows =
      config.depends_on_length() ? std::min(config.original_positions, positions) : positions;
  within_ = make(rows, first_rows(rows, runtime.stream().target()));
}

RotaryTable RotaryTables::of(int64_t length) const {
  const bool beyond = config_.depends_on_length() && length > config_.original_positions;
  if (!beyond && length <= within_.cos.size(0)) return within_;
  const std::lock_guard lock(mutex_);
  if (beyond_.cos.defined() && length <= beyond_.cos.size(0) &&
      config_.same_table(length, beyond_length_))
    return beyond_;
  // A table of dynamic scaling is valid only up to its length.
  const bool dynamic = beyond && config_.scaling == RopeScaling::dynamic;
  beyond_ = make(length, dynamic ? std::max(length, within_.cos.size(0))
                                 : more_rows(length, positions_, runtime_.stream().target()));
  beyond_length_ = length;
  return beyond_;
}

RotaryTable RotaryTables::make(int64_t length, int64_t positions) const {
  const std::vector<double> frequencies = config_.frequencies(head_size_, length);
  const double amplitude = config_.amplitude(positions_);
  const auto pairs = static_cast<int64_t>(frequencies.size());
  RotaryTable table;
  Arena& arena = runtime_.arena(MemoryClass::parameters);
  table.cos = Tensor::empty(arena, {positions, pairs}, type_, "rotary.cos");
  table.sin = Tensor::empty(arena, {positions, pairs}, type_, "rotary.sin");
  if (!runtime_.device().has_data()) return table;
  std::vector<double> cos(static_cast<size_t>(positions * pairs)), sin(cos);
  for (size_t i = 0; i < cos.size(); ++i) {
    const double angle =
        static_cast<double>(i / frequencies.size()) * frequencies[i % frequencies.size()];
    cos[i] = amplitude * std::cos(angle);
    sin[i] = amplitude * std::sin(angle);
  }
  copy_from(table.cos, std::span<const double>(cos), runtime_.stream());
  copy_from(table.sin, std::span<const double>(sin), runtime_.stream());
  return table;
}

RotaryTable temperature_table(Runtime& runtime, DType model_type, int64_t positions,
                              int64_t head_size, const Temperature& temperature) {
  const int64_t pairs = head_size / 2;
  const DType type = kernels::accumulator(model_type);
  Arena& arena = runtime.arena(MemoryClass::parameters);
  RotaryTable table{.cos = Tensor::empty(arena, {positions, pairs}, type, "temperature.factors"),
                    .sin = Tensor::empty(arena, {positions, pairs}, type, "temperature.zeros")};
  if (!runtime.device().has_data()) return table;
  std::vector<double> factors;
  for (int64_t p = 0; p < positions; ++p) {
    const double steps = std::floor((number(p) + 1) / number(temperature.step));
    factors.insert(factors.end(), static_cast<size_t>(pairs),
                   1 + temperature.scale * std::log1p(steps));
  }
  copy_from(table.cos, std::span<const double>(factors), runtime.stream());
  kernels::table(runtime.stream()).fill({.out = table.sin, .value = 0}, runtime.stream());
  return table;
}

}  // namespace megatron::nn
