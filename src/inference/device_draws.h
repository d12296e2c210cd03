// Samples next tokens on the device that holds their logits, and computes their losses.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/stream.h"
#include "tensor/tensor.h"

namespace megatron::inference {

// Tokens that the device draws from rows of logits; empty: it draws none.
struct DeviceDraws {
  std::vector<int32_t> ids;  // negative: none was drawn, and the loss is undefined
  std::vector<double> losses;
};

// True if the rules (kernels::kSampleRules numbers per row) let the device draw any row.
bool draw_any(std::span<const double> rules);

// Inputs and results of the sampling kernels, at fixed addresses.
class DrawTensors {
 public:
  DrawTensors(Runtime& runtime, int64_t rows);  // rows: maximum

  // Sets the rules of the first of `rows` rows; the remaining rows are not sampled. Ordered by the
  // stream.
  void fill(std::span<const double> rules, int64_t rows);
  // Queues sampling of a token below `choices` for each row of f32 [rows,V], by the rules that are
  // set when it runs, and the token's loss by the kernel that training uses.
  void queue(const Tensor& logits, int64_t choices) const;
  // Waits for the results of the first `count` of `rows` rows and copies them to the host, eight
  // bytes per row.
  DeviceDraws read(int64_t rows, int64_t count) const;

 private:
  Runtime& runtime_;
  Tensor rules_, weights_;  // f64 [rows,5]; f32 [rows]
  Tensor results_;          // i32 [2 rows]: ids, then losses in f32
};

}  // namespace megatron::inference
