#include <vector>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/router_scores.h"

namespace megatron::kernels::cpu {

namespace {

// Tokens per block. One expert of a token costs about as much as 32 elements of other kernels.
int64_t tokens_per_block(int64_t experts) { return rows_per_block(32 * experts); }

bool softmax_of_chosen(const RouterForm& form) {
  return form.score == RouterScore::softmax && !form.softmax_first;
}

// Routes tokens one at a time.
template <class C>
class Router {
 public:
  explicit Router(const RouteArgs& args)
      : args_(args),
        form_(args.form),
        experts_(args.logits.size(1)),
        k_(args.experts.size(1)),
        scores_(static_cast<size_t>(experts_)),
        choice_(scores_),
        worth_(static_cast<size_t>(form_.groups)),
        found_(scores_.size()),
        highest_(experts_) {}

  void run(int64_t token) {
    const C* logits = args_.logits.data<C>() + token * experts_;
    find_scores(logits);
    const C* by =
        args_.selection.defined() ? args_.selection.data<C>() + token * experts_ : scores_.data();
    std::copy_n(by, experts_, choice_.data());
    if (args_.bias.defined()) {
      const C* bias = args_.bias.data<C>();
      for (int64_t e = 0; e < experts_; ++e) choice_[e] += bias[e];
    }
    if (form_.chosen_groups < form_.groups) leave_best_groups();
    int32_t* chosen = args_.experts.data<int32_t>() + token * k_;
    highest_.find(choice_.data(), experts_, k_, chosen);
    weigh(chosen, args_.weights.data<C>() + token * k_);
  }

 private:
  void find_scores(const C* logits) {
    if (form_.softmax_first) {
      softmax_row(logits, experts_, scores_.data());
    } else if (form_.score == RouterScore::softmax) {
      std::copy_n(logits, experts_, scores_.data());
    } else {
      score_row(form_.score, logits, experts_, scores_.data());
    }
  }

  void leave_best_groups() {
    const int64_t size = experts_ / form_.groups;
    for (int64_t g = 0; g < form_.groups; ++g) {
      const C* group = choice_.data() + g * size;
      highest_.find(group, size, form_.group_best, found_.data());
      worth_[g] = 0;
      for (int64_t i = 0; i < form_.group_best; ++i) worth_[g] += group[found_[i]];
    }
    highest_.find(worth_.data(), form_.groups, form_.chosen_groups, found_.data());
    std::sort(found_.begin(), found_.begin() + form_.chosen_groups);
    int64_t next = 0;
    for (int64_t g = 0; g < form_.groups; ++g) {
      if (next < form_.chosen_groups && found_[next] == g) {
        ++next;
      } else {
        std::fill_n(choice_.data() + g * size, size, -std::numeric_limits<C>::infinity());
      }
    }
  }

  void weigh(const int32_t* chosen, C* weights) const {
    for (int64_t j = 0; j < k_; ++j) weights[j] = scores_[static_cast<size_t>(chosen[j])];
    if (softmax_of_chosen(form_)) softmax_row(weights, k_, weights);
    const C scale = static_cast<C>(form_.scale);
    C sum = form_.normalised ? kMinRouterSum<C> : 1;
    for (int64_t j = 0; j < k_ && form_.normalised; ++j) sum += weights[j];
    for (int64_t j = 0; j < k_; ++j) weights[j] = weights[j] / sum * scale;
  }

  const RouteArgs& args_;
  const RouterForm& form_;
  int64_t experts_, k_;
  std::vector<C> scores_, choice_, worth_;
  std::vector<int32_t> found_;
  Highest<C> highest_;
};

template <class C>
class RouteGradient {
 public:
  explicit RouteGradient(const RouteBackwardArgs& args)
      : args_(args),
        form_(args.form),
        experts_(args.logits.size(1)),
        k_(args.experts.size(1)),
        p_(static_cast<size_t>(experts_)),
        w_(static_cast<size_t>(k_)),
        dw_(w_) {}

  void run(int64_t token) {
    const C* logits = args_.logits.data<C>() + token * experts_;
    const int32_t* chosen = args_.experts.data<int32_t>() + token * k_;
    const C* dweights = args_.dweights.data<C>() + token * k_;
    C* dlogits = args_.dlogits.data<C>() + token * experts_;
    if (form_.softmax_first) softmax_row(logits, experts_, p_.data());
    const C* scores = form_.softmax_first ? p_.data() : logits;
    for (int64_t j = 0; j < k_; ++j) {
      w_[j] = scores[chosen[j]];
      dw_[j] = dweights[j] * static_cast<C>(form_.scale);
    }
    if (softmax_of_chosen(form_)) softmax_row(w_.data(), k_, w_.data());
    if (form_.score != RouterScore::softmax) score_row(form_.score, w_.data(), k_, w_.data());
    if (form_.normalised) normalised_row_gradient(w_.data(), dw_.data(), k_, dw_.data());
    if (softmax_of_chosen(form_)) softmax_row_gradient(w_.data(), dw_.data(), k_, dw_.data());
    std::fill_n(dlogits, experts_, C{0});
    for (int64_t j = 0; j < k_; ++j) {
      const int32_t e = chosen[j];
      const bool sloped = form_.score != RouterScore::softmax;
      dlogits[e] += sloped ? dw_[j] * score_slope(form_.score, logits[e], w_[j]) : dw_[j];
    }
    if (form_.softmax_first) softmax_row_gradient(p_.data(), dlogits, experts_, dlogits);
  }

 private:
  const RouteBackwardArgs& args_;
  const RouterForm& form_;
  int64_t experts_, k_;
  std::vector<C> p_, w_, dw_;
};

template <class Worker, class Args>
void run_tokens(const Args& args, Stream& stream) {
  const int64_t tokens = args.logits.size(0);
  for_blocks(stream, tokens, tokens_per_block(args.logits.size(1)),
             [&](int64_t begin, int64_t end) {
               Worker worker(args);
               for (int64_t t = begin; t < end; ++t) worker.run(t);
             });
}

}  // namespace

void route(const RouteArgs& args, Stream& stream) {
  if (args.logits.dtype() == DType::f64) return run_tokens<Router<double>>(args, stream);
  run_tokens<Router<float>>(args, stream);
}

void route_backward(const RouteBackwardArgs& args, Stream& stream) {
  if (args.logits.dtype() == DType::f64) return run_tokens<RouteGradient<double>>(args, stream);
  run_tokens<RouteGradient<float>>(args, stream);
}

}  // namespace megatron::kernels::cpu
