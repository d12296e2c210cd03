// Builder::add_adapter(): where the parameters of an adapter belong, from the matrix that it adds
// to.
#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/philox.h"
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

ParameterSpec& Builder::spec_of(const Parameter& parameter) const {
  const auto spec = std::ranges::find(parameters_, &parameter, [](const auto& placed) {
    return &std::as_const(placed->parameter);
  });
  MG_ASSERT(spec != parameters_.end());
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

Weight Builder::add_a(const ParameterSpec& matrix, std::span<const AdaptedPart> parts,
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
  const Weight a = add(matrix.parameter.name + ".lora_a." + std::to_string(index), std::move(whole),
                       {rank, in}, init, std::move(options));
  std::vector<int64_t> ranks;
  for (const AdaptedPart& part : parts) ranks.push_back(part.adapter.rank);
  spec_of(*a.parameter).matrices = std::move(ranks);
  return a;
}

// Matrices that share x have one mask. Of a divided row of x, a rank has consecutive columns.
ops::LowRank::Dropout Builder::dropout_of(const ParameterSpec& matrix, double p) const {
  ops::LowRank::Dropout dropout{.p = static_cast<float>(p),
                                .seed = seed_,
                                .stream = random_stream(matrix.parameter.name, ".lora_dropout")};
  if (const Division* columns = division_of(matrix, 1)) {
    MG_ASSERT(columns->blocks.size() == 1);
    dropout.first_channel =
        parallel::share_of(columns->blocks[0], columns->ranks, columns->rank).global_begin;
  }
  if (matrix.divisions.empty() && tensor().divides_tokens())
    dropout.first_row = [tensor = tensor()](int64_t rows) {
      return tensor.tokens(rows).global_begin;
    };
  return dropout;
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
                                parallel::Init init) {
    const CanonicalTensor canonical{
        .name = adapters_->stored_name(part.module, tensor), .global = shape, .held = {{0, rows}}};
    return add(fmt::format("{}.{}.{}", matrix.parameter.name, name, index),
               {.tensors = {canonical}}, shape, init, options);
  };
  const int64_t rank = part.adapter.rank;
  added.b = added_tensor(AdapterTensor::b, {part.rows, rank}, "lora_b",
                         adapters_->random_b ? uniform_by(rank) : zeros());
  spec_of(*added.b.parameter).rate_multiplier = adapters_->b_rate;
  if (part.adapter.magnitude)
    added.magnitude = added_tensor(AdapterTensor::magnitude, {part.rows}, "lora_magnitude", ones());
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
  MG_ASSERT(placed.whole.rank() == 2);
  const std::vector<AdaptedPart> parts = adapted_parts(placed, kind);
  ops::LowRank adapter{.row_width = placed.whole[1]};
  if (division_of(placed, 1) != nullptr && tensor().size() > 1)
    adapter.add_up = [group = tensor().group](const Tensor& sums, Stream& stream) {
      group->all_reduce(sums, comm::Reduce::sum, stream, "dora.squares").wait(stream);
    };
  // Consecutive parts of one scale, and of one distribution of initial values, share a block.
  const auto share = [this](const AdapterRules::Adapter& x, const AdapterRules::Adapter& y) {
    return x.scale == y.scale && (x.rank == y.rank || !adapters_->gaussian_a);
  };
  for (size_t begin = 0; begin < parts.size();) {
    size_t end = begin + 1;
    while (end < parts.size() && share(parts[end].adapter, parts[begin].adapter)) ++end;
    adapter.blocks.push_back(
        add_block(placed, std::span(parts).subspan(begin, end - begin), begin));
    begin = end;
  }
  if (adapter) adapter.dropout = dropout_of(placed, parts[0].adapter.dropout);
  const bool listed = std::ranges::find(added_, matrix.name, [](const auto& a) -> const auto& {
                        return a.first;
                      }) != added_.end();  // by another use of a shared module
  if (adapter && kind == AdaptedKind::linear && !listed) added_.emplace_back(matrix.name, adapter);
  return adapter;
}

std::optional<Builder::TableAdapter> Builder::add_table_adapter(const Parameter& table) {
  if (adapters_ == nullptr) return std::nullopt;
  const ParameterSpec& placed = spec_of(table);
  const std::vector<AdaptedPart> parts = adapted_parts(placed, AdaptedKind::embedding);
  if (parts.empty()) return std::nullopt;
  const int64_t rank = parts.at(0).adapter.rank;
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
  TableAdapter adapter{.scale = parts[0].adapter.scale};
  adapter.a = add(name + ".lora_a", {.tensors = {a}}, {tokens, rank},
                  adapters_->random_b ? normal(1) : zeros(), {.divisions = divisions});
  adapter.b = add(name + ".lora_b", {.tensors = {b}}, {hidden, rank}, normal(1), Options());
  parameters_.back()->rate_multiplier = adapters_->b_rate;
  return adapter;
}

ops::ReplacedRows Builder::add_token_rows(const Parameter& table, AdaptedKind kind) {
  if (adapters_ == nullptr) return {};
  const ParameterSpec& placed = spec_of(table);
  const std::string module = module_of(placement_(table.name, placed.whole).tensors.at(0));
  const std::vector<int64_t> ids = adapters_->token_rows_of(module, kind);
  if (ids.empty()) return {};
  const parallel::Slice own = parallel::share_of(placed.whole[0], tensor().size(), tensor().rank());
  const int64_t count = std::ssize(ids), hidden = placed.whole[1];
  const auto uses = static_cast<int>(table.uses.size());
  const CanonicalTensor canonical{.name = adapters_->stored_name(module, AdapterTensor::token_rows),
                                  .global = {count, hidden}};
  ops::ReplacedRows replaced{.rows = add(table.name + ".rows", {.tensors = {canonical}},
                                         {count, hidden}, zeros(),
                                         {.uses = uses, .partial = tensor().size() > 1})};
  std::vector<std::pair<int64_t, int64_t>> sorted;  // row of the table, index
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = ids[static_cast<size_t>(i)] - own.global_begin;
    if (row >= 0 && row < own.size) sorted.emplace_back(row, i);
  }
  std::ranges::sort(sorted);
  for (const auto& [row, index] : sorted) {
    auto* last = replaced.runs.empty() ? nullptr : &replaced.runs.back();
    if (last != nullptr && last->row + last->count == row && last->first + last->count == index)
      ++last->count;
    else replaced.runs.push_back({.row = row, .first = index, .count = 1});
  }
  return replaced;
}

}  // namespace megatron::nn
