// Builder::add_expert_adapter(): where the parameters of the adapters of experts belong. E experts,
// r rank
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "nn/adapter_parts.h"
#include "nn/builder.h"

namespace megatron::nn {

using parallel::CanonicalTensor, parallel::Division, parallel::ParameterSpec, parallel::RankGroup,
    parallel::Slice;

struct Builder::AdaptedExperts {
  std::vector<CanonicalTensor> tensors;  // one for each expert, or one for all
  int64_t begin = 0, rows = 0;           // rows [begin, begin + rows) of each matrix [out,in]
  std::optional<AdapterRules::Adapter> adapter;
};

namespace {

int64_t first_row(const CanonicalTensor& tensor) {
  const std::vector<Slice> slices = tensor.slices(1);
  return std::ranges::min_element(slices, {}, &Slice::local_begin)->local_begin;
}

// Slices of one axis of a matrix as those of another axis of an adapter's tensor.
void hold_slices(CanonicalTensor& tensor, int axis, std::vector<Slice> slices,
                 int64_t local_begin = 0) {
  for (Slice& slice : slices) slice.local_begin -= local_begin;
  tensor.held.push_back({axis, std::move(slices)});
}

// A tensor without this ending is a parameter of a module itself.
constexpr std::string_view kWeightEnding = ".weight";

std::string module_of_experts(const CanonicalTensor& tensor) {
  return tensor.name.substr(0, tensor.name.size() - kWeightEnding.size());
}

std::optional<AdapterRules::Adapter> adapter_for(const AdapterRules& rules,
                                                 const CanonicalTensor& tensor) {
  return tensor.name.ends_with(kWeightEnding)
             ? rules.adapter_of(module_of_experts(tensor), AdaptedKind::linear)
             : rules.adapter_of_parameter(tensor.name);
}

std::string stored_tensor_name(const AdapterRules& rules, const CanonicalTensor& tensor,
                               bool is_b) {
  return tensor.name.ends_with(kWeightEnding)
             ? rules.stored_name(module_of_experts(tensor),
                                 is_b ? AdapterTensor::b : AdapterTensor::a)
             : rules.stored_parameter_name(tensor.name, is_b);
}

bool same_adapter(const std::optional<AdapterRules::Adapter>& a,
                  const std::optional<AdapterRules::Adapter>& b) {
  return a.has_value() == b.has_value() && (!a || (a->rank == b->rank && a->scale == b->scale));
}

}  // namespace

std::vector<Builder::AdaptedExperts> Builder::adapted_experts(const ParameterSpec& matrices) const {
  std::vector<AdaptedExperts> parts;
  for (CanonicalTensor& tensor : placement_(matrices.parameter.name, matrices.whole).tensors) {
    const int64_t begin = first_row(tensor);
    const auto adapter = adapter_for(*adapters_, tensor);
    auto part = std::ranges::find(parts, begin, &AdaptedExperts::begin);
    if (part == parts.end())
      part = parts.insert(part, {.begin = begin, .rows = tensor.global[1], .adapter = adapter});
    MG_CHECK(same_adapter(part->adapter, adapter),
             "the adapters of {} and {} differ in rank or alpha, or one of them has none; give all "
             "experts of a layer the same",
             part->tensors[0].name, tensor.name);
    part->tensors.push_back(std::move(tensor));
  }
  std::erase_if(parts, [](const AdaptedExperts& part) { return !part.adapter; });
  return parts;
}

Weight Builder::add_expert_tensor(const ParameterSpec& matrices, const AdaptedExperts& experts,
                                  bool is_b, const std::string& name) {
  const int64_t rank = experts.adapter->rank, in = matrices.whole[2];
  const int64_t rows = is_b ? experts.rows : rank, columns = is_b ? rank : in;
  parallel::Placement whole;
  for (const CanonicalTensor& matrix : experts.tensors) {
    CanonicalTensor tensor{.name = stored_tensor_name(*adapters_, matrix, is_b),
                           .global = {matrix.global[0], rows, columns},
                           .stacked = matrix.stacked};
    if (matrix.stacked) {
      hold_slices(tensor, 0, matrix.slices(0));
    } else {
      tensor.joined = is_b ? CanonicalTensor::Joined::columns : CanonicalTensor::Joined::rows;
    }
    if (is_b) {
      hold_slices(tensor, 1, matrix.slices(1), experts.begin);
    } else {
      hold_slices(tensor, 2, matrix.slices(2));
    }
    whole.tensors.push_back(std::move(tensor));
  }
  Options options{.divisions = {*division_of(matrices, 0)}};
  const Division* width = division_of(matrices, is_b ? 1 : 2);
  if (width == nullptr) {
    options.partial = ranks_.size(RankGroup::expert_tensor) > 1;
  } else {
    options.divisions.push_back(is_b ? rows_of_part(*width, experts.begin, rows).division : *width);
  }
  parallel::Init init = uniform_by(columns);
  if (is_b && !adapters_->random_b) init = zeros();
  if (!is_b && adapters_->gaussian_a) init = normal(1 / static_cast<double>(rank));
  return add(name, std::move(whole), {matrices.whole[0], rows, columns}, init, std::move(options));
}

ops::ExpertLowRank Builder::add_expert_adapter(const Parameter& matrices) {
  ops::ExpertLowRank adapter;
  if (adapters_ == nullptr) return adapter;
  const auto spec = std::ranges::find(
      parameters_, &matrices, [](const auto& placed) { return &std::as_const(placed->parameter); });
  MG_ASSERT(spec != parameters_.end() && (*spec)->whole.rank() == 3);
  const ParameterSpec& placed = **spec;
  for (const AdaptedExperts& experts : adapted_experts(placed)) {
    const std::string index = std::to_string(adapter.parts.size());
    ops::ExpertLowRank::Part part{.row = experts.begin, .scale = experts.adapter->scale};
    if (const Division* width = division_of(placed, 1))
      part.row = rows_of_part(*width, experts.begin, experts.rows).local_begin;
    part.a = add_expert_tensor(placed, experts, false, matrices.name + ".lora_a." + index);
    part.b = add_expert_tensor(placed, experts, true, matrices.name + ".lora_b." + index);
    parameters_.back()->rate_multiplier = adapters_->b_rate;
    adapter.parts.push_back(std::move(part));
  }
  if (!adapter.parts.empty()) added_to_experts_.emplace_back(matrices.name, adapter);
  return adapter;
}

}  // namespace megatron::nn
