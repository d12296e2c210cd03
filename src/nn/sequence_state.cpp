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

int64_t SequenceStateShape::room(const LayerCache& layer) const {
  if (layer.window == 0 || layer.window >= capacity) return capacity;
  const int64_t window = (layer.window + kKeyStep - 1) / kKeyStep * kKeyStep;
  return std::min(capacity, window + 2 * kKeyStep);
}

int64_t SequenceStateShape::elements() const {
  int64_t elements = 0;
  for (const LayerCache& layer : layers)
    elements += 2 * sequences * room(layer) * layer.kv_heads * layer.head_size;
  return elements;
}

SequenceState::SequenceState(const SequenceStateShape& shape, DType type, Runtime& runtime)
    : shape_(shape), runtime_(runtime), lengths_(static_cast<size_t>(shape.sequences)) {
  const double bytes = static_cast<double>(shape.elements()) * static_cast<double>(size_of(type));
  MG_CHECK(
      !runtime.device().is_host() || bytes <= static_cast<double>(available_memory()),
      "the KV cache of {} sequences of {} tokens needs {:.1f} GB, but this process has {}; use a "
      "smaller --batch-size or --max-tokens, or --bf16",
      shape.sequences, shape.capacity, bytes * 1e-9, available_memory_text());
  const auto zeros = [&](const LayerCache& layer, std::string_view label) {
    if (layer.kv_heads == 0) return Tensor();
    Tensor t = Tensor::empty(runtime.arena(MemoryClass::activations),
                             {shape.sequences, shape.room(layer), layer.kv_heads, layer.head_size},
                             type, label);
    kernels::table(runtime.stream()).fill({.out = t, .value = 0}, runtime.stream());
    return t;
  };
  for (size_t i = 0; i < shape.layers.size(); ++i) {
    const LayerCache& layer = shape.layers[i];
    keys_.push_back(zeros(layer, "sequence_state.keys"));
    values_.push_back(zeros(layer, "sequence_state.values"));
    if (layer.kv_heads == 0 || shape.room(layer) == shape.capacity) continue;
    auto window = std::ranges::find(windows_, layer.window, &Window::window);
    if (window == windows_.end()) {
      windows_.push_back({.window = layer.window,
                          .room = shape.room(layer),
                          .bases = std::vector<int64_t>(lengths_.size())});
      window = windows_.end() - 1;
    }
    window->layers.push_back({.index = static_cast<int64_t>(i), .keys = {}, .values = {}});
  }
}

SequenceState::Window* SequenceState::window_of(int64_t layer) {
  for (Window& window : windows_)
    for (const Window::Layer& of : window.layers)
      if (of.index == layer) return &window;
  return nullptr;
}

namespace {

// [rows.size(), keys] i32: row b counts from rows[b] on.
Tensor counting(const std::vector<int64_t>& rows, int64_t keys, std::string_view label,
                Runtime& runtime) {
  const auto count = static_cast<int64_t>(rows.size());
  Tensor t =
      Tensor::empty(runtime.arena(MemoryClass::activations), {count, keys}, DType::i32, label);
  if (!runtime.device().has_data()) return t;
  std::vector<int32_t> values(static_cast<size_t>(count * keys));
  for (int64_t b = 0; b < count; ++b)
    std::iota(values.begin() + b * keys, values.begin() + (b + 1) * keys,
              static_cast<int32_t>(rows[static_cast<size_t>(b)]));
  copy_from(t, std::span<const int32_t>(values), runtime.stream());
  return t;
}

int64_t in_steps(int64_t keys) { return (keys + kKeyStep - 1) / kKeyStep * kKeyStep; }

}  // namespace

Continuation SequenceState::next(int64_t first, int64_t sequences, int64_t tokens) {
  MG_ASSERT(first >= 0 && sequences > 0 && tokens > 0 && first + sequences <= shape_.sequences);
  const std::vector<int64_t> held(lengths_.begin() + first, lengths_.begin() + first + sequences);
  const int64_t keys = std::min(shape_.capacity, in_steps(std::ranges::max(held) + tokens));
  const std::vector<int64_t> zeros(held.size());
  Continuation c{.state = this,
                 .first = first,
                 .q_positions = counting(held, tokens, "state.q_positions", runtime_),
                 .k_positions = counting(zeros, keys, "state.k_positions", runtime_)};
  for (Window& window : windows_) plan(window, c, tokens);
  return c;
}

// The keys that the first new token sees begin at length - window + 1.
void SequenceState::plan(Window& window, const Continuation& pass, int64_t tokens) {
  const int64_t rows = pass.q_positions.size(0);
  window.apart = false;
  window.pass_bases.clear();
  int64_t in_place = 0, apart = 0;
  std::vector<int64_t> lowest;
  for (int64_t b = pass.first; b < pass.first + rows; ++b) {
    const int64_t held = lengths_[static_cast<size_t>(b)],
                  base = window.bases[static_cast<size_t>(b)];
    const int64_t needed = std::max<int64_t>(0, held - window.window + 1) / kKeyStep * kKeyStep;
    window.pass_bases.push_back(base);
    lowest.push_back(std::max(base, needed));
    in_place = std::max(in_place, held + tokens - base);
    apart = std::max(apart, held + tokens - lowest.back());
  }
  window.apart = in_place > window.room;
  if (window.apart) window.pass_bases = std::move(lowest);
  const int64_t keys = window.apart ? in_steps(apart) : std::min(window.room, in_steps(in_place));
  window.k_positions = counting(window.pass_bases, keys, "state.window_positions", runtime_);
}

void SequenceState::advance(int64_t first, std::span<const int64_t> counts) {
  MG_ASSERT(first >= 0 && first + static_cast<int64_t>(counts.size()) <= shape_.sequences);
  for (size_t b = 0; b < counts.size(); ++b) {
    int64_t& length = lengths_[static_cast<size_t>(first) + b];
    MG_ASSERT(counts[b] >= 0 && counts[b] <= shape_.capacity - length);
    length += counts[b];
  }
  for (Window& window : windows_) {
    if (window.apart) keep(window, first, counts);
    window.apart = false;
  }
}

// What later tokens see of the tensors that a pass had of its own goes back to the cache.
void SequenceState::keep(Window& window, int64_t first, std::span<const int64_t> counts) {
  MG_ASSERT(counts.size() == window.pass_bases.size());
  const kernels::Table& table = kernels::table(runtime_.stream());
  for (size_t b = 0; b < counts.size(); ++b) {
    const int64_t sequence = first + static_cast<int64_t>(b);
    const int64_t length = lengths_[static_cast<size_t>(sequence)];
    const int64_t base =
        std::max(window.pass_bases[b],
                 std::max<int64_t>(0, length - window.window + 1) / kKeyStep * kKeyStep);
    const int64_t count = length - base, from = base - window.pass_bases[b];
    window.bases[static_cast<size_t>(sequence)] = base;
    for (const Window::Layer& layer : window.layers) {
      if (count == 0 || !layer.keys.defined()) continue;
      const auto put = [&](const Tensor& pass, const Tensor& cache) {
        table.copy({.x = pass.select(0, static_cast<int64_t>(b)).slice(0, from, count),
                    .out = cache.select(0, sequence).slice(0, 0, count)},
                   runtime_.stream());
      };
      put(layer.keys, keys(layer.index));
      put(layer.values, values(layer.index));
    }
  }
  for (Window::Layer& layer : window.layers) layer.keys = layer.values = Tensor();
}

void SequenceState::truncate(int64_t sequence, int64_t length) {
  int64_t& held = lengths_.at(static_cast<size_t>(sequence));
  MG_ASSERT(length >= 0 && length <= held);
  MG_ASSERT(windows_.empty() || length == 0 || length == held);
  held = length;
  if (length > 0) return;
  for (Window& window : windows_) window.bases[static_cast<size_t>(sequence)] = 0;
}

// The new rows behind those that are held, in the cache or apart from it.
Tensor SequenceState::extended(Tape& tape, const Window& window, const Tensor& added,
                               const Tensor& cache, const Continuation& at) const {
  const int64_t sequences = added.size(0), tokens = added.size(1),
                keys = window.k_positions.size(1);
  Tensor all;
  if (!window.apart) {
    all = cache.slice(0, at.first, sequences).slice(1, 0, keys);
  } else {
    all =
        tape.empty({sequences, keys, cache.size(2), cache.size(3)}, cache.dtype(), "state.window");
    tape.kernels().fill({.out = all, .value = 0}, tape.stream());
  }
  for (int64_t b = 0; b < sequences; ++b) {
    const auto sequence = static_cast<size_t>(at.first + b);
    const int64_t held = lengths_[sequence], base = window.pass_bases[static_cast<size_t>(b)];
    const Tensor to = all.select(0, b);
    if (window.apart && held > base) {
      const Tensor from = cache.select(0, at.first + b);
      tape.kernels().copy({.x = from.slice(0, base - window.bases[sequence], held - base),
                           .out = to.slice(0, 0, held - base)},
                          tape.stream());
    }
    // Tokens beyond the room are padding.
    const int64_t count = std::min(tokens, keys - (held - base));
    if (count <= 0) continue;
    tape.kernels().copy(
        {.x = added.select(0, b).slice(0, 0, count), .out = to.slice(0, held - base, count)},
        tape.stream());
  }
  return all;
}

SequenceState::Extended SequenceState::extend(Tape& tape, int64_t layer, const ops::Heads& heads,
                                              const Continuation& at) {
  MG_ASSERT(!tape.recording() && at.state == this);
  const Tensor &k = heads.k.value, &v = heads.v.value;
  const int64_t sequences = k.size(0), tokens = k.size(1);
  MG_ASSERT(at.q_positions.size(0) == sequences && at.q_positions.size(1) == tokens);
  if (Window* window = window_of(layer)) {
    const Tensor all_k = extended(tape, *window, k, keys(layer), at),
                 all_v = extended(tape, *window, v, values(layer), at);
    if (window->apart) {
      const auto of = std::ranges::find(window->layers, layer, &Window::Layer::index);
      of->keys = all_k;
      of->values = all_v;
    }
    return {{heads.q, all_k, all_v}, at.q_positions, window->k_positions};
  }
  const int64_t seen = at.k_positions.size(1);
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
  return {{heads.q, put(k, keys(layer)), put(v, values(layer))}, at.q_positions, at.k_positions};
}

}  // namespace megatron::nn
