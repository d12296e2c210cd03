#include "nn/sequence_state.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/machine_limits.h"

namespace megatron::nn {
namespace {

// Keys that a pass looks at grow in steps, so that shapes repeat from token to token.
constexpr int64_t kKeyStep = 128;

}  // namespace

int64_t SequenceStateShape::token_elements() const {
  int64_t elements = 0;
  for (const LayerCache& layer : layers) elements += 2 * layer.kv_heads * layer.head_size;
  return elements;
}

SequenceState::SequenceState(const SequenceStateShape& shape, DType type, Runtime& runtime)
    : shape_(shape), runtime_(runtime), lengths_(static_cast<size_t>(shape.sequences)) {
  const double bytes = static_cast<double>(shape.sequences) * static_cast<double>(shape.capacity) *
                       static_cast<double>(shape.token_elements()) *
                       static_cast<double>(size_of(type));
  MG_CHECK(
      !runtime.device().is_host() || bytes <= static_cast<double>(available_memory()),
      "the keys and values of {} sequences of {} tokens need {:.1f} GB, and this process has {}; "
      "use a smaller --batch-size or --max-tokens, or --bf16",
      shape.sequences, shape.capacity, bytes * 1e-9, available_memory_text());
  const auto zeros = [&](const LayerCache& layer, std::string_view label) {
    if (layer.kv_heads == 0) return Tensor();
    Tensor t = Tensor::empty(runtime.arena(MemoryClass::activations),
                             {shape.sequences, shape.capacity, layer.kv_heads, layer.head_size},
                             type, label);
    kernels::table(runtime.stream()).fill({.out = t, .value = 0}, runtime.stream());
    return t;
  };
  for (const LayerCache& layer : shape.layers) {
    keys_.push_back(zeros(layer, "sequence_state.keys"));
    values_.push_back(zeros(layer, "sequence_state.values"));
  }
}

Continuation SequenceState::next(int64_t first, int64_t sequences, int64_t tokens) {
  MG_ASSERT(first >= 0 && sequences > 0 && tokens > 0 && first + sequences <= shape_.sequences);
  const std::span<const int64_t> lengths = lengths_;
  const auto held = lengths.subspan(static_cast<size_t>(first), static_cast<size_t>(sequences));
  const int64_t needed = std::ranges::max(held) + tokens;
  const int64_t keys = std::min(shape_.capacity, (needed + kKeyStep - 1) / kKeyStep * kKeyStep);
  Arena& arena = runtime_.arena(MemoryClass::activations);
  Continuation c{
      .state = this,
      .first = first,
      .q_positions = Tensor::empty(arena, {sequences, tokens}, DType::i32, "state.q_positions"),
      .k_positions = Tensor::empty(arena, {sequences, keys}, DType::i32, "state.k_positions")};
  if (!runtime_.device().has_data()) return c;
  std::vector<int32_t> q(static_cast<size_t>(sequences * tokens)),
      k(static_cast<size_t>(sequences * keys));
  for (int64_t b = 0; b < sequences; ++b) {
    std::iota(q.begin() + b * tokens, q.begin() + (b + 1) * tokens,
              static_cast<int32_t>(held[static_cast<size_t>(b)]));
    std::iota(k.begin() + b * keys, k.begin() + (b + 1) * keys, 0);
  }
  copy_from(c.q_positions, std::span<const int32_t>(q), runtime_.stream());
  copy_from(c.k_positions, std::span<const int32_t>(k), runtime_.stream());
  return c;
}

void SequenceState::advance(int64_t first, std::span<const int64_t> counts) {
  MG_ASSERT(first >= 0 && first + static_cast<int64_t>(counts.size()) <= shape_.sequences);
  for (size_t b = 0; b < counts.size(); ++b) {
    int64_t& length = lengths_[static_cast<size_t>(first) + b];
    MG_ASSERT(counts[b] >= 0 && counts[b] <= shape_.capacity - length);
    length += counts[b];
  }
}

void SequenceState::truncate(int64_t sequence, int64_t length) {
  int64_t& held = lengths_.at(static_cast<size_t>(sequence));
  MG_ASSERT(length >= 0 && length <= held);
  held = length;
}

ops::Heads SequenceState::extend(Tape& tape, int64_t layer, const ops::Heads& heads,
                                 const Continuation& at) {
  MG_ASSERT(!tape.recording() && at.state == this);
  const Tensor &k = heads.k.value, &v = heads.v.value;
  const int64_t sequences = k.size(0), tokens = k.size(1), seen = at.k_positions.size(1);
  MG_ASSERT(at.q_positions.size(0) == sequences && at.q_positions.size(1) == tokens);
  const auto put = [&](const Tensor& from, const Tensor& cache) {
    for (int64_t b = 0; b < sequences; ++b) {
      const int64_t begin = lengths_[static_cast<size_t>(at.first + b)];
      const int64_t count = std::min(tokens, shape_.capacity - begin);
      if (count == 0) continue;
      tape.kernels().copy({.x = from.select(0, b).slice(0, 0, count),
                           .out = cache.select(0, at.first + b).slice(0, begin, count)},
                          tape.stream());
    }
    return cache.slice(0, at.first, sequences).slice(1, 0, seen);
  };
  return {heads.q, put(k, keys(layer)), put(v, values(layer))};
}

}  // namespace megatron::nn
