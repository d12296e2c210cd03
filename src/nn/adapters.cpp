// Builder::add_adapter(): where the parameters of an adapter belong, from the matrix that it adds
// to.
#include <algorithm>

#include "base/error.h"
#include "nn/adapter_parts.h"
#include "nn/builder.h"

namespace megatron::nn {
namespace {

using parallel::CanonicalTensor, parallel::Division, parallel::ParameterSpec, parallel::Slice;

// The module whose weight a canonical tensor is; "" if it is no weight.
std::string module_of(const CanonicalTensor& tensor) {
  constexpr std::string_view kWeight = ".weight";
  if (!tensor.name.ends_with(kWeight)) return {};
  return tensor.name.substr(0, tensor.name.size() - kWeight.size());
}

}  // namespace

std::vector<Builder::AdaptedPart> Builder::adapted_parts(const ParameterSpec& matrix) const {
  std::vector<AdaptedPart> parts;
  for (CanonicalTensor& tensor : placement_(matrix.parameter.name, matrix.whole).tensors) {
    const std::string module = module_of(tensor);
    const auto adapter = module.empty() ? std::nullopt : adapters_->adapter_of(module);
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
    CanonicalTensor a{.name = adapters_->stored_name(part.module, false), .global = {r, in}};
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
                                  const std::string& name) {
  CanonicalTensor b{.name = adapters_->stored_name(part.module, true),
                    .global = {part.rows, part.adapter.rank}};
  std::vector<Slice> rows = part.tensor.slices(0);
  for (Slice& slice : rows) slice.local_begin -= part.begin;
  b.held = {{0, std::move(rows)}};
  ops::LowRank::Part added{.row = part.begin};
  Options options{.partial = tensor().size() > 1};
  if (const Division* divided = division_of(matrix, 0)) {
    RowsOfPart own = rows_of_part(*divided, part.begin, part.rows);
    added.row = own.local_begin;
    options = {.divisions = {std::move(own.division)}};
  }
  if (matrix.divisions.empty()) options.partial.reset();
  added.b = add(name, {.tensors = {std::move(b)}}, {part.rows, part.adapter.rank},
                adapters_->random_b ? uniform_by(part.adapter.rank) : zeros(), std::move(options));
  return added;
}

ops::LowRank::Block Builder::add_block(const ParameterSpec& matrix,
                                       std::span<const AdaptedPart> parts, size_t index) {
  ops::LowRank::Block block{.a = add_a(matrix, parts, index), .scale = parts[0].adapter.scale};
  int64_t first = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    block.parts.push_back(
        add_b(matrix, parts[i], matrix.parameter.name + ".lora_b." + std::to_string(index + i)));
    block.parts.back().first = first;
    first += parts[i].adapter.rank;
  }
  return block;
}

ops::LowRank Builder::add_adapter(const Parameter& matrix) {
  if (adapters_ == nullptr) return {};
  const auto spec = std::ranges::find(
      parameters_, &matrix, [](const auto& placed) { return &std::as_const(placed->parameter); });
  MG_ASSERT(spec != parameters_.end() && (*spec)->whole.rank() == 2);
  const ParameterSpec& placed = **spec;
  const std::vector<AdaptedPart> parts = adapted_parts(placed);
  ops::LowRank adapter;
  // Consecutive parts of one scale share a block.
  for (size_t begin = 0; begin < parts.size();) {
    size_t end = begin + 1;
    while (end < parts.size() && parts[end].adapter.scale == parts[begin].adapter.scale) ++end;
    adapter.blocks.push_back(
        add_block(placed, std::span(parts).subspan(begin, end - begin), begin));
    begin = end;
  }
  return adapter;
}

}  // namespace megatron::nn
