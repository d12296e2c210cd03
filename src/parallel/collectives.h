// What the ops of tensor parallelism do between ranks, on plain tensors. Calls are made on the
// tape's stream and waited for; x is [T, N]. Tensors that are only given to a call or only cut up
// after it lie in MemoryClass::communication, results among the activations.
#pragma once

#include "autograd/tape.h"
#include "parallel/tensor_parallel.h"

namespace megatron::parallel {

inline bool alone(const comm::Group* group) { return group == nullptr || group->size() == 1; }

Tensor communication_buffer(Tape& tape, Shape shape, DType dtype, std::string_view label);
// x itself where it is contiguous.
Tensor contiguous(Tape& tape, const Tensor& x, std::string_view label);

// Sum over the ranks, in x, which must be contiguous.
void sum_in_place(Tape& tape, const Tensor& x, comm::Group& group, std::string_view call);
// [n T, N]: the ranks' rows one after another. memory: of the result.
Tensor gathered_rows(Tape& tape, const Tensor& x, comm::Group& group, std::string_view call,
                     MemoryClass memory);
// [T/n, N]: this rank's rows of the sum over the ranks.
Tensor scattered_rows(Tape& tape, const Tensor& x, comm::Group& group, std::string_view call);
// [T, total]: columns share_of(total, n, r) are those of rank r, whose x has as many.
Tensor gathered_columns(Tape& tape, const Tensor& x, int64_t total, comm::Group& group,
                        std::string_view call);
// [T, share]: columns share_of(N, n, rank) of x.
Tensor own_columns(Tape& tape, const Tensor& x, const comm::Group& group);

// As ops; `name` must outlive the tape (a literal), it names the calls.
//
// Sum over the ranks of partial results that nobody else reads: [T, N] on all ranks, in the memory
// of `partial`; tokens divided: [T/n, N]. Memory for `partial` as partial_memory() says.
Var sum_of_parts(Tape& tape, const Var& partial, const TensorParallel& tp, std::string_view name);
inline MemoryClass partial_memory(const TensorParallel& tp) {
  return tp.divides_tokens() ? MemoryClass::communication : MemoryClass::activations;
}
// gathered_columns; backward: the own columns of the gradient, which all ranks have alike.
Var gather_columns(Tape& tape, const Var& x, int64_t total, comm::Group& group,
                   std::string_view name);

// A sum over the ranks under way: [T, N] in place, or (tokens divided) this rank's rows of it.
// Begun on tp.async where there is one; else it is done at once.
struct PendingSum {
  comm::Work work;
  Tensor partial, result;
  void begin(Tape& tape, const Tensor& of, const TensorParallel& tp, std::string_view call);
  void wait(Stream& stream);
};
// Where calls go that may overlap with compute.
inline comm::Group& overlapped(const TensorParallel& tp) {
  return tp.async != nullptr ? *tp.async : *tp.group;
}

}  // namespace megatron::parallel
