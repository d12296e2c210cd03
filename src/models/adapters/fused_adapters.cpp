#include "models/adapters/fused_adapters.h"

#include <algorithm>
#include <set>

#include "models/adapters/expert_layout.h"
#include "models/adapters/expert_modules.h"

namespace megatron::models {
namespace {

using checkpoint::ModelDirectory, checkpoint::WholeTensor;
using parallel::CanonicalTensor;

struct ExpertTensor {
  ExpertModule expert;
  bool is_b = false;
};

std::optional<ExpertTensor> expert_tensor(const std::string& tensor) {
  if (!tensor.starts_with(checkpoint::kAdapterPrefix)) return {};
  const StoredName name = parse_stored_name(tensor);
  const auto expert = expert_module(name.module);
  if (!expert || (name.part != AdapterPart::a && name.part != AdapterPart::b)) return {};
  return ExpertTensor{.expert = *expert, .is_b = name.part == AdapterPart::b};
}

std::vector<int64_t> sizes_of(const Shape& shape) {
  std::vector<int64_t> sizes;
  for (int d = 0; d < shape.rank(); ++d) sizes.push_back(shape[d]);
  return sizes;
}

// The stored tensors of a parameter's adapter; nothing if the directory does not have both.
struct StoredPair {
  std::string a, b;
  const checkpoint::TensorInfo *a_info = nullptr, *b_info = nullptr;
};
std::optional<StoredPair> stored_pair(const LoraConfig& config, const ModelDirectory& directory,
                                      const std::string& parameter) {
  StoredPair pair{.a = stored_parameter_name(config, parameter, AdapterPart::a),
                  .b = stored_parameter_name(config, parameter, AdapterPart::b)};
  pair.a_info = directory.find(pair.a);
  pair.b_info = directory.find(pair.b);
  if (pair.a_info == nullptr || pair.b_info == nullptr) return {};
  return pair;
}

// The layout of a pair, of whose matrix [out,in] one size is known; the other is the other one of
// the stored sizes.
ExpertLayout layout_of(const LoraConfig& config, const StoredPair& pair, const std::string& name,
                       int64_t experts, bool is_out, int64_t size) {
  const std::vector<int64_t> a = sizes_of(pair.a_info->shape), b = sizes_of(pair.b_info->shape);
  int64_t other = size;
  if (a.size() == 2 && b.size() == 2)
    other = (is_out ? b[0] : a[1]) == size ? (is_out ? a[1] : b[0]) : (is_out ? b[0] : a[1]);
  return expert_layout({.name = name,
                        .experts = experts,
                        .in = is_out ? other : size,
                        .out = is_out ? size : other,
                        .shape_a = a,
                        .shape_b = b,
                        .peft_version = config.peft_version});
}

}  // namespace

FusedAdapters::FusedAdapters(const LoraConfig& config, const ModelDirectory& directory,
                             std::vector<WholeTensor>& whole) {
  std::map<std::string, int64_t> experts;  // of each parameter
  for (const WholeTensor& tensor : whole)
    if (const auto found = expert_tensor(tensor.name)) {
      int64_t& count = experts[found->expert.parameter_name()];
      count = std::max(count, found->expert.number + 1);
    }
  std::vector<WholeTensor> kept;
  std::set<std::string> added;
  for (WholeTensor& tensor : whole) {
    const auto found = expert_tensor(tensor.name);
    const std::string parameter = found ? found->expert.parameter_name() : "";
    const bool has_own = !found || directory.find(tensor.name) != nullptr;
    const auto pair = has_own ? std::nullopt : stored_pair(config, directory, parameter);
    if (!pair) {
      kept.push_back(std::move(tensor));
      continue;
    }
    const bool is_b = found->is_b, halved = found->expert.parameter == "gate_up_proj";
    const int64_t rows = tensor.shape[0], columns = tensor.shape[1], count = experts[parameter];
    const int64_t out = halved ? 2 * rows : rows;  // if it is b
    const ExpertLayout layout =
        layout_of(config, *pair, parameter, count, is_b, is_b ? out : columns);
    const bool in_a = is_b == layout.swapped;
    CanonicalTensor stored{
        .name = in_a ? pair->a : pair->b,
        .global = {count, is_b ? out : rows, columns},
        .transposed = layout.swapped,
        .joined = in_a ? CanonicalTensor::Joined::rows : CanonicalTensor::Joined::columns};
    if (added.insert(stored.name).second)
      kept.push_back({stored.name, stored.stored_shape(), tensor.dtype});
    const int64_t row = is_b ? found->expert.half * rows : 0;
    stored_.emplace(tensor.name, Stored{.tensor = std::move(stored), .row = row});
  }
  whole = std::move(kept);
}

void FusedAdapters::replace(parallel::Placement& placement) const {
  const auto found = stored_.find(placement.tensors.at(0).name);
  if (found == stored_.end()) return;
  CanonicalTensor tensor = found->second.tensor;
  std::vector<parallel::Slice> experts;
  for (const CanonicalTensor& one : placement.tensors)
    for (const parallel::Slice& slice : one.slices(0))
      if (slice.size > 0)
        experts.push_back({.global_begin = expert_tensor(one.name)->expert.number,
                           .local_begin = slice.local_begin,
                           .size = 1});
  tensor.held = {{0, std::move(experts)}};
  for (const int axis : {1, 2}) {
    std::vector<parallel::Slice> slices = placement.tensors[0].slices(axis);
    if (axis == 1)
      for (parallel::Slice& slice : slices) slice.global_begin += found->second.row;
    tensor.held.push_back({axis, std::move(slices)});
  }
  placement.tensors = {std::move(tensor)};
}

}  // namespace megatron::models
