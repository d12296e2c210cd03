// Communication of the tensor-parallel ops, on plain tensors. Calls are made on the tape's stream
// and waited for; x is [T, N]. Tensors that are only inputs of a call, or only split after it, use
// MemoryClass::communication; results are activations.
#pragma once

#include "autograd/tape.h"
#include "parallel/tensor_parallel.h"

namespace megatron::parallel {

inline bool alone(const comm::Group* group) { return group == nullptr || group->size() == 1; }

Tensor communication_buffer(Tape& tape, Shape shape, DType dtype, std::string_view label);
// Returns x itself if it is contiguous.
Tensor contiguous(Tape& tape, const Tensor& x, std::string_view label);

// Sums over the ranks in place; x must be contiguous.
void sum_in_place(Tape& tape, const Tensor& x, comm::Group& group, std::string_view call);
// The same over a group that may be null, of one rank.
inline void sum_over(Tape& tape, const Tensor& x, comm::Group* group, std::string_view call) {
  if (group != nullptr) sum_in_place(tape, x, *group, call);
}
// [n T, N]: the ranks' rows in rank order. memory: class of the result.
Tensor gathered_rows(Tape& tape, const Tensor& x, comm::Group& group, std::string_view call,
                     MemoryClass memory);
// [T/n, N]: this rank's rows of the sum over the ranks.
Tensor scattered_rows(Tape& tape, const Tensor& x, comm::Group& group, std::string_view call);
// [T, total]: columns share_of(total, n, r) come from rank r, whose x has that many.
Tensor gathered_columns(Tape& tape, const Tensor& x, int64_t total, comm::Group& group,
                        std::string_view call);
// [T, share]: columns share_of(N, n, rank) of x.
Tensor own_columns(Tape& tape, const Tensor& x, const comm::Group& group);

// Ops; `name` must outlive the tape (a literal) and names the calls.
//
// Sum over the ranks of partial results that nothing else reads: [T, N] on all ranks, in the memory
// of `partial`; with divided tokens [T/n, N]. `partial` must have the memory class of
// partial_memory().
Var sum_of_parts(Tape& tape, const Var& partial, const TensorParallel& tp, std::string_view name);
inline MemoryClass partial_memory(const TensorParallel& tp) {
  return tp.divides_tokens() ? MemoryClass::communication : MemoryClass::activations;
}
// x of all tokens: with divided tokens the ranks' rows, gathered; else x itself. Each rank's
// gradient of the result is a partial sum: backward adds them up.
Var whole_rows(Tape& tape, const Var& x, const TensorParallel& tp, std::string_view name);
// The same, but backward takes this rank's rows of the gradient, which is the same on all ranks.
Var gather_rows(Tape& tape, const Var& x, const TensorParallel& tp, std::string_view name);
// gathered_columns; backward takes this rank's columns of the gradient, which is the same on all
// ranks.
Var gather_columns(Tape& tape, const Var& x, int64_t total, comm::Group& group,
                   std::string_view name);

// A sum over the ranks in flight: [T, N] in place, or (divided tokens) this rank's rows of it. Runs
// on tp.async if set; otherwise it is completed at once.
struct PendingSum {
  comm::Work work;
  Tensor partial, result;
  void begin(Tape& tape, const Tensor& of, const TensorParallel& tp, std::string_view call);
  void wait(Stream& stream);
};
// Group for calls that may overlap with compute.
inline comm::Group& overlapped(const TensorParallel& tp) {
  return tp.async != nullptr ? *tp.async : *tp.group;
}

}  // namespace megatron::parallel
