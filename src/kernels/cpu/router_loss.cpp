#include <vector>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/router_scores.h"
#include "kernels/cpu/scratch.h"

namespace megatron::kernels::cpu {

namespace {

// Blocks of tokens in a segment.
RowBlocks segment_blocks(const RouterSumsArgs& args) {
  return RowBlocks(args.logits.size(0) / args.counts.size(0));
}
// Elements of a block's partial result: sums, counts, squares and entropy.
int64_t partial_width(const RouterSumsArgs& args) { return 2 * args.logits.size(1) + 2; }

bool is_counted(const Tensor& counted, int64_t token) {
  return !counted.defined() || counted.data<int32_t>()[token] >= 0;
}

// Partial sums over a block of tokens: add() adds a token's terms.
template <class C>
class TokenSums {
 public:
  TokenSums(const RouterSumsArgs& args, C* sums)
      : args_(args),
        experts_(args.logits.size(1)),
        sums_(sums),
        counts_(sums + experts_),
        p_(static_cast<size_t>(experts_)),
        found_(static_cast<size_t>(args.k)),
        highest_(experts_) {
    std::fill_n(sums, partial_width(args), C{0});
  }

  void add(int64_t token) {
    if (!is_counted(args_.counted, token)) return;
    const C* logits = args_.logits.data<C>() + token * experts_;
    const C log_sum = softmax_row(logits, experts_, p_.data());
    C entropy = 0;
    if (args_.score == RouterScore::softmax) {
      for (int64_t e = 0; e < experts_; ++e)
        if (p_[e] > 0) entropy -= p_[e] * (logits[e] - log_sum);
    } else {
      entropy = divide_scores(logits);
    }
    for (int64_t e = 0; e < experts_; ++e) sums_[e] += p_[e];
    highest_.find(logits, experts_, args_.k, found_.data());
    for (const int32_t e : found_) counts_[e] += 1;
    sums_[2 * experts_] += log_sum * log_sum;
    sums_[2 * experts_ + 1] += entropy;
  }

 private:
  // Entropy of scores that are divided by their sum.
  C divide_scores(const C* logits) {
    C sum = kMinRouterSum<C>, entropy = 0;
    score_row(args_.score, logits, experts_, p_.data());
    for (const C s : p_) sum += s;
    for (int64_t e = 0; e < experts_; ++e) {
      p_[e] /= sum;
      if (p_[e] > 0) entropy -= p_[e] * std::log(p_[e]);
    }
    return entropy;
  }

  const RouterSumsArgs& args_;
  int64_t experts_;
  C *sums_, *counts_;
  std::vector<C> p_;
  std::vector<int32_t> found_;
  Highest<C> highest_;
};

template <class C>
void run_sums(const RouterSumsArgs& args, Stream& stream) {
  const RowBlocks blocks = segment_blocks(args);
  const int64_t segments = args.counts.size(0), experts = args.logits.size(1);
  const int64_t width = partial_width(args);
  const Tensor memory = router_sums_scratch(args, stream);
  C* partials = memory.data<C>();
  stream.pool().parallel_for(segments * blocks.count, [&](int64_t index, int) {
    const int64_t first = index / blocks.count * blocks.rows;
    const int64_t begin = index % blocks.count * blocks.height;
    const int64_t end = std::min(blocks.rows, begin + blocks.height);
    TokenSums<C> sums(args, partials + index * width);
    for (int64_t t = begin; t < end; ++t) sums.add(first + t);
  });
  for (int64_t s = 0; s < segments; ++s) {
    const auto total = [&](int64_t column) {
      C sum = 0;
      for (int64_t b = 0; b < blocks.count; ++b)
        sum += partials[(s * blocks.count + b) * width + column];
      return sum;
    };
    for (int64_t e = 0; e < experts; ++e) {
      args.sums.data<C>()[s * experts + e] = total(e);
      args.counts.data<C>()[s * experts + e] = total(experts + e);
    }
    args.squares.data<C>()[s] = total(2 * experts);
    args.entropy.data<C>()[s] = total(2 * experts + 1);
  }
}

template <class C>
class LossGradient {
 public:
  explicit LossGradient(const RouterLossBackwardArgs& args)
      : args_(args),
        experts_(args.logits.size(1)),
        segment_(args.logits.size(0) / args.counts.size(0)),
        balance_(static_cast<C>(*args.weight.data<double>() * args.balance)),
        z_(static_cast<C>(*args.weight.data<double>() * args.z)),
        p_(static_cast<size_t>(experts_)),
        s_(p_),
        g_(p_) {}

  void run(int64_t token) {
    if (!is_counted(args_.counted, token)) return;
    const C* logits = args_.logits.data<C>() + token * experts_;
    const C* counts = args_.counts.data<C>() + token / segment_ * experts_;
    C* dlogits = args_.dlogits.data<C>() + token * experts_;
    const C log_sum = softmax_row(logits, experts_, p_.data());
    for (int64_t e = 0; e < experts_; ++e) g_[e] = balance_ * counts[e];
    if (args_.score == RouterScore::softmax) {
      softmax_row_gradient(p_.data(), g_.data(), experts_, g_.data());
    } else {
      score_row(args_.score, logits, experts_, s_.data());
      normalised_row_gradient(s_.data(), g_.data(), experts_, g_.data());
      for (int64_t e = 0; e < experts_; ++e) g_[e] *= score_slope(args_.score, logits[e], s_[e]);
    }
    for (int64_t e = 0; e < experts_; ++e) dlogits[e] += g_[e] + 2 * z_ * log_sum * p_[e];
  }

 private:
  const RouterLossBackwardArgs& args_;
  int64_t experts_, segment_;
  C balance_, z_;
  std::vector<C> p_, s_, g_;
};

template <class C>
void run_loss_backward(const RouterLossBackwardArgs& args, Stream& stream) {
  const RowBlocks blocks(args.logits.size(0));
  for_blocks(stream, blocks.rows, blocks.height, [&](int64_t begin, int64_t end) {
    LossGradient<C> gradient(args);
    for (int64_t t = begin; t < end; ++t) gradient.run(t);
  });
}

}  // namespace

Tensor router_sums_scratch(const RouterSumsArgs& args, Stream& stream) {
  const Shape shape{args.counts.size(0) * segment_blocks(args).count, partial_width(args)};
  return Tensor::empty(stream.scratch(), shape, args.logits.dtype(), "router's sums of blocks");
}

void router_sums(const RouterSumsArgs& args, Stream& stream) {
  args.logits.dtype() == DType::f64 ? run_sums<double>(args, stream)
                                    : run_sums<float>(args, stream);
}

void router_loss_backward(const RouterLossBackwardArgs& args, Stream& stream) {
  args.logits.dtype() == DType::f64 ? run_loss_backward<double>(args, stream)
                                    : run_loss_backward<float>(args, stream);
}

}  // namespace megatron::kernels::cpu
