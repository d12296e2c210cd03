#include "base/error.h"
#include "kernels/reference/elements.h"
#include "kernels/reference/kernels.h"
#include "kernels/table.h"

namespace megatron::kernels::reference {
namespace {

// Table rows of the ids; -1 if the table does not have the row.
template <class Args>
std::vector<int64_t> rows_of(const Args& args, int64_t vocabulary) {
  std::vector<int64_t> rows = load_integers(args.ids);
  for (int64_t& row : rows) {
    row -= args.first;
    const bool here = row >= 0 && row < vocabulary;
    MG_ASSERT(here || args.part);
    if (!here) row = -1;
  }
  return rows;
}

template <class C>
void look_up(const EmbeddingArgs& args) {
  const std::vector<int64_t> rows = rows_of(args, args.table.size(0));
  const std::vector<C> zeros(static_cast<size_t>(args.table.size(1)));
  for (int64_t t = 0; t < args.ids.size(0); ++t) {
    if (rows[t] < 0 && args.keeps) continue;
    store(args.out.slice(0, t, 1), rows[t] < 0 ? zeros : load<C>(args.table.slice(0, rows[t], 1)));
  }
}

template <class C>
void differentiate(const EmbeddingBackwardArgs& args) {
  const std::vector<int64_t> rows = rows_of(args, args.dtable.out.size(0));
  const std::vector<C> dout = load<C>(args.dout);
  const Tensor& table = args.dtable.out;
  const int64_t h = table.size(1);
  std::vector<C> sum(table.elements());
  for (int64_t t = 0; t < args.ids.size(0); ++t) {
    if (rows[t] < 0) continue;
    for (int64_t i = 0; i < h; ++i) sum[rows[t] * h + i] += dout[t * h + i];
  }
  store_sum(args.dtable, std::move(sum));
}

}  // namespace

void embedding(const EmbeddingArgs& args, Stream&) {
  args.table.dtype() == DType::f64 ? look_up<double>(args) : look_up<float>(args);
}

void embedding_backward(const EmbeddingBackwardArgs& args, Stream&) {
  args.dout.dtype() == DType::f64 ? differentiate<double>(args) : differentiate<float>(args);
}

}  // namespace megatron::kernels::reference
