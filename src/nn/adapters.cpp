// Builder::add_adapter(): where the parameters of an adapter belong, from the matrix that it adds
// to.
#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "nn/builder.h"

namespace megatron::nn {
namespace {

using parallel::CanonicalTensor, parallel::Division, parallel::ParameterSpec, parallel::Slice;

const Division* division_of(const ParameterSpec& spec, int axis) {
  const auto found = std::ranges::find(spec.divisions, axis, &Division::axis);
  return found == spec.divisions.end() ? nullptr : &*found;
}

// The module whose weight a canonical tensor is; "" if it is no weight.
std::string module_of(const CanonicalTensor& tensor) {
  constexpr std::string_view kWeight = ".weight";
  if (!tensor.name.ends_with(kWeight)) return {};
  return tensor.name.substr(0, tensor.name.size() - kWeight.size());
}

// The blocks of a division of rows that make up [begin, begin + rows), as a division of these rows
// alone, and the first of them that this rank holds, as a row of its part of the matrix.
struct RowsOfPart {
  Division division;
  int64_t local_begin = 0;
};
RowsOfPart rows_of_part(const Division& whole, int64_t begin, int64_t rows) {
  RowsOfPart part{.division = whole};
  part.division.blocks.clear();
  int64_t at = 0, taken = 0;
  for (const int64_t block : whole.blocks) {
    if (at >= begin && at + block <= begin + rows) {
      part.division.blocks.push_back(block);
      taken += block;
    } else if (at + block <= begin) {
      part.local_begin += parallel::share_of(block, whole.ranks, whole.rank).size;
    }
    at += block;
  }
  MG_ASSERT(taken == rows);
  return part;
}

// Uniform with the bound that PyTorch's linear layers of this many inputs have.
parallel::Init uniform_by(int64_t in) {
  return {parallel::Init::Kind::uniform, 1 / std::sqrt(static_cast<double>(in))};
}

}  // namespace

const ParameterSpec& Builder::spec_of(const Parameter& parameter) const {
  const auto spec = std::ranges::find(parameters_, &parameter, [](const auto& placed) {
    return &std::as_const(placed->parameter);
  });
  MG_ASSERT(spec != parameters_.end() && (*spec)->whole.rank() == 2);
  return **spec;
}

std::vector<Builder::AdaptedPart> Builder::adapted_parts(const ParameterSpec& matrix,
                                                         AdaptedKind kind) const {
  std::vector<AdaptedPart> parts;
  for (CanonicalTensor& tensor : placement_(matrix.parameter.name, matrix.whole).tensors) {
    const std::string module = module_of(tensor);
    const auto adapter = module.empty() ? std::nullopt : adapters_->adapter_of(module, kind);
    if (!adapter) continue;
    AdaptedPart part{.module = module, .adapter = *adapter, .begin = matrix.whole[0]};
    for (const Slice& slice : tensor.slices(0)) {
      part.begin = std::min(part.begin, slice.local_begin);
      part.rows += slice.size;
    }
    part.tensor = std::move(tensor);
    parts.push_back(std::move(part));
  }
  return parts;
}

Parameter& Builder::add_a(const ParameterSpec& matrix, std::span<const AdaptedPart> parts,
                          size_t index) {
  const int64_t in = matrix.whole[1];
  parallel::Placement whole;
  int64_t rank = 0;
  for (const AdaptedPart& part : parts) {
    const int64_t r = part.adapter.rank;
    CanonicalTensor a{.name = adapters_->stored_name(part.module, AdapterTensor::a),
                      .global = {r, in}};
    a.held = {{0, {{0, rank, r}}}};
    for (const parallel::AxisSlices& slices : part.tensor.held)
      if (slices.axis == 1) a.held.push_back(slices);
    whole.tensors.push_back(std::move(a));
    rank += r;
  }
  const parallel::Init init = adapters_->gaussian_a
                                  ? normal(1 / static_cast<double>(parts[0].adapter.rank))
                                  : uniform_by(in);
  Options options{.partial = tensor().size() > 1};
  if (const Division* columns = division_of(matrix, 1)) options = {.divisions = {*columns}};
  if (matrix.divisions.empty()) options.partial.reset();
  return add(matrix.parameter.name + ".lora_a." + std::to_string(index), std::move(whole),
             {rank, in}, init, std::move(options));
}

ops::LowRank::Part Builder::add_b(const ParameterSpec& matrix, const AdaptedPart& part,
                                  size_t index) {
  std::vector<Slice> rows = part.tensor.slices(0);
  for (Slice& slice : rows) slice.local_begin -= part.begin;
  ops::LowRank::Part added{.row = part.begin};
  Options options{.partial = tensor().size() > 1};
  if (const Division* divided = division_of(matrix, 0)) {
    RowsOfPart own = rows_of_part(*divided, part.begin, part.rows);
    added.row = own.local_begin;
    options = {.divisions = {std::move(own.division)}};
  } else if (!matrix.divisions.empty()) {
    added.adds_bias = tensor().rank() == 0;  // the ranks' results are summed
  }
  if (matrix.divisions.empty()) options.partial.reset();
  const auto added_tensor = [&](AdapterTensor tensor, Shape shape, const char* name,
                                parallel::Init init) -> Parameter& {
    const CanonicalTensor canonical{
        .name = adapters_->stored_name(part.module, tensor), .global = shape, .held = {{0, rows}}};
    return add(fmt::format("{}.{}.{}", matrix.parameter.name, name, index),
               {.tensors = {canonical}}, shape, init, options);
  };
  const int64_t rank = part.adapter.rank;
  added.b = added_tensor(AdapterTensor::b, {part.rows, rank}, "lora_b",
                         adapters_->random_b ? uniform_by(rank) : zeros());
  if (part.adapter.b_bias)
    added.bias = added_tensor(AdapterTensor::b_bias, {part.rows}, "lora_b_bias", zeros());
  return added;
}

ops::LowRank::Block Builder::add_block(const ParameterSpec& matrix,
                                       std::span<const AdaptedPart> parts, size_t index) {
  ops::LowRank::Block block{.a = add_a(matrix, parts, index), .scale = parts[0].adapter.scale};
  int64_t first = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    block.parts.push_back(add_b(matrix, parts[i], index + i));
    block.parts.back().first = first;
    first += parts[i].adapter.rank;
  }
  return block;
}

ops::LowRank Builder::add_adapter(const Parameter& matrix, AdaptedKind kind) {
  if (adapters_ == nullptr) return {};
  const ParameterSpec& placed = spec_of(matrix);
  const std::vector<AdaptedPart> parts = adapted_parts(placed, kind);
  ops::LowRank adapter;
  // Consecutive parts of one scale share a block.
  for (size_t begin = 0; begin < parts.size();) {
    size_t end = begin + 1;
    while (end < parts.size() && parts[end].adapter.scale == parts[begin].adapter.scale) ++end;
    adapter.blocks.push_back(
        add_block(placed, std::span(parts).subspan(begin, end - begin), begin));
    begin = end;
  }
  if (adapter && kind == AdaptedKind::linear) added_.emplace_back(matrix.name, adapter);
  return adapter;
}

std::optional<Builder::TableAdapter> Builder::add_table_adapter(const Parameter& table) {
  if (adapters_ == nullptr) return std::nullopt;
  const ParameterSpec& placed = spec_of(table);
  const std::vector<AdaptedPart> parts = adapted_parts(placed, AdaptedKind::embedding);
  if (parts.empty()) return std::nullopt;
  const auto& [rank, scale, b_bias] = parts.at(0).adapter;
  const std::string& module = parts[0].module;
  const int64_t tokens = placed.whole[0], hidden = placed.whole[1];
  const std::string name = table.name;
  const std::vector<Division> divisions = placed.divisions;
  // On disk a is [r,V].
  const CanonicalTensor a{.name = adapters_->stored_name(module, AdapterTensor::embedding_a),
                          .global = {tokens, rank},
                          .transposed = true},
      b{.name = adapters_->stored_name(module, AdapterTensor::embedding_b),
        .global = {hidden, rank}};
  TableAdapter adapter{.scale = scale};
  adapter.a = add(name + ".lora_a", {.tensors = {a}}, {tokens, rank},
                  adapters_->random_b ? normal(1) : zeros(), {.divisions = divisions});
  adapter.b = add(name + ".lora_b", {.tensors = {b}}, {hidden, rank}, normal(1), Options());
  return adapter;
}

}  // namespace megatron::nn
