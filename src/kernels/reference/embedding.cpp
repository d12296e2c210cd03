#include "base/error.h"
#include "kernels/check.h"
#include "kernels/reference/elements.h"
#include "kernels/reference/kernels.h"

namespace megatron::kernels::reference {
namespace {

template <class C>
void look_up(const EmbeddingArgs& args) {
  const std::vector<int64_t> ids = load_integers(args.ids);
  const int64_t vocabulary = args.table.size(0);
  for (int64_t t = 0; t < args.ids.size(0); ++t) {
    MG_ASSERT(ids[t] >= 0 && ids[t] < vocabulary);
    store(args.out.slice(0, t, 1), load<C>(args.table.slice(0, ids[t], 1)));
  }
}

template <class C>
void differentiate(const EmbeddingBackwardArgs& args) {
  const std::vector<int64_t> ids = load_integers(args.ids);
  const std::vector<C> dout = load<C>(args.dout);
  const Tensor& table = args.dtable.out;
  const int64_t h = table.size(1);
  std::vector<C> sum(table.elements());
  for (int64_t t = 0; t < args.ids.size(0); ++t) {
    MG_ASSERT(ids[t] >= 0 && ids[t] < table.size(0));
    for (int64_t i = 0; i < h; ++i) sum[ids[t] * h + i] += dout[t * h + i];
  }
  if (args.dtable.beta != 0) {
    const std::vector<C> old = load<C>(table);
    for (size_t i = 0; i < old.size(); ++i) sum[i] += old[i];
  }
  store(table, sum);
}

}  // namespace

void embedding(const EmbeddingArgs& args, Stream&) {
  check(args);
  args.table.dtype() == DType::f64 ? look_up<double>(args) : look_up<float>(args);
}

void embedding_backward(const EmbeddingBackwardArgs& args, Stream&) {
  check(args);
  args.dout.dtype() == DType::f64 ? differentiate<double>(args) : differentiate<float>(args);
}

}  // namespace megatron::kernels::reference
