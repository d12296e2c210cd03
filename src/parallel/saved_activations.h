// Activations that are the same on every tensor-parallel rank, kept in slices for backward
// (--distribute-saved-activations; Rajbhandari et al. 2020, "partitioned activation checkpoints").
#pragma once

#include <memory>

#include "autograd/saved.h"
#include "parallel/tensor_parallel.h"

namespace megatron::parallel {

// Keeps this rank's slice, one of n equal slices of the tensor's storage, whose elements are the
// same on all ranks of the group, and gathers them when backward needs the tensor, which is
// collective. tp is copied; its group is borrowed.
std::shared_ptr<Source> keep_slice(Tape& tape, const Tensor& t, const TensorParallel& tp);

}  // namespace megatron::parallel
