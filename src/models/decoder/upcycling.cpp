#include <cmath>
#include <numbers>

#include "base/error.h"
#include "models/decoder/definition.h"
#include "models/decoder/definition_parts.h"
#include "models/decoder/flags.h"

namespace megatron::models {
namespace {

using parallel::CanonicalTensor;
using parallel::Placement;
using parallel::Slice;

// Sum of a token's expert weights when all of its logits are equal.
double sum_of_equal_weights(const nn::MoeConfig& moe) {
  const kernels::RouterForm& r = moe.router;
  const auto k = static_cast<double>(moe.choices), e = static_cast<double>(moe.experts);
  const bool softmax = r.score == kernels::RouterScore::softmax;
  if (r.normalised || (softmax && !r.softmax_first)) return r.scale;
  if (softmax) return r.scale * k / e;
  return r.scale * k *
         (r.score == kernels::RouterScore::sigmoid ? 0.5 : std::sqrt(std::numbers::ln2));
}

// True if the weights of a token have the same sum for all logits.
bool has_constant_sum(const nn::MoeConfig& moe) {
  const kernels::RouterForm& r = moe.router;
  const bool softmax = r.score == kernels::RouterScore::softmax;
  return r.normalised || (softmax && (!r.softmax_first || moe.choices == moe.experts));
}

void check_granularity(const nn::MoeConfig& moe, int64_t granularity) {
  constexpr std::string_view kFlag = "--moe-upcycling-granularity";
  MG_CHECK(moe.experts % granularity == 0,
           "--num-experts {} is not a multiple of {} {}: each part of a feed-forward block must "
           "initialize the same number of experts; change one of them",
           moe.experts, kFlag, granularity);
  MG_CHECK(moe.choices % granularity == 0,
           "--moe-router-topk {} is not a multiple of {} {}: a token would pass through only some "
           "parts of a feed-forward block; change one of them",
           moe.choices, kFlag, granularity);
  MG_CHECK(moe.experts / moe.router.groups % granularity == 0,
           "the {} experts in a group (--num-experts {}, --moe-router-num-groups {}) are not a "
           "multiple of {} {}; change one of them",
           moe.experts / moe.router.groups, moe.experts, moe.router.groups, kFlag, granularity);
}

// The experts of a layer with the feed-forward block `mlp`.
nn::MoeConfig experts_of(const MoeFlags& flags, const nn::MlpConfig& mlp, int64_t granularity,
                         int64_t layer) {
  MG_CHECK(mlp.ffn % granularity == 0,
           "--moe-upcycling-granularity {} does not divide {}, the width of the feed-forward block "
           "of layer {}; use one of its divisors",
           granularity, mlp.ffn, layer);
  const int64_t width = mlp.ffn / granularity;
  MG_CHECK(!flags.ffn_hidden_size || *flags.ffn_hidden_size == width,
           "--moe-ffn-hidden-size is {}, but the feed-forward block of layer {} has a width of {}, "
           "which --moe-upcycling-granularity {} divides into parts of {}; leave it out",
           *flags.ffn_hidden_size, layer, mlp.ffn, granularity, width);
  MoeFlags sized = flags;
  sized.ffn_hidden_size = width;
  return moe_of(sized, mlp);
}

void check_flags(const UpcyclingFlags& flags) {
  check_ranges(flags.moe);
  MG_CHECK(flags.granularity > 0, "--moe-upcycling-granularity is {}; it must be positive",
           flags.granularity);
  MG_CHECK(flags.moe.num_experts.has_value(),
           "--moe-use-upcycling needs --num-experts, the number of experts per layer");
  const auto refuse = [](bool given, std::string_view flag, std::string_view why) {
    MG_CHECK(!given, "--{} cannot be combined with --moe-use-upcycling: {}; leave it out", flag,
             why);
  };
  refuse(flags.moe.latent_size.has_value(), "moe-latent-size",
         "the inputs and outputs of a dense model's feed-forward blocks have the hidden size");
  refuse(flags.moe.shared_ffn.has_value(), "moe-shared-expert-intermediate-size",
         "a dense model has no block to initialize a shared expert from");
  refuse(flags.moe.apply_probs_on_input, "moe-apply-probs-on-input",
         "a feed-forward block is not linear in its input");
}

// The value of the model with experts.
DecoderValue with_experts(const DecoderValue& dense, const UpcyclingFlags& flags) {
  check_flags(flags);
  DecoderValue value = dense;
  const std::vector<bool> chosen = expert_layers(flags.moe, dense.num_layers());
  for (int64_t i = 0; i < dense.num_layers(); ++i) {
    LayerValue& layer = value.layers[static_cast<size_t>(i)];
    MG_CHECK(layer.moe() == nullptr,
             "--moe-use-upcycling turns the feed-forward blocks of a dense model into experts, but "
             "layer {} of this model already has experts: drop the flag (a run that was started "
             "with it resumes without it)",
             i);
    if (!chosen[static_cast<size_t>(i)]) continue;
    MG_CHECK(
        layer.mlp() != nullptr,
        "layer {} has no feed-forward block to turn into experts; exclude it with --moe-layer-freq",
        i);
    const nn::MoeConfig moe = experts_of(flags.moe, *layer.mlp(), flags.granularity, i);
    check_granularity(moe, flags.granularity);
    layer.feed_forward = moe;
  }
  MG_CHECK(value.first_moe() != nullptr,
           "with --moe-layer-freq {} none of the {} layers has experts; change it, or drop "
           "--moe-use-upcycling",
           flags.moe.layer_freq, dense.num_layers());
  value.router = flags.moe.training();
  return value;
}

// Converts the placement of a matrix (or bias) to that of expert e in a stack of experts.
CanonicalTensor stacked(CanonicalTensor t, int64_t e) {
  std::vector<int64_t> sizes = {1};
  for (int d = 0; d < t.global.rank(); ++d) sizes.push_back(t.global[d]);
  t.global = Shape(std::span<const int64_t>(sizes));
  for (parallel::AxisSlices& axis : t.held) ++axis.axis;
  t.held.push_back({0, {{0, e, 1}}});
  t.stacked = true;
  return t;
}

Shape without_experts(const Shape& shape) {
  std::vector<int64_t> sizes;
  for (int d = 1; d < shape.rank(); ++d) sizes.push_back(shape[d]);
  return Shape(std::span<const int64_t>(sizes));
}

class Sources {
 public:
  Sources(DecoderValue dense, FamilyTensors theirs, DecoderValue value, FamilyTensors ours,
          int64_t granularity)
      : dense_(std::move(dense)),
        theirs_(std::move(theirs)),
        value_(std::move(value)),
        ours_(std::move(ours)),
        parts_(granularity) {}

  UpcycledModel::Source operator()(const std::string& name, const Shape& shape) const {
    const size_t dot = name.find('.', std::string_view("layers.").size());
    if (!name.starts_with("layers.") || dot == name.npos) return {of_dense(name, shape)};
    const auto layer = static_cast<size_t>(std::stoll(name.substr(7, dot - 7)));
    const nn::MoeConfig* moe = value_.layers.at(layer).moe();
    const std::string block = name.substr(0, dot) + ".mlp.", experts = block + "experts.";
    if (moe == nullptr || !name.starts_with(block)) return {of_dense(name, shape)};
    if (!name.starts_with(experts)) return {.placement = router(name, shape), .drawn = true};
    const std::string matrix = name.substr(experts.size());
    return {.placement = of_experts(*moe, block + matrix, matrix, shape),
            .factor = factor(*moe, matrix)};
  }

 private:
  Placement of_dense(const std::string& name, const Shape& shape) const {
    return placement_of(theirs_, dense_, name, shape);
  }

  // The router's rows: all parts of a copy start from the row of its first part.
  Placement router(const std::string& name, const Shape& shape) const {
    Placement placement = placement_of(ours_, value_, name, shape);
    for (CanonicalTensor& tensor : placement.tensors) {
      parallel::AxisSlices rows{.axis = 0, .slices = {}};
      for (int64_t e = 0; e < shape[0]; ++e) rows.slices.push_back({e / parts_ * parts_, e, 1});
      tensor.held = {std::move(rows)};
    }
    return placement;
  }

  Placement of_experts(const nn::MoeConfig& moe, const std::string& name, const std::string& matrix,
                       const Shape& shape) const {
    const int64_t ffn = moe.expert.ffn;
    Shape whole = without_experts(shape);
    const int axis = matrix.starts_with("up.") ? 0 : 1;  // axis that the parts divide
    const bool divided = axis < whole.rank();
    if (divided) whole.set(axis, whole[axis] * parts_);
    const Placement block = of_dense(name, whole);
    Placement placement;
    for (int64_t e = 0; e < moe.experts; ++e) {
      Placement part = block;
      if (divided) {
        std::vector<Slice> held;  // one part of each half of [gate | up]
        for (int64_t i = 0; i < whole[axis] / (ffn * parts_); ++i)
          held.push_back({i * ffn * parts_ + e % parts_ * ffn, i * ffn, ffn});
        part = parallel::narrowed(block, axis, held);
      }
      for (CanonicalTensor& tensor : part.tensors)
        placement.tensors.push_back(stacked(std::move(tensor), e));
    }
    return placement;
  }

  double factor(const nn::MoeConfig& moe, const std::string& matrix) const {
    if (matrix.starts_with("up.")) return 1;
    return (matrix == "down.weight" ? static_cast<double>(parts_) : 1) / sum_of_equal_weights(moe);
  }

  DecoderValue dense_;
  FamilyTensors theirs_;
  DecoderValue value_;
  FamilyTensors ours_;
  int64_t parts_;
};

std::string summary_of(const DecoderValue& value, int64_t granularity) {
  const nn::MoeConfig& moe = *value.first_moe();
  const auto layers =
      std::ranges::count_if(value.layers, [](const LayerValue& l) { return l.moe() != nullptr; });
  const std::string each = granularity == 1 ? fmt::format("{} copies of it", moe.experts)
                                            : fmt::format("{} copies of its {} parts",
                                                          moe.experts / granularity, granularity);
  const double factor = static_cast<double>(granularity) / sum_of_equal_weights(moe);
  return fmt::format(
      "the feed-forward block of {} of {} layers became {} experts ({}{}); {}", layers,
      value.num_layers(), moe.experts, each,
      factor == 1 ? "" : fmt::format(", with down-projections multiplied by {:.6g}", factor),
      has_constant_sum(moe)
          ? "the model computes the same function as the dense one"
          : "the model computes approximately the same function as the dense one, because the "
            "weights of a token's experts do not always have the same sum");
}

}  // namespace

UpcycledModel upcycled_decoder(const DecoderValue& dense, const DecoderFamily& family,
                               ConfigForm form, const UpcyclingFlags& flags) {
  const DecoderValue value = with_experts(dense, flags);
  const DecoderFamily& now = family_to_save(value, flags.family);
  return {
      .model = decoder_model(value, now, form),
      .source = Sources(dense, family.tensors(dense), value, now.tensors(value), flags.granularity),
      .summary = summary_of(value, flags.granularity)};
}

}  // namespace megatron::models
