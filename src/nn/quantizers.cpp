// nn::Builder's part that adds the quantisation of linear layers.
#include <fmt/core.h>

#include "base/error.h"
#include "kernels/table.h"
#include "nn/builder.h"
#include "nn/coded_products.h"

namespace megatron::nn {

using parallel::RankGroup;

namespace {

// Ranks divide a weight [..,out,in] at the ends of blocks, so that these are the same in any
// layout.
void check_blocks(const parallel::ParameterSpec& weight, const LowPrecisionFormats& formats) {
  const int64_t block = formats.block();
  for (const parallel::Division& division : weight.divisions) {
    if (division.axis < weight.whole.rank() - 2 || division.ranks == 1) continue;
    for (const parallel::Slice& slice : division.slices())
      MG_CHECK(
          slice.global_begin % block == 0 && slice.size % block == 0,
          "recipe {}: {} ranks divide the {} of {} {} within blocks: their shares must be "
          "multiples of {}; change --hidden-size, --ffn-hidden-size, the heads, --vocab-size or "
          "--tensor-model-parallel-size, or use another recipe",
          name(formats.recipe), division.ranks,
          division.axis == weight.whole.rank() - 2 ? "rows" : "columns", weight.parameter.name,
          weight.whole.str(), block);
  }
}

}  // namespace

void Builder::quantize(Parameter& weight, std::array<bool, kOperands> divided) {
  if (!formats_of_ || shared_ != nullptr) return;
  const auto formats = formats_of_(weight.name);
  if (!formats) return;
  check_blocks(spec_of(weight), *formats);
  LowPrecision how{.formats = *formats, .divided = divided};
  if (comm::Group* const group = tensor().group; group != nullptr)
    how.of_parts = [group](const Tensor& amax, Stream& stream) {
      group->all_reduce(amax, comm::Reduce::max, stream, "amax").wait(stream);
    };
  how.codes =
      runtime_.stream().target().kind == DeviceKind::cuda && multiplies_codes(how.formats.recipe);
  if (how.formats.recipe == LowPrecisionRecipe::delayed) add_scales(how, weight.name);
  if (how.formats.recipe == LowPrecisionRecipe::nvfp4) how.chances = chances_of(spec_of(weight));
  weight.low_precision = std::move(how);
}

void Builder::quantize_experts(Parameter& weight) {
  const auto formats = formats_of_ ? formats_of_(weight.name) : std::nullopt;
  if (!formats) return;
  check_blocks(spec_of(weight), *formats);
  LowPrecision how{.formats = *formats, .divided = {true, true, true}};
  how.of_parts = [ranks = ranks_](const Tensor& amax, Stream& stream) {
    for (const RankGroup which : {RankGroup::expert, RankGroup::expert_tensor, RankGroup::tensor})
      if (comm::Group* const group = ranks.group(which); group != nullptr)
        group->all_reduce(amax, comm::Reduce::max, stream, "amax").wait(stream);
  };
  if (how.formats.recipe == LowPrecisionRecipe::delayed) add_scales(how, weight.name);
  if (how.formats.recipe == LowPrecisionRecipe::nvfp4) how.chances = chances_of(spec_of(weight));
  weight.low_precision = std::move(how);
}

// The largest elements of a step are those of all its micro-batches and ranks, so that scales do
// not depend on the layout.
void Builder::add_scales(LowPrecision& how, const std::string& weight) {
  const LowPrecisionFormats formats = how.formats;
  const auto count = static_cast<int64_t>(kOperands);
  const std::string name = std::string(kQuantizerPrefix) + weight;
  const ModuleState* earlier = nullptr;
  if (formats.history > 1)
    earlier =
        &add_state(name + ".maxima", {count, formats.history - 1}, zeros(), {.of_training = true});
  const ModuleState& scales = add_state(
      name + ".scales", {count}, ones(),
      {.reduce = comm::Reduce::max,
       .update =
           [formats, earlier](const ModuleState& state, Stream& stream) {
             for (int64_t i = 0; i < state.value().size(0); ++i) {
               const bool gradient = i == static_cast<int64_t>(Operand::gradient);
               kernels::table(stream).tensor_scale(
                   {.largest = facts_of(gradient ? formats.gradient : formats.forward).largest,
                    .margin = formats.margin,
                    .delayed = true,
                    .use_history = formats.most_of_history,
                    .amax = state.observed.select(0, i),
                    .history = earlier == nullptr ? Tensor() : earlier->value().select(0, i),
                    .scale = state.value().select(0, i)},
                   stream);
             }
           },
       .of_training = true});
  how.scales = &scales.value();
  how.maxima = &scales.observed;
}

LowPrecision::Chances Builder::chances_of(const parallel::ParameterSpec& weight) const {
  const std::string& name = weight.parameter.name;
  LowPrecision::Chances chances{.seed = seed_,
                                .of_inputs = random_stream(name, ".fp4.inputs"),
                                .of_weights = random_stream(name, ".fp4.weights")};
  for (const parallel::Division& division : weight.divisions) {
    if (division.axis != weight.whole.rank() - 2 || division.ranks == 1) continue;
    for (const parallel::Slice& slice : division.slices()) {
      MG_ASSERT(chances.channels.count < kernels::ChannelRuns::kMost);  // check_blocks()
      chances.channels.runs[chances.channels.count++] = {slice.local_begin, slice.global_begin};
    }
  }
  if (weight.divisions.empty() && tensor().divides_tokens())
    chances.first_row = [tensor = tensor()](int64_t rows) {
      return tensor.tokens(rows).global_begin;
    };
  return chances;
}

}  // namespace megatron::nn
