// The part of a checkpoint's tensors, weights and optimizer state alike, that a rank holds.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "parallel/placement.h"

namespace megatron::checkpoint {

// `value` holds elements [begin, begin + value.elements()) of a parameter of the shape `shape`, in
// row-major order. The parts of `placement` are stored under prefix + their canonical names: "" for
// weights, "exp_avg." for a moment.
struct HeldTensor {
  std::string prefix;
  const parallel::Placement* placement = nullptr;  // must outlive this
  Tensor value;
  Shape shape;
  int64_t begin = 0;
  // If true, elements that no part covers keep their values on load; otherwise they become zero.
  bool keeps_rest = false;
};

std::vector<HeldTensor> held(
    std::span<parallel::ParameterSpec* const> parameters);              // whole tensors; prefix ""
std::vector<HeldTensor> held(std::span<const parallel::Shard> shards);  // prefix ""

// A tensor of a checkpoint, independent of which ranks hold its parts.
struct WholeTensor {
  std::string name;
  Shape shape;  // as stored
  DType dtype = DType::f32;
};

// Returns the canonical tensors of an undivided model's parameters or optimizer state, in their
// order and with the values' types. The values are not read, so a model on meta is enough.
std::vector<WholeTensor> whole_tensors(std::span<const HeldTensor> undivided);
std::vector<WholeTensor> whole_tensors(
    std::span<parallel::ParameterSpec* const> undivided);  // prefix ""

}  // namespace megatron::checkpoint
