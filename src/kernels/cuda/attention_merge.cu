#include "kernels/attention_merge.h"
#include "kernels/cuda/chunk.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/wide.h"

namespace megatron::kernels::cuda {
namespace {

template <class T>
struct Merge {
  const T* part;
  const Wide<T>*part_lse, *lse;
  Wide<T>*out, *merged;
  int64_t length, heads, width, elements;
};

// One thread per element.
template <class T>
__global__ void __launch_bounds__(kThreads) merge(Merge<T> work) {
  using C = Wide<T>;
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= work.elements) return;
  const int64_t row = i / work.width, head = row % work.heads, token = row / work.heads;
  const int64_t at = (token / work.length * work.heads + head) * work.length + token % work.length;
  const C a = work.lse[at], b = work.part_lse[at], most = a < b ? b : a;
  C merged = most, of_out = 0, of_part = 0;
  if (most != static_cast<C>(-INFINITY)) {
    merged = most + log(exp(a - most) + exp(b - most));
    of_out = exp(a - merged);
    of_part = exp(b - merged);
  }
  work.out[i] = of_out * work.out[i] + of_part * widen(work.part[i]);
  if (i == row * work.width) work.merged[at] = merged;
}

}  // namespace

void attention_merge(const AttentionMergeArgs& args, Stream& stream) {
  if (args.out.elements() == 0) return;
  for_floating_type("attention_merge", args.part.dtype(), [&](auto type) {
    using T = decltype(type);
    using C = Wide<T>;
    const Merge<T> work{.part = address_of<T>(args.part),
                        .part_lse = address_of<C>(args.part_lse),
                        .lse = address_of<C>(args.lse),
                        .out = address_of<C>(args.out),
                        .merged = address_of<C>(args.merged_lse),
                        .length = args.out.size(1),
                        .heads = args.out.size(2),
                        .width = args.out.size(3),
                        .elements = args.out.elements()};
    launch("attention_merge", merge<T>, grid_for(work.elements), stream, work);
  });
}

}  // namespace megatron::kernels::cuda
