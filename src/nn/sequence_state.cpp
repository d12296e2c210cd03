#include "nn/sequence_state.h"

#include <algorithm>

#include "base/divide.h"
#include "base/error.h"
#include "base/machine_limits.h"
#include "ops/attention_sinks.h"

namespace megatron::nn {

int64_t LayerCache::slot_bytes() const {
  int64_t bytes = 0;
  for (const SlotTensor& tensor : slot) bytes += tensor.shape.elements() * size_of(tensor.type);
  return bytes;
}

std::vector<CacheGroup> cache_groups(std::span<const LayerCache> layers) {
  std::vector<CacheGroup> groups;
  for (size_t i = 0; i < layers.size(); ++i) {
    const LayerCache& layer = layers[i];
    const bool slots = !layer.slot.empty();
    if (layer.token_elements() == 0 && !slots) continue;
    MG_ASSERT(!slots || layer.token_elements() == 0);
    const CacheGroup own{
        .window = slots ? CacheGroup::kSlotWindow : layer.window, .slots = slots, .layers = {}};
    auto group = std::ranges::find_if(groups, [&](const auto& g) { return g.matches(own); });
    if (group == groups.end()) group = groups.insert(group, own);
    group->layers.push_back(static_cast<int64_t>(i));
    group->token_elements += layer.token_elements();
    group->slot_bytes += layer.slot_bytes();
  }
  return groups;
}

int64_t SequenceStateShape::bytes(DType type) const {
  const std::vector<CacheGroup> groups = cache_groups(layers);
  MG_ASSERT(pages.size() == groups.size());
  int64_t bytes = 0;
  for (size_t g = 0; g < groups.size(); ++g)
    bytes +=
        pages[g] * (block_size * groups[g].token_elements * size_of(type) + groups[g].slot_bytes);
  return bytes;
}

namespace {

Shape with_slots(const Shape& shape, int64_t slots) {
  std::vector<int64_t> sizes = {slots};
  for (int d = 0; d < shape.rank(); ++d) sizes.push_back(shape[d]);
  return Shape(std::span<const int64_t>(sizes));
}

}  // namespace

SequenceState::SequenceState(const SequenceStateShape& shape, DType type, Runtime& runtime)
    : shape_(shape),
      runtime_(runtime),
      groups_(cache_groups(shape.layers)),
      group_of_(shape.layers.size()),
      keys_(shape.layers.size()),
      values_(shape.layers.size()),
      slots_(shape.layers.size()) {
  MG_ASSERT(shape.block_size > 0 && shape.block_size % kernels::kPageKeys == 0);
  const auto bytes = static_cast<double>(shape.bytes(type));
  MG_CHECK(!runtime.device().is_host() || bytes <= static_cast<double>(available_memory()),
           "the KV cache needs {:.1f} GB, but this process has {}; lower "
           "--inference-dynamic-batching-buffer-size-gb or "
           "--inference-dynamic-batching-max-requests, or use --bf16",
           bytes * 1e-9, available_memory_text());
  const auto zeros = [&](const Shape& sizes, DType of, std::string_view label) {
    Tensor t = Tensor::empty(runtime.arena(MemoryClass::activations), sizes, of, label);
    kernels::table(runtime.stream()).fill({.out = t, .value = 0}, runtime.stream());
    return t;
  };
  const auto paged = [&](int64_t heads, int64_t size, int64_t pages, std::string_view label) {
    // What attention reads for one head is contiguous.
    return zeros({pages, heads, shape.block_size, size}, type, label).transpose(1, 2);
  };
  for (size_t g = 0; g < groups_.size(); ++g) {
    for (const int64_t layer : groups_[g].layers) {
      const auto i = static_cast<size_t>(layer);
      group_of_[i] = g;
      const LayerCache& cache = shape.layers[i];
      for (const SlotTensor& tensor : cache.slot)
        slots_[i].push_back(
            zeros(with_slots(tensor.shape, shape.pages[g]), tensor.type, "sequence_state.slots"));
      if (!cache.slot.empty()) continue;
      if (cache.latent > 0) {
        keys_[i] = paged(1, cache.latent, shape.pages[g], "sequence_state.latents");
        continue;
      }
      keys_[i] = paged(cache.kv_heads, cache.head_size, shape.pages[g], "sequence_state.keys");
      values_[i] = paged(cache.kv_heads, cache.head_size, shape.pages[g], "sequence_state.values");
    }
  }
}

namespace {

// Adjacent parts of equal counts.
struct Run {
  std::span<const SequencePart> parts;
  int64_t first = 0;   // index of its first token
  int64_t blocks = 0;  // blocks per table

  int64_t sequences() const { return static_cast<int64_t>(parts.size()); }
  int64_t count() const { return parts[0].count; }
};

std::vector<Run> runs_of(std::span<const SequencePart> parts, int64_t block_size, int64_t blocks) {
  std::vector<Run> runs;
  int64_t token = 0;
  for (size_t i = 0; i < parts.size();) {
    size_t end = i;
    Run run{.parts = {}, .first = token, .blocks = blocks};
    for (; end < parts.size() && parts[end].count == parts[i].count; ++end)
      run.blocks = std::max(run.blocks, ceil_div(parts[end].begin + parts[end].count, block_size));
    run.parts = parts.subspan(i, end - i);
    token += run.sequences() * run.count();
    runs.push_back(run);
    i = end;
  }
  return runs;
}

}  // namespace

void SequenceState::copy_pages(size_t group, std::span<const int32_t> from,
                               std::span<const int32_t> to) {
  Stream& stream = runtime_.stream();
  const auto copy = [&](const Tensor& pages) {
    for (size_t i = 0; i < from.size(); ++i)
      kernels::table(stream).copy({.x = pages.select(0, from[i]), .out = pages.select(0, to[i])},
                                  stream);
  };
  for (const int64_t layer : groups_[group].layers) {
    const auto i = static_cast<size_t>(layer);
    for (const Tensor* pages : {&keys_[i], &values_[i]})
      if (pages->defined()) copy(pages->transpose(1, 2));  // which is contiguous
    for (const Tensor& slots : slots_[i]) copy(slots);
  }
}

bool SequenceState::numbers_pages() const {
  return std::ranges::any_of(shape_.layers,
                             [](const LayerCache& layer) { return layer.latent > 0; });
}

std::vector<int32_t> SequenceState::indices(std::span<const SequencePart> parts,
                                            int64_t blocks) const {
  const int64_t size = shape_.block_size;
  std::vector<int32_t> indices;
  const auto push = [&](int64_t value) { indices.push_back(static_cast<int32_t>(value)); };
  for (const SequencePart& part : parts) {
    const bool padding = part.begin < 0;
    MG_ASSERT(part.count > 0 && part.tables.size() == (padding ? 0 : groups_.size()));
    MG_ASSERT(!padding || (part.begin == -1 && part.count == 1));
    for (const auto& table : part.tables)
      MG_ASSERT(static_cast<int64_t>(table.size()) * size >= part.begin + part.count);
    for (int64_t t = 0; t < part.count; ++t) push(part.begin + t);
  }
  const std::vector<Run> runs = runs_of(parts, size, blocks);
  for (size_t g = 0; g < groups_.size(); ++g) {
    for (const SequencePart& part : parts) {
      for (int64_t t = part.begin; t < part.begin + part.count; ++t)
        push(t < 0 ? -1 : part.tables[g][static_cast<size_t>(t / size)] * size + t % size);
    }
    for (const Run& run : runs) {
      for (const SequencePart& part : run.parts) {
        const auto table = part.begin < 0 ? std::span<const int32_t>() : part.tables[g];
        for (int64_t j = 0; j < run.blocks; ++j) {
          const auto i = static_cast<size_t>(j);
          push(i < table.size() ? std::max(table[i], 0) : 0);
        }
      }
      if (!numbers_pages()) continue;
      for (int64_t page = 0; page < run.sequences() * run.blocks; ++page) push(page);
    }
  }
  return indices;
}

Continuation SequenceState::over(const Tensor& indices, std::span<const SequencePart> parts,
                                 int64_t blocks) {
  const std::vector<Run> runs = runs_of(parts, shape_.block_size, blocks);
  int64_t tokens = 0;
  for (const SequencePart& part : parts) tokens += part.count;
  Continuation c{.state = this, .groups = {}};
  int64_t at = tokens;
  const auto take = [&](int64_t count) {
    at += count;
    return indices.slice(0, at - count, count);
  };
  for (size_t g = 0; g < groups_.size(); ++g) {
    Continuation::Group group{.rows = take(tokens), .calls = {}};
    for (const Run& run : runs) {
      const int64_t rows = run.sequences(), count = run.count();
      group.calls.push_back(
          {.first = run.first,
           .q_positions = indices.slice(0, run.first, rows * count).view({rows, count}),
           .block_table = take(rows * run.blocks).view({rows, run.blocks}),
           .own_pages =
               numbers_pages() ? take(rows * run.blocks).view({rows, run.blocks}) : Tensor()});
    }
    c.groups.push_back(std::move(group));
  }
  return c;
}

Continuation SequenceState::next(std::span<const SequencePart> parts) {
  const std::vector<int32_t> values = indices(parts);
  Tensor all =
      Tensor::empty(runtime_.arena(MemoryClass::activations), {static_cast<int64_t>(values.size())},
                    DType::i32, "sequence_state.pass");
  if (runtime_.device().has_data())
    copy_from(all, std::span<const int32_t>(values), runtime_.stream());
  return over(all, parts);
}

Tensor by_sequence(const Tensor& all, const Continuation::Call& call) {
  const int64_t sequences = call.q_positions.size(0), tokens = call.q_positions.size(1);
  const std::array<int64_t, 4> strides = {tokens * all.stride(1), all.stride(1), all.stride(2), 1};
  return all.slice(1, call.first, sequences * tokens)
      .as_strided({sequences, tokens, all.size(2), all.size(3)}, strides);
}

Tensor SequenceState::attend(Tape& tape, int64_t layer, const ops::Heads& heads,
                             const ops::AttentionOptions& options, const Continuation& at) const {
  MG_ASSERT(!tape.recording() && at.state == this && options.causal &&
            !options.window_start.defined());
  const Continuation::Group& group = this->group(at, layer);
  const auto put = [&](const Var& x, const Tensor& pages) {
    tape.kernels().put_rows({.x = x.value.select(0, 0), .rows = group.rows, .out = pages},
                            tape.stream());
  };
  put(heads.k, keys(layer));
  put(heads.v, values(layer));
  const Tensor& q = heads.q.value;
  const Tensor sinks = ops::sinks_of(options, q.size(2), tape);
  const Tensor out = tape.empty({1, q.size(1), q.size(2), q.size(3)}, q.dtype(), "attention.out");
  for (const Continuation::Call& call : group.calls) {
    const Tensor queries = by_sequence(q, call);
    tape.kernels().attention({.q = queries,
                              .k = keys(layer),
                              .v = values(layer),
                              .q_positions = call.q_positions,
                              .k_positions = {},
                              .block_table = call.block_table,
                              .window_start = {},
                              .scale = options.scale,
                              .window = options.window,
                              .chunk = options.chunk,
                              .soft_cap = options.soft_cap,
                              .sinks = sinks,
                              .bias = options.bias.value,
                              .dropout = {},
                              .out = by_sequence(out, call),
                              .lse = tape.empty({queries.size(0), queries.size(2), queries.size(1)},
                                                kernels::accumulator(q.dtype()), "attention.lse")},
                             tape.stream());
  }
  return out.view({q.size(1), q.size(2) * q.size(3)});
}

}  // namespace megatron::nn
