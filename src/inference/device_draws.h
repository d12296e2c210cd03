// Next tokens that are drawn where their logits lie, and their losses.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/stream.h"
#include "tensor/tensor.h"

namespace megatron::inference {

// Of rows of logits; empty: the device draws none.
struct DeviceDraws {
  std::vector<int32_t> ids;  // negative: none was drawn, and the loss is any
  std::vector<double> losses;
};

// Whether rules (kernels::kSampleRules numbers a row) let the device draw any row.
bool draw_any(std::span<const double> rules);

// The kernels' inputs and results, which stay where they are.
class DrawTensors {
 public:
  DrawTensors(Runtime& runtime, int64_t rows);  // at most

  // Rules of the first of `rows` rows; the others are left out. In the order of the stream.
  void fill(std::span<const double> rules, int64_t rows);
  // Queues the drawing of a token below `choices` for each row of f32 [rows,V], by the rules that are there when it is
  // done, and its loss by the kernel that training runs.
  void queue(const Tensor& logits, int64_t choices) const;
  // The first `count` of so many rows, when they are done: eight bytes of each row come to the host.
  DeviceDraws read(int64_t rows, int64_t count) const;

 private:
  Runtime& runtime_;
  Tensor rules_, weights_;  // f64 [rows,5]; f32 [rows]
  Tensor results_;          // i32 [2 rows]: ids, then losses in f32
};

}  // namespace megatron::inference
