#include "parallel/weight_codes.h"

#include <algorithm>

#include "base/divide.h"
#include "kernels/table.h"

namespace megatron::parallel {
namespace {

using enum LowPrecisionRecipe;

LowPrecisionRecipe recipe_of(const LowPrecision& how) { return how.formats.recipe; }

// True if the scale of the weight follows from its largest element in this step.
bool has_tensor_scale(const LowPrecision& how) {
  return recipe_of(how) == tensorwise || recipe_of(how) == nvfp4;
}

// Blocks of a weight [.., out, in].
int64_t blocks_of(const Tensor& weight, int64_t edge) {
  const int64_t columns = weight.size(-1);
  return edge == 0 ? 1
                   : ceil_div(weight.elements() / std::max<int64_t>(1, columns), edge) *
                         ceil_div(columns, edge);
}

}  // namespace

int code_bits(const Parameter& parameter) {
  const auto& how = parameter.low_precision;
  if (!how || !parameter.trainable || recipe_of(*how) == mxfp8) return 0;
  const Shape& shape = parameter.value.shape();
  if (shape.rank() == 3 && shape[1] % how->formats.block() != 0) return 0;  // blocks of experts
  return recipe_of(*how) == nvfp4 ? 4 : 8;
}

WeightCodes::WeightCodes(const std::vector<Bucket>& buckets, const std::vector<Tensor>& shards,
                         const DataParallelGroups& groups, Runtime& runtime)
    : groups_(groups), runtime_(runtime) {
  for (size_t b = 0; b < buckets.size(); ++b)
    for (const Bucket::Entry& placed : buckets[b].entries)
      if (buckets[b].coded()) entries_.push_back(make_entry(buckets, b, placed, shards[b]));
  for (const bool expert : {false, true}) lay_out_maxima(expert);
}

void WeightCodes::lay_out_maxima(bool expert) {
  Maxima& maxima = maxima_[expert ? 1 : 0];
  struct Place {
    Entry* entry;
    int64_t tensor, first;  // of its blocks
  };
  std::vector<Place> places;
  for (Entry& entry : entries_)
    if (entry.expert == expert) places.push_back({.entry = &entry, .tensor = 0, .first = 0});
  if (places.empty()) return;
  int64_t count = 0;
  for (Place& place : places)
    if (has_tensor_scale(place.entry->how())) {
      place.tensor = place.first = count++;
      maxima.how = &place.entry->how();
    }
  maxima.of_tensors = count;
  for (const bool is_delayed : {false, true}) {
    for (Place& place : places) {
      const Entry& entry = *place.entry;
      if ((recipe_of(entry.how()) == delayed) != is_delayed || recipe_of(entry.how()) == tensorwise)
        continue;
      place.first = count;
      count += blocks_of(entry.weight().value, entry.part.edge);
    }
    if (!is_delayed) maxima.reduced = count;
  }
  Arena& arena = runtime_.arena(MemoryClass::parameters);
  maxima.all = Tensor::empty(arena, {count}, DType::f32, "weight maxima");
  const Tensor scales = Tensor::empty(arena, {maxima.of_tensors}, DType::f32, "weight scales");
  for (const auto& [entry, tensor, first] : places) {
    LowPrecision& how = entry->how();
    const int64_t edge = entry->part.edge;
    entry->maxima = maxima.all.slice(0, first, blocks_of(entry->weight().value, edge));
    if (has_tensor_scale(how)) {
      entry->amax = maxima.all.select(0, tensor);
      how.weight_scale = scales.select(0, tensor);
    }
    if (recipe_of(how) == delayed) how.weight_amax = maxima.all.select(0, first);
    if (recipe_of(how) == nvfp4) {
      const int64_t across = ceil_div(entry->part.columns, edge);
      how.weight_maxima = entry->maxima.view({entry->maxima.elements() / across, across});
    }
  }
}

WeightCodes::Entry WeightCodes::make_entry(const std::vector<Bucket>& buckets, size_t bucket,
                                           const Bucket::Entry& placed, const Tensor& shard) const {
  const Bucket& of = buckets[bucket];
  const int64_t first = rank_in(groups_.replicas(of.expert).shards) * of.shard,
                end = placed.begin + placed.size();
  const int64_t from = std::clamp(first, placed.begin, end),
                to = std::clamp(first + of.shard, placed.begin, end);
  Entry entry{.bucket = bucket, .placed = &placed, .expert = of.expert};
  entry.begin = from < to ? from - first : 0;
  entry.x = shard.slice(0, entry.begin, to - from);
  entry.part = {.begin = from - placed.begin,
                .columns = std::max<int64_t>(1, entry.weight().value.size(-1)),
                .edge = entry.how().formats.is_of_tensors() ? 0 : entry.how().formats.block()};
  return entry;
}

Tensor WeightCodes::Entry::scales() const {
  switch (recipe_of(how())) {
    case tensorwise: return how().weight_scale;
    case delayed: return how().scales->select(0, static_cast<int64_t>(Operand::weight));
    default: return maxima;
  }
}

Tensor WeightCodes::Entry::scale() const {
  return recipe_of(how()) == nvfp4 ? how().weight_scale : Tensor();
}

void WeightCodes::find_maxima(const Entry& entry) const {
  if (entry.x.elements() == 0) return;
  Stream& stream = runtime_.stream();
  const kernels::Table& table = kernels::table(stream);
  if (entry.part.edge > 0)
    return table.part_amax({.x = entry.x, .part = entry.part, .maxima = entry.maxima}, stream);
  table.amax(
      {.x = entry.x.view({1, entry.x.elements()}), .out = {.out = entry.maxima.select(0, 0)}},
      stream);
}

void WeightCodes::reduce(const Maxima& maxima, bool expert) const {
  if (maxima.reduced == 0) return;
  Stream& stream = runtime_.stream();
  groups_.replicas(expert)
      .shards
      ->all_reduce(maxima.all.slice(0, 0, maxima.reduced), comm::Reduce::max, stream,
                   "weight maxima")
      .wait(stream);
  for (const Entry& entry : entries_)
    if (entry.expert == expert && recipe_of(entry.how()) == nvfp4)
      kernels::table(stream).amax({.x = entry.how().weight_maxima, .out = {.out = entry.amax}},
                                  stream);
  if (maxima.how != nullptr && maxima.how->of_parts)
    maxima.how->of_parts(maxima.all.slice(0, 0, maxima.of_tensors), stream);
}

void WeightCodes::find_scales() {
  Stream& stream = runtime_.stream();
  const kernels::Table& table = kernels::table(stream);
  for (const Maxima& maxima : maxima_)
    if (maxima.all.defined()) table.fill({.out = maxima.all, .value = 0}, stream);
  for (const Entry& entry : entries_) find_maxima(entry);
  for (const bool expert : {false, true}) reduce(maxima_[expert ? 1 : 0], expert);
  for (const Entry& entry : entries_) {
    const LowPrecision& how = entry.how();
    if (!has_tensor_scale(how)) continue;
    const double largest = facts_of(how.formats.forward).largest;
    table.tensor_scale({.largest = recipe_of(how) == nvfp4 ? kLargestFp4 : largest,
                        .amax = entry.amax,
                        .scale = how.weight_scale},
                       stream);
  }
}

void WeightCodes::encode(size_t bucket, const Tensor& codes) const {
  for (const Entry& entry : entries_) {
    const int64_t n = entry.x.elements();
    if (entry.bucket != bucket || n == 0) continue;
    const LowFormat format = entry.how().formats.forward;
    kernels::table(runtime_.stream())
        .encode_part({.format = format,
                      .part = entry.part,
                      .x = entry.x,
                      .scales = entry.scales(),
                      .codes = codes.slice(0, kernels::code_bytes(format, entry.begin),
                                           kernels::code_bytes(format, n)),
                      .scale = entry.scale()},
                     runtime_.stream());
  }
}

void WeightCodes::decode(size_t bucket, const Tensor& codes, const Tensor& values) const {
  for (const Entry& entry : entries_) {
    if (entry.bucket != bucket) continue;
    const int64_t begin = entry.placed->begin, n = entry.placed->size();
    kernels::MatrixPart whole = entry.part;
    whole.begin = 0;
    const LowFormat format = entry.how().formats.forward;
    kernels::table(runtime_.stream())
        .decode_part({.format = format,
                      .part = whole,
                      .codes = codes.slice(0, kernels::code_bytes(format, begin),
                                           kernels::code_bytes(format, n)),
                      .scales = entry.scales(),
                      .out = values.slice(0, begin, n),
                      .scale = entry.scale()},
                     runtime_.stream());
  }
}

}  // namespace megatron::parallel
