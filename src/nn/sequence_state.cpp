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
    const auto join = [&](const CacheGroup& own) {
      auto group = std::ranges::find_if(groups, [&](const auto& g) { return g.matches(own); });
      if (group == groups.end()) group = groups.insert(group, own);
      group->layers.push_back(static_cast<int64_t>(i));
      group->token_elements += own.slots ? 0 : layer.token_elements();
      group->slot_bytes += own.slots ? layer.slot_bytes() : 0;
    };
    if (layer.token_elements() > 0) join({.window = layer.window, .layers = {}});
    if (!layer.slot.empty()) join({.window = CacheGroup::kSlotWindow, .slots = true, .layers = {}});
  }
  CacheGroup cross{.of_encoder = true, .layers = {}};
  for (size_t i = 0; i < layers.size(); ++i) {
    if (layers[i].cross_elements() == 0) continue;
    cross.layers.push_back(static_cast<int64_t>(i));
    cross.token_elements += layers[i].cross_elements();
  }
  if (!cross.layers.empty()) groups.push_back(std::move(cross));
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
      slot_group_of_(shape.layers.size()),
      keys_(shape.layers.size()),
      values_(shape.layers.size()),
      cross_keys_(shape.layers.size()),
      cross_values_(shape.layers.size()),
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
      const LayerCache& cache = shape.layers[i];
      if (groups_[g].of_encoder) {
        for (Tensor* of : {&cross_keys_[i], &cross_values_[i]})
          *of = paged(cache.cross_heads, cache.cross_size, shape.pages[g], "sequence_state.cross");
        continue;
      }
      if (groups_[g].slots) {
        slot_group_of_[i] = g;
        if (cache.token_elements() == 0) group_of_[i] = g;
        for (const SlotTensor& tensor : cache.slot)
          slots_[i].push_back(
              zeros(with_slots(tensor.shape, shape.pages[g]), tensor.type, "sequence_state.slots"));
        continue;
      }
      group_of_[i] = g;
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
  TableWidths widths;  // entries per table

  int64_t sequences() const { return static_cast<int64_t>(parts.size()); }
  int64_t count() const { return parts[0].count; }
  int64_t blocks(const CacheGroup& group) const {
    return group.of_encoder ? widths.encoded : widths.blocks;
  }
};

std::vector<Run> runs_of(std::span<const SequencePart> parts, int64_t block_size,
                         const TableWidths& widths) {
  std::vector<Run> runs;
  int64_t token = 0;
  for (size_t i = 0; i < parts.size();) {
    size_t end = i;
    Run run{.parts = {}, .first = token, .widths = widths};
    for (; end < parts.size() && parts[end].count == parts[i].count; ++end) {
      const SequencePart& part = parts[end];
      run.widths.blocks =
          std::max(run.widths.blocks, ceil_div(part.begin + part.count, block_size));
      run.widths.encoded = std::max(run.widths.encoded, ceil_div(part.encoded, block_size));
    }
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
    if (groups_[group].slots) {
      for (const Tensor& slots : slots_[i]) copy(slots);
      continue;
    }
    for (const Tensor* pages : {&keys_[i], &values_[i]})
      if (pages->defined()) copy(pages->transpose(1, 2));  // which is contiguous
  }
}

bool SequenceState::numbers_pages() const {
  return std::ranges::any_of(shape_.layers,
                             [](const LayerCache& layer) { return layer.latent > 0; });
}

std::vector<int32_t> SequenceState::indices(std::span<const SequencePart> parts,
                                            std::span<const EncoderPart> texts,
                                            const TableWidths& widths) const {
  const int64_t size = shape_.block_size;
  std::vector<int32_t> indices;
  const auto push = [&](int64_t value) { indices.push_back(static_cast<int32_t>(value)); };
  // The row, over all pages, of the token at an index of a text.
  const auto push_row = [&](std::span<const int32_t> table, int64_t t) {
    push(t < 0 ? -1 : table[static_cast<size_t>(t / size)] * size + t % size);
  };
  for (const SequencePart& part : parts) {
    const bool padding = part.begin < 0;
    MG_ASSERT(part.count > 0 && part.tables.size() == (padding ? 0 : groups_.size()));
    MG_ASSERT(!padding || (part.begin == -1 && part.count == 1));
    for (size_t g = 0; g < part.tables.size(); ++g)
      MG_ASSERT(std::ssize(part.tables[g]) * size >=
                (groups_[g].of_encoder ? part.encoded : part.begin + part.count));
    for (int64_t t = 0; t < part.count; ++t) push(part.begin + t);
  }
  const std::vector<Run> runs = runs_of(parts, size, widths);
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (groups_[g].of_encoder) {
      for (const EncoderPart& text : texts)
        for (int64_t t = 0; t < text.count; ++t) push_row(text.pages, t);
      for (const SequencePart& part : parts)
        for (int64_t t = 0; t < part.count; ++t) push(part.encoded - 1);
    } else {
      for (const SequencePart& part : parts)
        for (int64_t t = part.begin; t < part.begin + part.count; ++t)
          push_row(part.begin < 0 ? std::span<const int32_t>() : part.tables[g], t);
    }
    for (const Run& run : runs) {
      const int64_t blocks = run.blocks(groups_[g]);
      for (const SequencePart& part : run.parts) {
        const auto table = part.begin < 0 ? std::span<const int32_t>() : part.tables[g];
        for (int64_t j = 0; j < blocks; ++j) {
          const auto i = static_cast<size_t>(j);
          push(i < table.size() ? std::max(table[i], 0) : 0);
        }
      }
      if (!numbers_pages()) continue;
      for (int64_t page = 0; page < run.sequences() * blocks; ++page) push(page);
    }
  }
  return indices;
}

std::vector<int32_t> SequenceState::indices(std::span<const SequencePart> parts,
                                            const TableWidths& widths) const {
  return indices(parts, {}, widths);
}

Continuation SequenceState::over(const Tensor& indices, std::span<const SequencePart> parts,
                                 std::span<const EncoderPart> texts, const TableWidths& widths) {
  const std::vector<Run> runs = runs_of(parts, shape_.block_size, widths);
  int64_t tokens = 0, encoded = 0;
  for (const SequencePart& part : parts) tokens += part.count;
  for (const EncoderPart& text : texts) encoded += text.count;
  Continuation c{.state = this, .groups = {}};
  int64_t at = tokens;
  const auto take = [&](int64_t count) {
    at += count;
    return indices.slice(0, at - count, count);
  };
  for (const CacheGroup& cached : groups_) {
    Continuation::Group group{.rows = take(cached.of_encoder ? encoded : tokens), .calls = {}};
    const Tensor positions = cached.of_encoder ? take(tokens) : indices.slice(0, 0, tokens);
    for (const Run& run : runs) {
      const int64_t rows = run.sequences(), count = run.count(), blocks = run.blocks(cached);
      group.calls.push_back(
          {.first = run.first,
           .q_positions = positions.slice(0, run.first, rows * count).view({rows, count}),
           .block_table = take(rows * blocks).view({rows, blocks}),
           .own_pages = numbers_pages() ? take(rows * blocks).view({rows, blocks}) : Tensor()});
    }
    c.groups.push_back(std::move(group));
  }
  return c;
}

Continuation SequenceState::over(const Tensor& indices, std::span<const SequencePart> parts,
                                 const TableWidths& widths) {
  return over(indices, parts, {}, widths);
}

Continuation SequenceState::next(std::span<const SequencePart> parts,
                                 std::span<const EncoderPart> texts) {
  const std::vector<int32_t> values = indices(parts, texts, {});
  Tensor all =
      Tensor::empty(runtime_.arena(MemoryClass::activations), {static_cast<int64_t>(values.size())},
                    DType::i32, "sequence_state.pass");
  if (runtime_.device().has_data())
    copy_from(all, std::span<const int32_t>(values), runtime_.stream());
  return over(all, parts, texts, {});
}

Tensor by_sequence(const Tensor& all, const TextRun& run) {
  const std::array<int64_t, 4> strides = {run.length * all.stride(1), all.stride(1), all.stride(2),
                                          1};
  return all.slice(1, run.first, run.texts * run.length)
      .as_strided({run.texts, run.length, all.size(2), all.size(3)}, strides);
}

Tensor by_sequence(const Tensor& all, const Continuation::Call& call) {
  return by_sequence(
      all,
      {.first = call.first, .texts = call.q_positions.size(0), .length = call.q_positions.size(1)});
}

namespace {

// Stores keys or values x [1,T,K,D] in their rows of the pages.
void put(Tape& tape, const Var& x, const Tensor& rows, const Tensor& pages) {
  tape.kernels().put_rows({.x = x.value.select(0, 0), .rows = rows, .out = pages}, tape.stream());
}

// Attention output [T, N D] of the queries [1,T,N,D] over the keys that each sees in the pages.
Tensor attend_pages(Tape& tape, const Tensor& q, const Tensor& keys, const Tensor& values,
                    const ops::AttentionOptions& options, const Continuation::Group& group) {
  const Tensor sinks = ops::sinks_of(options, q.size(2), tape);
  const Tensor out = tape.empty({1, q.size(1), q.size(2), q.size(3)}, q.dtype(), "attention.out");
  for (const Continuation::Call& call : group.calls) {
    const Tensor queries = by_sequence(q, call);
    tape.kernels().attention({.q = queries,
                              .k = keys,
                              .v = values,
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

}  // namespace

Tensor SequenceState::attend(Tape& tape, int64_t layer, const ops::Heads& heads,
                             const ops::AttentionOptions& options, const Continuation& at) const {
  MG_ASSERT(!tape.recording() && at.state == this && options.causal &&
            !options.window_start.defined());
  const Continuation::Group& group = this->group(at, layer);
  put(tape, heads.k, group.rows, keys(layer));
  put(tape, heads.v, group.rows, values(layer));
  return attend_pages(tape, heads.q.value, keys(layer), values(layer), options, group);
}

// A causal query sees all keys up to a position: here, to that of the text's last one.
Tensor SequenceState::attend_encoded(Tape& tape, int64_t layer, const ops::Heads& heads,
                                     const ops::AttentionOptions& options,
                                     const Continuation& at) const {
  MG_ASSERT(!tape.recording() && at.state == this && !options.bias.value.defined() &&
            options.window == 0 && !options.window_start.defined());
  MG_ASSERT(groups_.back().of_encoder);
  const Continuation::Group& group = at.groups.back();
  if (heads.k.value.defined()) {
    put(tape, heads.k, group.rows, cross_keys(layer));
    put(tape, heads.v, group.rows, cross_values(layer));
  }
  return attend_pages(tape, heads.q.value, cross_keys(layer), cross_values(layer), options, group);
}

}  // namespace megatron::nn
