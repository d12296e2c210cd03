// A matrix with slices on several ranks, gathered on each of them.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "comm/group.h"
#include "parallel/placement.h"

namespace megatron::optim {

class GatheredMatrix {
 public:
  // Allocates buffers of `type` for the largest of the parameters that are divided among `ranks`
  // (parallel::RankGroup::tensor; null: one rank).
  GatheredMatrix(std::span<const parallel::ParameterSpec* const> parameters, comm::Group* ranks,
                 DType type, Runtime& runtime);

  bool is_divided(const parallel::ParameterSpec& placed) const;
  // Shape of the whole matrix, all ranks' slices together.
  const Shape& shape(const parallel::ParameterSpec& placed) const;

  // Buffers for this rank's slice [m,n] and for the whole [M,N]; all parameters share them.
  Tensor slice(const parallel::ParameterSpec& placed) const;
  Tensor whole(const parallel::ParameterSpec& placed) const;
  // Gathers all ranks' slice()s into whole(). Collective.
  void gather(const parallel::ParameterSpec& placed, Stream& stream) const;
  // Copies this rank's part of whole() to slice().
  void take(const parallel::ParameterSpec& placed, Stream& stream) const;
  // Calls f(first row of the slice, rows) for this rank's part of rows [begin, begin + size) of the
  // whole.
  void for_each_row(const parallel::ParameterSpec& placed, int64_t begin, int64_t size,
                    const std::function<void(int64_t, int64_t)>& f) const;

 private:
  int64_t largest_slice(const parallel::ParameterSpec& placed) const;
  enum class To { whole, slice };
  void copy(const parallel::ParameterSpec& placed, const Tensor& slice, int rank, To to,
            Stream& stream) const;

  comm::Group* ranks_;
  Tensor own_, all_, whole_;  // flat; all_: every rank's slice, padded to the largest
};

}  // namespace megatron::optim
