#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/router_scores.h"
#include "kernels/cpu/scratch.h"

namespace megatron::kernels::cpu {
namespace {

constexpr double kMinLoad = 1e-8;

bool counts(const Tensor& counted, int64_t token) {
  return !counted.defined() || counted.data<int32_t>()[token] >= 0;
}
int64_t count_of(const Tensor& counted, int64_t tokens) {
  if (!counted.defined()) return tokens;
  const int32_t* numbers = counted.data<int32_t>();
  return std::count_if(numbers, numbers + tokens, [](int32_t n) { return n >= 0; });
}

template <class C>
class Sinkhorn {
 public:
  Sinkhorn(const SinkhornArgs& args, double* memory, Stream& stream)
      : args_(args),
        stream_(stream),
        tokens_(args.logits.size(0)),
        experts_(args.logits.size(1)),
        real_(static_cast<double>(std::max<int64_t>(count_of(args.counted, tokens_), 1))),
        blocks_(tokens_),
        k_(memory),
        c_(k_ + tokens_ * experts_),
        sums_(c_ + experts_),
        r_(sums_ + blocks_.count * experts_) {}

  void run() {
    for_rows([&](int64_t t, double*) { make_row(t); });
    std::fill_n(c_, experts_, 1.0);
    for (int64_t i = 0; i < args_.iterations; ++i) {
      for_rows([&](int64_t t, double* sums) { scale_row(t, sums); });
      if (!(scale_columns() > args_.tolerance)) break;
    }
    for_rows([&](int64_t t, double*) {
      for (int64_t e = 0; e < experts_; ++e)
        args_.out.data<C>()[t * experts_ + e] =
            static_cast<C>(r_[t] * k_[t * experts_ + e] * c_[e]);
    });
  }

 private:
  // Calls f(row, sums of its block) for each row.
  template <class F>
  void for_rows(F&& f) {
    for_each_block(stream_, blocks_.count, [&](int64_t block, int) {
      double* sums = sums_ + block * experts_;
      std::fill_n(sums, experts_, 0.0);
      const int64_t end = std::min(tokens_, (block + 1) * blocks_.height);
      for (int64_t t = block * blocks_.height; t < end; ++t) f(t, sums);
    });
  }

  // Tokens that are left out have zeros.
  void make_row(int64_t t) {
    if (!counts(args_.counted, t)) {
      std::fill_n(k_ + t * experts_, experts_, 0.0);
      return;
    }
    const C* logits = args_.logits.data<C>() + t * experts_;
    const C most = *std::max_element(logits, logits + experts_);
    for (int64_t e = 0; e < experts_; ++e)
      k_[t * experts_ + e] = std::exp(static_cast<double>(logits[e]) - static_cast<double>(most));
  }

  void scale_row(int64_t t, double* sums) {
    const double* k = k_ + t * experts_;
    double sum = 0;
    for (int64_t e = 0; e < experts_; ++e) sum += c_[e] * k[e];
    r_[t] = 1 / (real_ * (sum + kMinLoad));
    for (int64_t e = 0; e < experts_; ++e) sums[e] += r_[t] * k[e];
  }

  // Returns the mean change.
  double scale_columns() {
    double change = 0;
    for (int64_t e = 0; e < experts_; ++e) {
      double sum = 0;
      for (int64_t b = 0; b < blocks_.count; ++b) sum += sums_[b * experts_ + e];
      const double next = 1 / (static_cast<double>(experts_) * (sum + kMinLoad));
      change += std::abs(next - c_[e]);
      c_[e] = next;
    }
    return change / static_cast<double>(experts_);
  }

  const SinkhornArgs& args_;
  Stream& stream_;
  int64_t tokens_, experts_;
  double real_;  // tokens that count
  RowBlocks blocks_;
  double *k_, *c_, *sums_, *r_;
};

template <class C>
void choice_scores(const RouterForm& form, const C* logits, int64_t experts, C* s) {
  if (form.score != RouterScore::softmax) {
    score_row(form.score, logits, experts, s);
  } else if (form.softmax_first) {
    softmax_row(logits, experts, s);
  } else {
    std::copy_n(logits, experts, s);
  }
}

// Compares values; NaN is the lowest.
template <class C>
bool higher(C a, C b) {
  return order_of(a) > order_of(b);
}

template <class C>
void find_thresholds(const ExpertThresholdsArgs& args, C* above, Stream& stream) {
  const int64_t tokens = args.logits.size(0), experts = args.logits.size(1);
  const C* bias = args.bias.data<C>();
  for_blocks(stream, tokens, rows_per_block(32 * experts), [&](int64_t begin, int64_t end) {
    std::vector<C> s(static_cast<size_t>(experts)), c(s);
    for (int64_t t = begin; t < end; ++t) {
      if (!counts(args.counted, t)) {
        for (int64_t e = 0; e < experts; ++e)
          above[e * tokens + t] = -std::numeric_limits<C>::infinity();
        continue;
      }
      choice_scores(args.form, args.logits.data<C>() + t * experts, experts, s.data());
      for (int64_t e = 0; e < experts; ++e) c[e] = s[e] + bias[e];
      std::nth_element(c.begin(), c.begin() + args.k, c.end(), higher<C>);
      const C alpha = std::isnan(c[args.k]) ? -std::numeric_limits<C>::infinity() : c[args.k];
      for (int64_t e = 0; e < experts; ++e) above[e * tokens + t] = s[e] - alpha;
    }
  });
  // Tokens that are left out have the lowest values, after those at `place`.
  const int64_t real = count_of(args.counted, tokens), place = real * args.k / experts;
  for_each_block(stream, experts, [&](int64_t e, int) {
    C* column = above + e * tokens;
    std::nth_element(column, column + place, column + tokens, higher<C>);
    C& threshold = args.thresholds.data<C>()[e];
    threshold = std::isnan(column[place]) ? -std::numeric_limits<C>::infinity() : column[place];
    if (real == 0) threshold = 0;
  });
}

template <class C>
void set_bias(const ThresholdBiasArgs& args) {
  const C* sums = args.sums.data<C>();
  C* bias = args.bias.data<C>();
  const int64_t experts = args.bias.size(0);
  const auto count = static_cast<double>(sums[experts]);
  for (int64_t e = 0; e < experts && count != 0; ++e)
    bias[e] = static_cast<C>(args.ema * static_cast<double>(bias[e]) -
                             (1 - args.ema) * static_cast<double>(sums[e]) / count);
}

}  // namespace

Tensor sinkhorn_scratch(const SinkhornArgs& args, Stream& stream) {
  const int64_t tokens = args.logits.size(0), experts = args.logits.size(1);
  const int64_t rows = tokens + 1 + RowBlocks(tokens).count;
  return Tensor::empty(stream.scratch(), {rows * experts + tokens}, DType::f64, "sinkhorn");
}

Tensor expert_thresholds_scratch(const ExpertThresholdsArgs& args, Stream& stream) {
  return Tensor::empty(stream.scratch(), {args.logits.size(1), args.logits.size(0)},
                       args.logits.dtype(), "scores above a token's threshold");
}

void sinkhorn(const SinkhornArgs& args, Stream& stream) {
  const Tensor memory = sinkhorn_scratch(args, stream);
  if (args.logits.dtype() == DType::f64)
    Sinkhorn<double>(args, memory.data<double>(), stream).run();
  else Sinkhorn<float>(args, memory.data<double>(), stream).run();
}

void expert_thresholds(const ExpertThresholdsArgs& args, Stream& stream) {
  const Tensor above = expert_thresholds_scratch(args, stream);
  if (args.logits.dtype() == DType::f64) find_thresholds(args, above.data<double>(), stream);
  else find_thresholds(args, above.data<float>(), stream);
}

void threshold_bias(const ThresholdBiasArgs& args, Stream&) {
  args.bias.dtype() == DType::f64 ? set_bias<double>(args) : set_bias<float>(args);
}

}  // namespace megatron::kernels::cpu
