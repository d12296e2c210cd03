#include <algorithm>

#include "kernels/reference/elements.h"
#include "kernels/reference/kernels.h"

namespace megatron::kernels::reference {
namespace {

// Slots of one expert that are kept, in order.
std::vector<int64_t> kept_slots(const ExpertRowsArgs& args, std::span<const int64_t> experts,
                                std::span<const double> weights, int64_t expert) {
  const int64_t tokens = args.experts.size(0), k = args.experts.size(1);
  const int64_t segment = args.segment > 0 ? args.segment : tokens;
  std::vector<int64_t> kept;
  for (int64_t begin = 0; begin < tokens; begin += segment) {
    std::vector<int64_t> slots;
    for (int64_t s = begin * k; s < (begin + segment) * k; ++s)
      if (experts[static_cast<size_t>(s)] == expert) slots.push_back(s);
    int64_t real = 0;
    for (int64_t t = begin; t < begin + segment; ++t)
      real += experts[static_cast<size_t>(t * k)] >= 0 ? 1 : 0;
    const int64_t capacity =
        args.factor > 0 ? capacity_rows(real, k, args.all_experts, args.factor) : args.capacity;
    if (capacity > 0 && std::ssize(slots) > capacity) {
      if (args.kept == KeptRows::largest)
        std::ranges::stable_sort(slots, [&](int64_t a, int64_t b) {
          return weights[static_cast<size_t>(a)] > weights[static_cast<size_t>(b)];
        });
      slots.resize(static_cast<size_t>(capacity));
      std::ranges::sort(slots);
    }
    kept.insert(kept.end(), slots.begin(), slots.end());
  }
  return kept;
}

template <class C>
void take(const TakeRowsArgs& args) {
  const std::vector<C> x = load<C>(args.x);
  const std::vector<int64_t> index = load_integers(args.index);
  const auto width = args.x.size(1);
  std::vector<C> out(static_cast<size_t>(args.out.elements()));
  for (size_t r = 0; r < index.size(); ++r) {
    if (index[r] < 0) continue;
    for (int64_t h = 0; h < width; ++h)
      out[r * width + h] = x[static_cast<size_t>(index[r] / args.share * width + h)];
  }
  store(args.out, out);
}

template <class C>
void add_up(const SumRowsArgs& args) {
  const std::vector<C> x = load<C>(args.x);
  const std::vector<int64_t> index = load_integers(args.index);
  const bool listed = args.index.defined();
  const int64_t width = args.out.size(1), k = listed ? args.index.size(1) : args.x.size(1);
  std::vector<C> out(static_cast<size_t>(args.out.elements()));
  for (int64_t t = 0; t < args.out.size(0); ++t) {
    for (int64_t j = 0; j < k; ++j) {
      const int64_t row = listed ? index[static_cast<size_t>(t * k + j)] : t * k + j;
      if (row < 0) continue;
      for (int64_t h = 0; h < width; ++h) out[t * width + h] += x[row * width + h];
    }
  }
  store(args.out, out);
}

template <class C>
void scale(const ScaleRowsArgs& args) {
  std::vector<C> x = load<C>(args.x);
  const std::vector<C> factors = load<C>(args.factors);
  const auto width = static_cast<size_t>(args.x.size(1));
  for (size_t i = 0; i < x.size(); ++i) x[i] *= factors[i / width];
  store(args.out, x);
}

template <class C>
void scale_backward(const ScaleRowsBackwardArgs& args) {
  const std::vector<C> x = load<C>(args.x), factors = load<C>(args.factors);
  std::vector<C> dout = load<C>(args.dout), dfactors(factors.size());
  const auto width = static_cast<size_t>(args.x.size(1));
  for (size_t i = 0; i < x.size(); ++i) {
    dfactors[i / width] += dout[i] * x[i];
    dout[i] *= factors[i / width];
  }
  store(args.dx, dout);
  store(args.dfactors, dfactors);
}

}  // namespace

void expert_rows(const ExpertRowsArgs& args, Stream&) {
  const std::vector<int64_t> experts = load_integers(args.experts);
  const std::vector<double> weights = load<double>(args.weights);
  const int64_t groups = args.offsets.size(0) - 1, most = args.slots.size(0);
  const int64_t tokens = args.experts.size(0);
  const int64_t segments = args.segment > 0 ? tokens / args.segment : 1;
  std::vector<int64_t> offsets = {0}, slots, rows(experts.size(), -1);
  for (int64_t g = 0; g < groups; ++g) {
    for (const int64_t slot : kept_slots(args, experts, weights, args.first + g)) {
      if (std::ssize(slots) == most) break;
      rows[static_cast<size_t>(slot)] = std::ssize(slots);
      slots.push_back(slot);
    }
    if (args.padded)
      slots.resize(static_cast<size_t>(std::min(most, (g + 1) * args.capacity * segments)), -1);
    offsets.push_back(std::ssize(slots));
  }
  slots.resize(static_cast<size_t>(most), -1);
  store_integers(args.offsets, offsets);
  store_integers(args.slots, slots);
  store_integers(args.rows, rows);
}

void take_rows(const TakeRowsArgs& args, Stream&) {
  args.x.dtype() == DType::f64 ? take<double>(args) : take<float>(args);
}

void sum_rows(const SumRowsArgs& args, Stream&) {
  args.x.dtype() == DType::f64 ? add_up<double>(args) : add_up<float>(args);
}

void scale_rows(const ScaleRowsArgs& args, Stream&) {
  args.x.dtype() == DType::f64 ? scale<double>(args) : scale<float>(args);
}

void scale_rows_backward(const ScaleRowsBackwardArgs& args, Stream&) {
  args.x.dtype() == DType::f64 ? scale_backward<double>(args) : scale_backward<float>(args);
}

}  // namespace megatron::kernels::reference
