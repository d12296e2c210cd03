#include "parallel/head_norm.h"

#include "parallel/collectives.h"

namespace megatron::parallel {

Var head_norm(Tape& tape, const Var& x, const ops::HeadNorm& norm, int64_t full_width,
              const TensorParallel& tp) {
  ops::WholeRows rows{.width = full_width, .add_up = {}};
  if (full_width > 0 && !alone(tp.group)) {
    rows.add_up = [group = tp.group](const Tensor& sums, Stream& stream) {
      group->all_reduce(sums, comm::Reduce::sum, stream, "head_norm").wait(stream);
    };
  }
  return ops::head_norm(tape, x, norm, rows);
}

}  // namespace megatron::parallel
