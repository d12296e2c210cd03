// Angles of rotary position embeddings (Su et al. 2021) and their scaling for contexts longer than
// those that a model was trained on.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "tensor/tensor.h"

namespace megatron::nn {

enum class RopeScaling { none, linear, dynamic, llama3, yarn, longrope };

// angle(position, pair i) = position * frequency(i), where frequency(i) is base^(-2i / dims) before
// scaling:
//   linear    divided by factor (Chen et al. 2023)
//   dynamic   for a text longer than original_positions, the base becomes
//             base * (factor * length / original_positions - (factor - 1))^(dims / (dims - 2))
//   llama3    wavelengths above original_positions / low_freq_factor are divided by factor, those
//             below original_positions / high_freq_factor stay, in between interpolated (Llama 3.1)
//   yarn      Peng et al. 2023; cos and sin are multiplied by an attention factor
//   longrope  divided by short_factor[i], or by long_factor[i] for a text longer than
//             original_positions (Ding et al. 2024); cos and sin are multiplied by an attention
//             factor
struct RotaryConfig {
  double base = 10000;
  double fraction = 1;       // fraction of a head's dimensions that are rotated, from the first
  bool interleaved = false;  // pair i is (2i, 2i + 1), else (i, i + dims / 2)
  RopeScaling scaling = RopeScaling::none;
  double factor = 1;
  int64_t original_positions = 0;  // original context length, before its extension
  double low_freq_factor = 1, high_freq_factor = 4;
  double beta_fast = 32, beta_slow = 1;
  double mscale = 0, mscale_all_dim = 0;
  double attention_factor = 0;  // 0: computed from factor
  bool truncate = true;         // yarn: rounds the bounds of the ramp to integers
  std::vector<double> short_factor, long_factor;

  bool operator==(const RotaryConfig&) const = default;
  // Number of rotated dims of a head; even.
  int64_t dims(int64_t head_size) const;
  bool depends_on_length() const {
    return scaling == RopeScaling::dynamic || scaling == RopeScaling::longrope;
  }
  // Frequencies for a sequence of `length` tokens, [dims / 2]. positions: the model's maximum.
  std::vector<double> frequencies(int64_t head_size, int64_t length) const;
  // Factor of cos and sin. positions: maximum number of positions of the model.
  double amplitude(int64_t positions) const;
  // Factor of attention scores in latent attention: with YaRN, the square of mscale_all_dim's
  // amplitude (DeepSeek-V2); otherwise 1.
  double score_scale() const;
  // True if the tables for the two lengths are equal, so that a text of one length may be read with
  // the keys of a text of the other.
  bool same_table(int64_t length, int64_t other) const;
};

// Queries are multiplied by 1 + scale ln(1 + floor((position + 1) / step)), so that attention stays
// sharp in long texts (Nakanishi 2025; Llama 4). scale 0: no factor.
struct Temperature {
  double scale = 0;
  int64_t step = 8192;

  bool operator==(const Temperature&) const = default;
};

// cos and sin of every position's angles: [positions, pairs] f32 (f64); computed in fp64, rounded
// once.
struct RotaryTable {
  Tensor cos, sin;
};

// The tables of one config. Tables that depend on the length of a text are made when a text first
// needs them; for `dynamic` scaling only the one for the last requested length is kept.
class RotaryTables {
 public:
  RotaryTables(Runtime& runtime, DType model_type, int64_t positions, int64_t head_size,
               const RotaryConfig& config);
  // Table for a sequence of `length` tokens. Thread-safe.
  RotaryTable of(int64_t length) const;
  const RotaryConfig& config() const { return config_; }

 private:
  RotaryTable make(int64_t length, int64_t positions) const;

  Runtime& runtime_;
  DType type_;
  int64_t positions_, head_size_;
  RotaryConfig config_;
  RotaryTable within_;        // for texts up to original_positions, or for all
  mutable std::mutex mutex_;  // guards the members below
  mutable RotaryTable beyond_;
  mutable int64_t beyond_length_ = 0;
};

// The factors of each position as a rotation table without rotation: cos is the factor, sin 0.
// Requires an even head size.
RotaryTable temperature_table(Runtime& runtime, DType model_type, int64_t positions,
                              int64_t head_size, const Temperature& temperature);

}  // namespace megatron::nn
