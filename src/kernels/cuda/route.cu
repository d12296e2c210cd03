#include "kernels/cuda/chunk.h"
#include "kernels/cuda/dynamic_shared.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/router_rows.h"
#include "kernels/cuda/router_warps.h"
#include "kernels/cuda/wide.h"

namespace megatron::kernels::cuda {
namespace {

// True if the softmax is taken over the chosen experts only, those with the highest logits.
bool is_softmax_of_chosen(const RouterForm& form) {
  return form.score == RouterScore::softmax && !form.softmax_first;
}

// Scores of experts, before any softmax over the chosen ones.
template <class C>
struct Scores {
  RouterScore kind;
  bool softmax_of_chosen;
  const C* logits;  // the token's logits
  C log_sum;        // log of the softmax denominator over all experts

  __device__ Scores(const RouterForm& form, bool of_chosen, const C* row, int experts)
      : kind(form.score), softmax_of_chosen(of_chosen), logits(row), log_sum(0) {
    if (form.softmax_first) log_sum = log_sum_exp(row, experts);
  }
  __device__ C operator()(int e) const {
    const C x = logits[e];
    if (softmax_of_chosen) return x;
    return kind == RouterScore::softmax ? std::exp(x - log_sum) : score_of(kind, x);
  }
};

template <class C>
struct Route {
  RouterForm form;
  bool softmax_of_chosen;
  int64_t tokens;
  int experts, k;
  const C *logits, *bias, *selection;
  int32_t* chosen;
  C* weights;
};

// Sets the values of experts outside the chosen groups to -infinity. worth holds one value per
// group.
template <class C>
__device__ void limit_groups(const RouterForm& form, C* values, C* worth, int experts) {
  const int groups = static_cast<int>(form.groups), size = experts / groups;
  for (int g = 0; g < groups; ++g) {
    Ranked<C> best;
    C sum = 0;
    for (int i = 0; i < form.group_best; ++i) {
      best = next_highest(values, g * size, (g + 1) * size, best);
      sum += best.value;
    }
    if (lane_of_row() == 0) worth[g] = sum == sum ? sum : C(-INFINITY);
  }
  __syncwarp();
  Ranked<C> last;
  for (int i = 0; i < form.chosen_groups; ++i) last = next_highest(worth, 0, groups, last);
  for (int e = lane_of_row(); e < experts; e += kWarp) {
    const int group = e / size;
    if (last.before({worth[group], group})) values[e] = -INFINITY;
  }
  __syncwarp();
}

// Each warp holds its token's expert values, group values and weights in shared memory.
template <class C>
__global__ void __launch_bounds__(kThreads) choose_experts(Route<C> r) {
  const int64_t token = token_of_warp();
  if (token >= r.tokens) return;
  const int lane = lane_of_row(), groups = static_cast<int>(r.form.groups);
  C* values = reinterpret_cast<C*>(dynamic_shared()) + warp_of_row() * (r.experts + groups + r.k);
  C *worth = values + r.experts, *weights = worth + groups;
  const Scores<C> scores(r.form, r.softmax_of_chosen, r.logits + token * r.experts, r.experts);
  for (int e = lane; e < r.experts; e += kWarp) {
    const C c = r.selection == nullptr ? scores(e) : r.selection[token * r.experts + e];
    values[e] = r.bias == nullptr ? c : c + r.bias[e];
  }
  __syncwarp();
  if (r.form.chosen_groups < groups) limit_groups(r.form, values, worth, r.experts);
  Ranked<C> last;
  for (int j = 0; j < r.k; ++j) {
    last = next_highest(values, 0, r.experts, last);
    if (lane != j % kWarp) continue;
    r.chosen[token * r.k + j] = last.place;
    weights[j] = scores(last.place);
  }
  // From here on each lane reads only what it wrote itself.
  if (r.softmax_of_chosen) make_softmax(weights, r.k);
  const C sum = r.form.normalised ? row_sum(weights, r.k) + static_cast<C>(kMinSum) : C(1);
  for (int j = lane; j < r.k; j += kWarp)
    r.weights[token * r.k + j] = weights[j] / sum * static_cast<C>(r.form.scale);
}

template <class C>
struct RouteBackward {
  RouterForm form;
  bool softmax_of_chosen;
  int64_t tokens;
  int experts, k;
  const C *logits, *dweights;
  const int32_t* chosen;
  C* dlogits;
};

// Replaces dw, the gradient of w / (sum of w), by that of w.
template <class C>
__device__ void differentiate_normalised(const C* w, C* dw, int count) {
  const C sum = row_sum(w, count) + static_cast<C>(kMinSum), dot = row_dot(w, dw, count) / sum;
  for (int j = lane_of_row(); j < count; j += kWarp) dw[j] = (dw[j] - dot) / sum;
}

// Each warp holds its token's weights, their gradients and the chosen experts in shared memory.
template <class C>
__global__ void __launch_bounds__(kThreads) differentiate_route(RouteBackward<C> r) {
  const int64_t token = token_of_warp();
  if (token >= r.tokens) return;
  const int lane = lane_of_row(), warps = static_cast<int>(blockDim.x) / kWarp;
  C* w = reinterpret_cast<C*>(dynamic_shared()) + warp_of_row() * 2 * r.k;
  C* dw = w + r.k;
  auto* chosen =
      reinterpret_cast<int32_t*>(reinterpret_cast<C*>(dynamic_shared()) + warps * 2 * r.k);
  chosen += warp_of_row() * r.k;
  const C* row = r.logits + token * r.experts;
  const Scores<C> scores(r.form, r.softmax_of_chosen, row, r.experts);
  for (int j = lane; j < r.k; j += kWarp) {
    chosen[j] = r.chosen[token * r.k + j];
    w[j] = scores(chosen[j]);
    dw[j] = r.dweights[token * r.k + j] * static_cast<C>(r.form.scale);
  }
  if (r.softmax_of_chosen) make_softmax(w, r.k);
  if (r.form.normalised) differentiate_normalised(w, dw, r.k);
  const bool softmax = r.form.score == RouterScore::softmax;
  const C dot = softmax ? row_dot(w, dw, r.k) : C(0);
  if (r.softmax_of_chosen)
    for (int j = lane; j < r.k; j += kWarp) dw[j] = w[j] * (dw[j] - dot);
  __syncwarp();
  for (int e = lane; e < r.experts; e += kWarp) {
    C ds = 0;
    for (int j = 0; j < r.k; ++j) ds += chosen[j] == e ? dw[j] : C(0);
    if (r.form.softmax_first) ds = scores(e) * (ds - dot);
    r.dlogits[token * r.experts + e] = softmax ? ds : ds * slope_of(r.form.score, row[e]);
  }
}

// Launches one warp per token, with `of_warp` bytes of shared memory each.
template <class Work>
void launch_tokens(const char* name, void (*kernel)(Work), const Work& work, size_t of_warp,
                   Stream& stream) {
  const int warps = router_warps(name, work.experts, 0, static_cast<int64_t>(of_warp));
  const Grid grid{.blocks = dim3(static_cast<unsigned>(ceil_div(work.tokens, warps))),
                  .threads = dim3(static_cast<unsigned>(warps * kWarp)),
                  .dynamic_shared = static_cast<size_t>(warps) * of_warp};
  launch(name, kernel, grid, stream, work);
}

template <class C>
void run(const RouteArgs& args, Stream& stream) {
  const Route<C> work{.form = args.form,
                      .softmax_of_chosen = is_softmax_of_chosen(args.form),
                      .tokens = args.logits.size(0),
                      .experts = static_cast<int>(args.logits.size(1)),
                      .k = static_cast<int>(args.experts.size(1)),
                      .logits = address_of<C>(args.logits),
                      .bias = address_of<C>(args.bias),
                      .selection = address_of<C>(args.selection),
                      .chosen = address_of<int32_t>(args.experts),
                      .weights = address_of<C>(args.weights)};
  const auto values = static_cast<size_t>(work.experts + args.form.groups + work.k);
  launch_tokens("route", choose_experts<C>, work, values * sizeof(C), stream);
}

template <class C>
void run(const RouteBackwardArgs& args, Stream& stream) {
  const RouteBackward<C> work{.form = args.form,
                              .softmax_of_chosen = is_softmax_of_chosen(args.form),
                              .tokens = args.logits.size(0),
                              .experts = static_cast<int>(args.logits.size(1)),
                              .k = static_cast<int>(args.experts.size(1)),
                              .logits = address_of<C>(args.logits),
                              .dweights = address_of<C>(args.dweights),
                              .chosen = address_of<int32_t>(args.experts),
                              .dlogits = address_of<C>(args.dlogits)};
  const size_t of_warp = static_cast<size_t>(work.k) * (2 * sizeof(C) + sizeof(int32_t));
  launch_tokens("route_backward", differentiate_route<C>, work, of_warp, stream);
}

template <class Args>
void run_as(const Args& args, Stream& stream) {
  if (args.logits.size(0) == 0) return;
  args.logits.dtype() == DType::f64 ? run<double>(args, stream) : run<float>(args, stream);
}

}  // namespace

void route(const RouteArgs& args, Stream& stream) { run_as(args, stream); }

void route_backward(const RouteBackwardArgs& args, Stream& stream) { run_as(args, stream); }

}  // namespace megatron::kernels::cuda
