#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "kernels/check.h"
#include "kernels/reference/elements.h"
#include "kernels/reference/kernels.h"

namespace megatron::kernels::reference {
namespace {

template <class C>
void evaluate(const CrossEntropyArgs& args, Stream& stream) {
  const std::vector<C> logits = load<C>(args.logits), weights = load<C>(args.weights);
  const std::vector<int64_t> labels = load_integers(args.labels);
  const int64_t rows = args.logits.size(0), v = args.logits.size(1);
  std::vector<C> losses(rows), dlogits(args.dlogits.defined() ? logits.size() : 0);
  for_rows(stream, rows, 16, [&](int64_t t) {
    if (weights[t] == 0) return;
    MG_ASSERT(labels[t] >= 0 && labels[t] < v);
    const C* row = logits.data() + t * v;
    const C maximum = *std::max_element(row, row + v);
    C sum = 0;
    for (int64_t i = 0; i < v; ++i) sum += std::exp(row[i] - maximum);
    losses[t] = std::log(sum) + (maximum - row[labels[t]]);
    if (dlogits.empty()) return;
    for (int64_t i = 0; i < v; ++i) {
      dlogits[t * v + i] =
          weights[t] * (std::exp(row[i] - maximum) / sum - (i == labels[t] ? 1 : 0));
    }
  });
  store(args.loss, losses);
  if (args.dlogits.defined()) store(args.dlogits, dlogits);
}

}  // namespace

void cross_entropy(const CrossEntropyArgs& args, Stream& stream) {
  check(args);
  args.logits.dtype() == DType::f64 ? evaluate<double>(args, stream)
                                    : evaluate<float>(args, stream);
}

}  // namespace megatron::kernels::reference
