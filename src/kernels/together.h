// Batched calls of one kernel on many tensors, which a GPU executes as one launch.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "device/stream.h"
#include "kernels/elementwise.h"
#include "kernels/optimizer.h"

namespace megatron::kernels {

// Calls that are listed once and repeated on the same tensors. They give the same bits as single
// calls.
class Together {
 public:
  virtual ~Together() = default;
  virtual void run(Stream& stream) = 0;
};

// Lists calls of the table's entry for these arguments. No call may read or write what another one
// writes. Calls of an optimizer may only differ in tensors, lr, weight_decay, eps and decay. Copies
// are contiguous, of f32.
//
// CUDA executes those of the same types as one launch: the arguments of each call are in a table on
// the device, of together_bytes() in `arena`, that is filled here; on meta the memory is allocated
// for plans. On other devices, and while the stream is observed (kernels/observer.h), the calls are
// executed one by one.
std::unique_ptr<Together> together(std::vector<AdamArgs> calls, Arena& arena, Stream& stream);
std::unique_ptr<Together> together(std::vector<SgdArgs> calls, Arena& arena, Stream& stream);
std::unique_ptr<Together> together(std::vector<LionArgs> calls, Arena& arena, Stream& stream);
std::unique_ptr<Together> together(std::vector<CopyArgs> calls, Arena& arena, Stream& stream);
std::unique_ptr<Together> together(std::vector<SumOfSquaresArgs> calls, Arena& arena,
                                   Stream& stream);

// Upper bounds in bytes of one call's table row, without and with the index at which its work ends.
inline constexpr size_t kTogetherRow = 128, kTogetherCall = kTogetherRow + sizeof(int64_t);
inline int64_t together_bytes(size_t calls) { return static_cast<int64_t>(calls * kTogetherCall); }

// Interface that the CUDA plugin exports as megatron_cuda_together: one launch for one or more
// calls, through a table that it fills.
struct TogetherTable {
  template <class Args>
  using Make = std::unique_ptr<Together> (*)(std::span<const Args>, const Tensor& table);
  Make<AdamArgs> adam = nullptr;
  Make<SgdArgs> sgd = nullptr;
  Make<LionArgs> lion = nullptr;
  Make<CopyArgs> copy = nullptr;
  Make<SumOfSquaresArgs> sum_of_squares = nullptr;
};

}  // namespace megatron::kernels
