#include "parallel/saved_activations.h"

#include <algorithm>

#include "autograd/tape.h"
#include "base/divide.h"

namespace megatron::parallel {
namespace {

class KeptSlice final : public Source {
 public:
  KeptSlice(const Tensor& storage, Tape& tape, const TensorParallel& tp) : tp_(tp) {
    const int64_t total = storage.elements(), share = ceil_div(total, tp.size());
    const int64_t begin = std::min(total, share * tp.rank());
    const int64_t size = std::min(share, total - begin);
    slice_ = tape.empty({share}, storage.dtype(), "saved.slice");
    tape.kernels().copy({.x = storage.slice(0, begin, size), .out = slice_.slice(0, 0, size)},
                        tape.stream());
    if (size < share) {
      tape.kernels().fill({.out = slice_.slice(0, size, share - size), .value = 0}, tape.stream());
    }
  }

  Tensor bring_back(size_t, Tape& tape) override {
    if (!whole_.defined()) {
      whole_ = tape.empty({slice_.elements() * tp_.size()}, slice_.dtype(), "saved.gathered");
      tp_.group->all_gather(slice_, whole_, tape.stream(), "saved_activations").wait(tape.stream());
      slice_ = {};
    }
    return whole_;
  }

 private:
  TensorParallel tp_;
  Tensor slice_, whole_;  // only one of them is defined
};

}  // namespace

std::shared_ptr<Source> keep_slice(Tape& tape, const Tensor& t, const TensorParallel& tp) {
  return std::make_shared<KeptSlice>(t.whole(), tape, tp);
}

}  // namespace megatron::parallel
