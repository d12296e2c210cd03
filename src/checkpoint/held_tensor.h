// What a rank holds of the tensors of a checkpoint: weights and optimizer state alike.
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
  const parallel::Placement* placement = nullptr;  // outlives this
  Tensor value;
  Shape shape;
  int64_t begin = 0;
  // Elements that no part covers keep their values when it is loaded; else they become zero.
  bool keeps_rest = false;
};

std::vector<HeldTensor> held(
    std::span<parallel::ParameterSpec* const> parameters);              // whole; prefix ""
std::vector<HeldTensor> held(std::span<const parallel::Shard> shards);  // prefix ""

// A tensor of a checkpoint, whichever ranks hold its parts.
struct WholeTensor {
  std::string name;
  Shape shape;  // as stored
  DType dtype = DType::f32;
};

// The tensors that the parameters, or the optimizer state, of an undivided model are, in their
// order; types are the values'. Values are not looked at: a model on meta will do.
std::vector<WholeTensor> whole_tensors(std::span<const HeldTensor> undivided);
std::vector<WholeTensor> whole_tensors(
    std::span<parallel::ParameterSpec* const> undivided);  // prefix ""

}  // namespace megatron::checkpoint
