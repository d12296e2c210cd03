// Calls of one kernel on many tensors, which a GPU makes by one launch.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "device/stream.h"
#include "kernels/elementwise.h"
#include "kernels/optimizer.h"

namespace megatron::kernels {

// Calls that were listed once and are made again and again, on the same tensors, with the bits of
// the single calls.
class Together {
 public:
  virtual ~Together() = default;
  virtual void run(Stream& stream) = 0;
};

// Lists calls of the table's entry for these arguments. None may read or write what another one
// writes. All have the same types; those of an optimizer differ in tensors, lr, weight_decay, eps
// and decay only. Copies are contiguous, of f32.
//
// CUDA makes them by one launch: what it reads of each call lies in a table on the device, of
// together_bytes() in `arena`, that is filled here; on meta the memory is taken for plans.
// Elsewhere, and while somebody watches the stream (kernels/observer.h), the calls are made one by
// one.
std::unique_ptr<Together> together(std::vector<AdamArgs> calls, Arena& arena, Stream& stream);
std::unique_ptr<Together> together(std::vector<SgdArgs> calls, Arena& arena, Stream& stream);
std::unique_ptr<Together> together(std::vector<LionArgs> calls, Arena& arena, Stream& stream);
std::unique_ptr<Together> together(std::vector<CopyArgs> calls, Arena& arena, Stream& stream);
std::unique_ptr<Together> together(std::vector<SumOfSquaresArgs> calls, Arena& arena,
                                   Stream& stream);

// Of the row of one call, at most, and with the end of its work among that of all.
inline constexpr size_t kTogetherRow = 128, kTogetherCall = kTogetherRow + sizeof(int64_t);
inline int64_t together_bytes(size_t calls) { return static_cast<int64_t>(calls * kTogetherCall); }

// What the CUDA plugin exports as megatron_cuda_together: one launch for calls, at least one, by a
// table that it fills.
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
