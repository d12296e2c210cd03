#include "models/families/tensor_map.h"

#include <algorithm>
#include <map>
#include <span>

#include "base/error.h"

namespace megatron::models {
namespace {

using parallel::CanonicalTensor;

// "layers.3.attention.qkv.weight" is {"3", "attention.qkv.weight"}; outside of layers the first is
// empty.
struct ParameterName {
  std::string layer, rest;
};

ParameterName split_name(const std::string& name) {
  if (!name.starts_with("layers.")) return {"", name};
  const size_t dot = name.find('.', 7);
  return {name.substr(7, dot - 7), name.substr(dot + 1)};
}

std::string with_layer(std::string pattern, const std::string& layer) {
  const size_t star = pattern.find('*');
  return star == pattern.npos ? pattern : pattern.replace(star, 1, layer);
}

bool names(const TensorName& row, const std::string& rest) {
  return rest.starts_with(row.ours) &&
         (rest.size() == row.ours.size() || rest[row.ours.size()] == '.');
}

// Rows of a layer's [q | k | v].
struct QkvRows {
  int64_t head, heads, kv_heads;
  int64_t q() const { return heads * head; }
  int64_t k() const { return kv_heads * head; }
};

QkvRows qkv_rows(const DecoderValue& value, const std::string& layer) {
  const nn::AttentionConfig* a = value.layer(std::stoll(layer)).attention();
  MG_ASSERT(a != nullptr);
  return {a->head_size, a->heads, a->kv_heads};
}

// Rows [begin, begin + rows) of our parameter as a tensor of its own.
CanonicalTensor rows_of(CanonicalTensor tensor, int64_t begin, int64_t rows) {
  tensor.global.set(0, rows);
  tensor.held = {{0, {{0, begin, rows}}}};
  return tensor;
}

CanonicalTensor grouped(CanonicalTensor tensor, const QkvRows& rows) {
  const int64_t queries = rows.heads / rows.kv_heads * rows.head;
  parallel::AxisSlices held{.axis = 0, .slices = {}};
  int64_t theirs = 0;
  for (int64_t group = 0; group < rows.kv_heads; ++group) {
    for (const auto& [ours, size] : {std::pair{group * queries, queries},
                                     {rows.q() + group * rows.head, rows.head},
                                     {rows.q() + rows.k() + group * rows.head, rows.head}}) {
      held.slices.push_back({.global_begin = theirs, .local_begin = ours, .size = size});
      theirs += size;
    }
  }
  tensor.held = {std::move(held)};
  return tensor;
}

// Rows [begin, begin + rows) of each expert's matrix as tensors of their own.
std::vector<CanonicalTensor> of_experts(const CanonicalTensor& all, int64_t begin, int64_t rows) {
  std::vector<CanonicalTensor> tensors;
  for (int64_t e = 0; e < all.global[0]; ++e) {
    CanonicalTensor tensor = all;
    tensor.name.replace(tensor.name.find('#'), 1, std::to_string(e));
    tensor.stacked = true;
    tensor.global.set(0, 1);
    tensor.held = {{0, {{0, e, 1}}}};
    if (rows != all.global[1]) {
      tensor.global.set(1, rows);
      tensor.held.push_back({1, {{0, begin, rows}}});
    }
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

// Rows of [gate | up] that are stored interleaved.
CanonicalTensor interleaved(CanonicalTensor tensor) {
  const int64_t half = tensor.global[1] / 2;
  parallel::AxisSlices held{.axis = 1, .slices = {}};
  for (int64_t i = 0; i < half; ++i) {
    held.slices.push_back({.global_begin = 2 * i, .local_begin = i, .size = 1});
    held.slices.push_back({.global_begin = 2 * i + 1, .local_begin = half + i, .size = 1});
  }
  tensor.held = {std::move(held)};
  tensor.transposed = tensor.global.rank() == 3;
  return tensor;
}

std::vector<CanonicalTensor> taken_of_experts(Take take, CanonicalTensor tensor) {
  const int64_t rows = tensor.global[1];
  switch (take) {
    case Take::experts: return of_experts(tensor, 0, rows);
    case Take::experts_gate: return of_experts(tensor, 0, rows / 2);
    case Take::experts_up: return of_experts(tensor, rows / 2, rows / 2);
    case Take::experts_interleaved: return {interleaved(std::move(tensor))};
    default: tensor.transposed = tensor.global.rank() == 3; return {std::move(tensor)};
  }
}

bool is_of_experts(Take take) {
  return take == Take::experts || take == Take::experts_gate || take == Take::experts_up ||
         take == Take::experts_stored_in_out || take == Take::experts_interleaved;
}

CanonicalTensor taken(const TensorName& row, CanonicalTensor tensor, const DecoderValue& value,
                      const std::string& layer) {
  switch (row.take) {
    case Take::all: return tensor;
    case Take::transposed: tensor.transposed = tensor.global.rank() == 2; return tensor;
    case Take::gate: return rows_of(tensor, 0, tensor.global[0] / 2);
    case Take::up: return rows_of(tensor, tensor.global[0] / 2, tensor.global[0] / 2);
    default: break;
  }
  const QkvRows rows = qkv_rows(value, layer);
  switch (row.take) {
    case Take::q: return rows_of(tensor, 0, rows.q());
    case Take::k: return rows_of(tensor, rows.q(), rows.k());
    case Take::v: return rows_of(tensor, rows.q() + rows.k(), rows.k());
    default: return grouped(tensor, rows);
  }
}

// What precedes the names of a layer's tensors, and the rows that name them.
struct Named {
  std::string prefix;
  std::span<const TensorName> rows;
};
Named place_of(const FamilyTensors& map, const DecoderValue& value, const std::string& layer) {
  if (layer.empty()) return {"", map.outside};
  const int64_t index = std::stoll(layer);
  if (map.encoder_prefix.empty()) return {with_layer(map.layer_prefix, layer), map.layer};
  if (index < value.encoder_layers)
    return {with_layer(map.encoder_prefix, layer), map.encoder_layer};
  return {with_layer(map.layer_prefix, std::to_string(index - value.encoder_layers)), map.layer};
}

}  // namespace

parallel::Placement placement_of(const FamilyTensors& map, const DecoderValue& value,
                                 const std::string& parameter, const Shape& shape) {
  const ParameterName name = split_name(parameter);
  const auto [prefix, rows] = place_of(map, value, name.layer);
  parallel::Placement placement;
  for (const TensorName& row : rows) {
    if (!names(row, name.rest)) continue;
    const std::string theirs = std::string(row.theirs) + name.rest.substr(row.ours.size());
    CanonicalTensor whole{.name = prefix + theirs, .global = shape};
    if (is_of_experts(row.take)) {
      const std::vector<CanonicalTensor> all = taken_of_experts(row.take, std::move(whole));
      placement.tensors.insert(placement.tensors.end(), all.begin(), all.end());
    } else {
      placement.tensors.push_back(taken(row, std::move(whole), value, name.layer));
    }
  }
  constexpr std::string_view kScore = "score.weight";  // in every family that has one
  if (placement.tensors.empty() && parameter == kScore)
    placement.tensors.push_back({.name = parameter, .global = shape});
  MG_CHECK(!placement.tensors.empty(), "the family has no name for the parameter '{}'", parameter);
  // Several rows: together they are the parameter.
  int64_t elements = 0;
  for (const CanonicalTensor& tensor : placement.tensors) elements += tensor.global.elements();
  MG_ASSERT(elements == shape.elements());
  return placement;
}

std::string original_in_block(const FamilyTensors& map, const DecoderValue& value,
                              std::string_view tensor) {
  std::map<int64_t, int64_t> first;  // layer by block
  for (int64_t i = 0; i < value.num_layers(); ++i) {
    const auto* shared = std::get_if<SharedBlockConfig>(&value.layer(i).mixer);
    if (shared == nullptr) continue;
    const auto [owner, is_first] = first.emplace(shared->block, i);
    const std::string prefix = with_layer(map.layer_prefix, std::to_string(i));
    if (is_first || !tensor.starts_with(prefix)) continue;
    const std::string rest(tensor.substr(prefix.size()));
    for (const TensorName& row : map.layer)
      if (row.ours.starts_with("attention.shared.") && rest.starts_with(row.theirs) &&
          rest.substr(row.theirs.size()).starts_with('.'))
        return with_layer(map.layer_prefix, std::to_string(owner->second)) + rest;
  }
  return {};
}

bool matches(std::string_view pattern, std::string_view name) {
  const size_t star = pattern.find('*');
  if (star == pattern.npos)
    return pattern.ends_with('.') ? name.starts_with(pattern) && name.size() > pattern.size()
                                  : name == pattern;
  if (!name.starts_with(pattern.substr(0, star))) return false;
  const std::string_view rest = name.substr(star);
  const size_t digits = std::min(rest.find_first_not_of("0123456789"), rest.size());
  return digits > 0 && matches(pattern.substr(star + 1), rest.substr(digits));
}

}  // namespace megatron::models
