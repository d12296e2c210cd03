#include "plan/assumed_time.h"

#include <algorithm>
#include <array>
#include <initializer_list>

#include "base/divide.h"
#include "plan/expert_rows.h"

namespace megatron::plan {
namespace {

constexpr double kProducts = 740e12, kSmallProducts = 715e12, kSingleProducts = 50e12,
                 kFp8Products = 1300e12, kSmallFp8Products = 1150e12, kBandwidth = 4.2e12;
constexpr int64_t kLargeProduct = 4096;  // minimum of each dimension

// FLOP/s of causal attention in cuDNN 9.19 with heads of 128, from this length on.
struct AttentionRate {
  int64_t length;
  double forward, backward;
};
constexpr std::array<AttentionRate, 5> kAttention = {{{0, 484e12, 370e12},
                                                      {4096, 591e12, 474e12},
                                                      {8192, 644e12, 541e12},
                                                      {16384, 673e12, 579e12},
                                                      {32768, 688e12, 581e12}}};
constexpr AttentionRate kSmallHeads = {0, 400e12, 330e12};  // head width up to 64

enum class Part {
  linears,
  quantization,
  experts,
  head,
  attention,
  attention_backward,
  norms,
  rotary,
  activation,
  loss,
  accumulation,
  other,
  optimizer
};
constexpr std::array<std::string_view, 13> kNames = {"linear layers",
                                                     "quantization",
                                                     "experts",
                                                     "output layer",
                                                     "attention forward",
                                                     "attention backward",
                                                     "norms and residuals",
                                                     "rotary positions",
                                                     "activation",
                                                     "cross entropy and embedding",
                                                     "gradient accumulation",
                                                     "other",
                                                     "optimizer"};

Part part_of(std::string_view kernel) {
  const auto is_one_of = [kernel](std::initializer_list<std::string_view> names) {
    return std::ranges::find(names, kernel) != names.end();
  };
  if (is_one_of({"add", "add_layer_norm", "add_layer_norm_backward", "add_rms_norm",
                 "add_rms_norm_backward", "head_norm", "head_norm_backward", "row_dot"}))
    return Part::norms;
  if (is_one_of({"quantize", "amax", "tensor_scale", "encode_operand", "hadamard", "part_amax",
                 "encode_part", "decode_part"}))
    return Part::quantization;
  if (kernel == "rope") return Part::rotary;
  if (is_one_of({"activation", "activation_backward"})) return Part::activation;
  if (is_one_of({"cross_entropy", "vocabulary_stats", "vocabulary_cross_entropy", "squared_error",
                 "embedding", "embedding_backward"}))
    return Part::loss;
  if (kernel == "column_sum") return Part::accumulation;
  const bool updates = is_one_of({"sum_of_squares", "grad_scale", "adam", "sgd", "lion"});
  return updates ? Part::optimizer : Part::other;
}

bool is_half(DType type) { return type == DType::bf16 || type == DType::f16; }

// Sizes of a product: out [m,n] over k.
struct Sizes {
  int64_t m, n, k;
  bool gradient;  // a is transposed: gradient of a weight
};
Sizes sizes_of(const WorkItem& item) {
  const OperandForm &a = item.operand("a"), &out = item.operand("out");
  const bool gradient = (item.form & 1) != 0;
  return {out.shape[-2], out.shape[-1], a.shape[gradient ? -2 : -1], gradient};
}

// Products in fp32, whatever the model's type: from or to the logits of experts, or the gate of a
// shared expert.
bool is_router_product(const WorkItem& item, int64_t experts) {
  const auto [m, n, k, gradient] = sizes_of(item);
  const auto is_logits = [&](int64_t size) { return size == experts || size == 1; };
  return experts > 0 && item.operand("a").type == DType::f32 &&
         (gradient ? is_logits(m) : is_logits(n) || is_logits(k));
}

// Seconds, operations and bytes of a step by part.
class Sums {
 public:
  explicit Sums(const AssumedRun& run) : run_(run) {}

  void add(const StepWork& work) {
    for (const WorkItem& item : work.kernels) {
      if (item.calls == 0) continue;
      if (item.kernel == "gemm") add_product(item);
      else if (item.kernel == "coded_gemm") add_coded_product(item);
      else if (is_expert_product(item)) add_grouped(item);
      else if (item.kernel == "attention") add_attention(item, Part::attention);
      else if (item.kernel == "attention_backward") add_attention(item, Part::attention_backward);
      else add(part_of(item.kernel), item, item.cost.bytes / kBandwidth);
    }
  }
  AssumedItem item(Part part) const {
    const auto i = static_cast<size_t>(part);
    const double seconds = seconds_[i];
    AssumedItem item{.name = std::string(kNames[i]), .seconds = seconds};
    if (seconds > 0 && flops_[i] > 0) item.flops_per_second = flops_[i] / seconds;
    else if (seconds > 0 && part != Part::accumulation) item.bytes_per_second = kBandwidth;
    return item;
  }
  double all() const {
    double sum = 0;
    for (const double seconds : seconds_) sum += seconds;
    return sum - seconds_[static_cast<size_t>(Part::optimizer)];
  }

 private:
  void add(Part part, const WorkItem& item, double seconds) {
    const auto i = static_cast<size_t>(part);
    const auto calls = static_cast<double>(item.calls);
    seconds_[i] += calls * seconds;
    flops_[i] += calls * item.cost.flops;
  }

  bool of_vocabulary(int64_t size) const {
    const int64_t ranks = run_.tensor_ranks;
    return size == run_.vocabulary / ranks || size == ceil_div(run_.vocabulary, ranks);
  }

  void add_product(const WorkItem& item) {
    if (is_router_product(item, run_.experts))
      return add(Part::experts, item,
                 std::max(item.cost.flops / kSingleProducts, item.cost.bytes / kBandwidth));
    const auto [m, n, k, gradient] = sizes_of(item);
    const OperandForm& out = item.operand("out");
    const double rate = std::min({m, n, k}) >= kLargeProduct ? kProducts : kSmallProducts,
                 computing = item.cost.flops / rate, moving = item.cost.bytes / kBandwidth;
    const Part part =
        of_vocabulary(m) || of_vocabulary(n) || of_vocabulary(k) ? Part::head : Part::linears;
    add(part, item, gradient ? computing : std::max(computing, moving));
    if (!gradient) return;
    const double uses = out.access == kernels::Access::update ? 2 : 1,
                 adding = uses * static_cast<double>(out.bytes()) / kBandwidth;
    seconds_[static_cast<size_t>(Part::accumulation)] +=
        static_cast<double>(item.calls) * std::max(adding / 2, moving - computing);
  }

  void add_coded_product(const WorkItem& item) {
    const OperandForm &a = item.operand("a"), &out = item.operand("out");
    const bool of_blocks = item.form != 0;
    const bool large =
        !of_blocks && std::min({out.shape[-2], out.shape[-1], a.shape[-1]}) >= kLargeProduct;
    add(Part::linears, item,
        std::max(item.cost.flops / (large ? kFp8Products : kSmallFp8Products),
                 item.cost.bytes / kBandwidth));
  }

  void add_grouped(const WorkItem& item) {
    add(Part::experts, item,
        std::max(item.cost.flops / kSmallProducts, item.cost.bytes / kBandwidth));
  }

  void add_attention(const WorkItem& item, Part part) {
    const OperandForm &q = item.operand("q"), &k = item.operand("k");
    AttentionRate rate = kSmallHeads;
    if (q.shape[-1] > 64)
      for (const AttentionRate& known : kAttention)
        if (k.shape[1] >= known.length) rate = known;
    add(part, item, item.cost.flops / (part == Part::attention ? rate.forward : rate.backward));
  }

  const AssumedRun& run_;
  std::array<double, kNames.size()> seconds_{}, flops_{};
};

// True if all products except those of routers are in half precision.
bool known(const StepWork& work, int64_t experts) {
  return std::ranges::all_of(work.kernels, [&](const WorkItem& item) {
    if (item.calls == 0) return true;
    if (item.kernel == "muon_momentum") return false;
    if (item.kernel == "gemm" && (item.form & kernels::kDoubleSums) != 0) return false;
    if (item.kernel != "gemm" && item.kernel != "grouped_gemm") return true;
    return is_half(item.operand("a").type) ||
           (item.kernel == "gemm" && is_router_product(item, experts));
  });
}

}  // namespace

std::optional<AssumedTime> assumed_time(const StepWork& work, const StepWork& keeping,
                                        const AssumedRun& run) {
  if (!known(work, run.experts)) return std::nullopt;
  Sums sums(run), kept(run);
  sums.add(work);
  kept.add(keeping);
  const auto n = static_cast<double>(run.micro_batches);
  AssumedTime time;
  for (size_t i = 0; i < kNames.size(); ++i) {
    const auto part = static_cast<Part>(i);
    AssumedItem item = kept.item(part);
    if (part == Part::optimizer) {
      time.optimizer = std::move(item);
      continue;
    }
    item.seconds /= n;
    if (item.seconds > 0) time.items.push_back(std::move(item));
  }
  if (const double again = (sums.all() - kept.all()) / n; again > 0)
    time.items.push_back({.name = "recompute", .seconds = again});
  for (const AssumedItem& item : time.items) time.micro_batch_seconds += item.seconds;
  time.step_seconds = n * time.micro_batch_seconds * run.stretch + time.optimizer.seconds;
  return time;
}

}  // namespace megatron::plan
