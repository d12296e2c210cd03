// Activations that every tensor-parallel rank has alike, kept in slices for backward
// (--distribute-saved-activations; Rajbhandari et al. 2020, "partitioned activation checkpoints").
#pragma once

#include <memory>

#include "autograd/saved.h"
#include "parallel/tensor_parallel.h"

namespace megatron::parallel {

// Keeps this rank's slice of n equal ones of the tensor's storage, whose elements all ranks of the
// group have alike, and gathers them when backward needs it: then it is collective. tp is copied;
// its group is borrowed.
std::shared_ptr<Source> keep_slice(Tape& tape, const Tensor& t, const TensorParallel& tp);

}  // namespace megatron::parallel
