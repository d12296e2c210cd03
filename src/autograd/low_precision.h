// Quantisation of the operands of a linear layer's products, as its weight says.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/low_precision.h"
#include "device/stream.h"
#include "kernels/quantize.h"
#include "tensor/tensor.h"

namespace megatron {

// How the scales of quantised operands are chosen:
//   tensorwise  one for the tensor, from its largest element
//   delayed     one for the tensor, from the largest elements of earlier steps
//   blockwise   powers of two, for 128 x 128 elements of a weight, and for 128 elements of the
//               others along the axis over which the product sums
//   mxfp8       powers of two for 32 elements along that axis (OCP Microscaling Formats 1.0)
//   nvfp4       e4m3 for 16 x 16 elements of a weight, and for 16 elements of the others along that
//               axis, and one for the tensor. Operands of weight gradients are rotated along the
//               tokens, and gradients rounded by chance (NVIDIA, Pretraining Large Language Models
//               with NVFP4, 2025, section 4)
enum class LowPrecisionRecipe : uint8_t { tensorwise, delayed, blockwise, mxfp8, nvfp4 };
constexpr std::string_view name(LowPrecisionRecipe recipe) {
  constexpr std::string_view kNames[] = {"tensorwise", "delayed", "blockwise", "mxfp8", "nvfp4"};
  return kNames[static_cast<size_t>(recipe)];
}

struct LowPrecisionFormats {
  LowPrecisionRecipe recipe = LowPrecisionRecipe::tensorwise;
  LowFormat forward = LowFormat::e4m3, gradient = LowFormat::e5m2;
  bool weight_gradients = true;  // false: their products are not quantised
  // delayed: scales are divided by 2^margin, and follow from the largest of the elements of the
  // last `history` steps (most_of_history), or from those of the last step.
  int margin = 0;
  int64_t history = 1;
  bool most_of_history = false;

  bool operator==(const LowPrecisionFormats&) const = default;
  // One scale for a tensor, in 8 bits.
  bool is_of_tensors() const {
    return recipe == LowPrecisionRecipe::tensorwise || recipe == LowPrecisionRecipe::delayed;
  }
  // Elements of a block along an axis; 1: there are no blocks.
  int64_t block() const {
    switch (recipe) {
      case LowPrecisionRecipe::blockwise: return 128;
      case LowPrecisionRecipe::mxfp8: return 32;
      case LowPrecisionRecipe::nvfp4: return 16;
      default: return 1;
    }
  }
};

// How the products of some modules are computed instead.
struct PrecisionRule {
  std::string pattern = {};  // fits a module's whole name: fnmatch(3), without escapes
  std::optional<LowPrecisionFormats> formats = {};  // none: products are in the model's type
  // True if it holds for modules that are quantised without it, and for those that are not.
  bool of_quantized = true, of_others = false;
  std::string where = {};  // "precision.yaml:12"

  bool operator==(const PrecisionRule&) const = default;
};

// Quantisation in a model: in all layers but the first and the last ones, unless a rule says
// otherwise.
struct LowPrecisionLayers {
  LowPrecisionFormats formats = {};
  int64_t left_out_at_start = 0, left_out_at_end = 0;
  bool output = false;                    // the output layer, too: a recipe with blocks alone
  bool by_rules_alone = false;            // without a rule, nothing is quantised
  std::vector<PrecisionRule> rules = {};  // the first that fits a module counts

  bool operator==(const LowPrecisionLayers&) const = default;
  bool covers(int64_t layer, int64_t layers) const {
    return !by_rules_alone && layer >= left_out_at_start && layer < layers - left_out_at_end;
  }
  // True if some module may be quantised with the recipe.
  bool may_use(LowPrecisionRecipe recipe) const {
    return (!by_rules_alone && formats.recipe == recipe) ||
           std::ranges::any_of(rules, [recipe](const PrecisionRule& rule) {
             return rule.formats && rule.formats->recipe == recipe;
           });
  }
};

// nvfp4: the scale of a tensor is this divided by its largest element: 448 * 6, the largest scale
// of a block in e4m3 times the largest number of e2m1.
constexpr double kLargestFp4 = 2688;

enum class Operand : uint8_t { activation, weight, gradient };
constexpr size_t kOperands = 3;

struct LowPrecision {
  LowPrecisionFormats formats;
  bool active = true;  // false: products are computed in the type of the model
  // Operands of products are codes (kernels::coded_gemm), where shapes allow it.
  bool codes = false;
  // Operands, by Operand, of which other ranks hold parts. Scales that follow from a tensor's
  // largest element are those of all parts: over these ranks, of_parts sets each element of an f32
  // tensor to its maximum. Null: one rank.
  std::array<bool, kOperands> divided = {};
  std::function<void(const Tensor& amax, Stream& stream)> of_parts = {};
  // delayed: f32 [3], by Operand: the scales of this step, and the largest elements found in it so
  // far (undefined unless the model is trained).
  const Tensor *scales = nullptr, *maxima = nullptr;
  // f32 0-d, defined where ranks gather the weight's codes instead of its values
  // (parallel/weight_codes.h), so that its elements are rounded: the scale of this step
  // (tensorwise, nvfp4), and the largest element of the rank's shard before rounding (delayed).
  Tensor weight_scale = {}, weight_amax = {};
  // nvfp4, likewise: the largest elements of the weight's blocks, f32 of their grid.
  Tensor weight_maxima = {};
  // nvfp4: the random numbers by which a gradient is rounded. first_row: the batch's row of row 0,
  // where ranks have rows of their own, by the batch's number of rows; null: 0.
  struct Chances {
    uint64_t seed = 0;
    uint64_t of_inputs = 0, of_weights = 0;  // streams: for gradients of inputs and of weights
    kernels::ChannelRuns channels;           // of the gradient's columns
    std::function<int64_t(int64_t)> first_row;
  } chances = {};
};

}  // namespace megatron
