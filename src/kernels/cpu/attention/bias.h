// The bias by distance of blocked attention (kernels/attention.h), and its gradient.
#pragma once

#include <algorithm>
#include <memory>

#include "kernels/cpu/attention/blocks.h"

namespace megatron::kernels::cpu {

// A head's values by distance, -R to R, as one vector with kKeyColumns further slots at each end,
// which stand for the same distance as the end. A row of a tile whose keys have consecutive
// positions is then a run of consecutive slots.
class DistanceSlots {
 public:
  // bias: [2R+1,N]; undefined: R = 0.
  explicit DistanceSlots(const Tensor& bias) : radius_(bias.defined() ? bias.size(0) / 2 : 0) {}

  int64_t count() const { return 2 * radius_ + 1 + 2 * kKeyColumns; }
  int64_t slot(int64_t distance) const {
    return std::clamp(distance, -radius_, radius_) + radius_ + kKeyColumns;
  }
  // First slot of a run of up to kKeyColumns keys, the first of which is at this distance.
  int64_t run(int64_t distance) const {
    return std::clamp(distance, -radius_ - kKeyColumns, radius_ + 1) + radius_ + kKeyColumns;
  }
  // Row of the bias that a slot stands for.
  int64_t row(int64_t slot) const {
    return std::clamp<int64_t>(slot - kKeyColumns, 0, 2 * radius_);
  }
  // The slots that stand for a row: [first, end).
  int64_t first(int64_t row) const { return row == 0 ? 0 : row + kKeyColumns; }
  int64_t end(int64_t row) const { return row == 2 * radius_ ? count() : row + kKeyColumns + 1; }

 private:
  int64_t radius_;
};

// True if the keys of the tile have consecutive positions, up to padding.
bool has_run_of_keys(const AttentionSizes& sizes, const TilePlace& place);

// The bias of every head, by slots.
class HeadBias {
 public:
  static int64_t bytes(const Tensor& bias);
  // memory: of bytes(bias); null if the bias is undefined.
  HeadBias(const Tensor& bias, const std::shared_ptr<Storage>& memory, Stream& stream);

  // The bias of each row of the tile, for its keys; null without a bias. `rows` [kQueryRows] holds
  // the result; `gathered` [kQueryRows][kKeyColumns] is used if the keys are not consecutive.
  const float* const* of_tile(const AttentionSizes& sizes, const RowBlock& block,
                              const TilePlace& place, uint32_t* gathered, const float** rows) const;

 private:
  const float* values_;  // [N][slots]
  DistanceSlots slots_;
};

// Gradient of the bias of the heads that share a key head, for one sample. Gradients of scores are
// added in f32 within a block of rows, and to sums in f64 after each.
class BiasSums {
 public:
  static int64_t part_words(const Tensor& bias, int64_t group);
  // parts: [part_words] of this thread. scattered: a tile, used if keys are not consecutive. sums:
  // f64 [group][slots].
  BiasSums(const Tensor& bias, int64_t group, uint32_t* parts, uint32_t* scattered, double* sums);

  // Where the gradient of each row's scores is to be added, as `of_tile` above.
  float* const* of_tile(const AttentionSizes& sizes, const RowBlock& block, const TilePlace& place);
  // Called after of_tile's rows were added to.
  void end_tile(const AttentionSizes& sizes, const RowBlock& block, const TilePlace& place);
  void end_rows();

 private:
  // Rows with an even and an odd index have sums of their own, so that a row need not wait for the
  // sums of the previous one.
  float* part(int64_t row, int64_t head) const {
    return parts_ + (row % 2 * group_ + head) * slots_.count();
  }
  void touch(int64_t first, int64_t end) {
    first_ = std::min(first_, first);
    end_ = std::max(end_, end);
  }

  DistanceSlots slots_;
  int64_t group_;
  float *parts_, *scattered_;
  double* sums_;
  float* rows_[kQueryRows];
  bool scatters_ = false;    // the current tile's keys are not consecutive
  int64_t first_, end_ = 0;  // slots added to since end_rows()
};

// to = the sums [samples][N][slots] over samples, in order, by row of the bias.
void store_bias_gradient(const double* sums, int64_t samples, const Accumulate& to, Stream& stream);

}  // namespace megatron::kernels::cpu
