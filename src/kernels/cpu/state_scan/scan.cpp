#include "kernels/cpu/state_scan/scan.h"

#include <cmath>
#include <type_traits>

#include "base/error.h"
#include "kernels/cpu/products/bf16_products.h"

namespace megatron::kernels::cpu {
namespace {

// Tasks that a call has at least, if it has as many heads; and most heads of a task, whose states
// of all chunks the backward pass keeps.
constexpr int64_t kTasks = 16, kMostHeads = 8;

template <class T, class N>
void load_column(const Tensor& dt, int64_t offset, int64_t count, N* out) {
  const T* from = dt.data<T>() + offset;
  for (int64_t i = 0; i < count; ++i)
    out[i] = static_cast<N>(static_cast<float>(from[i * dt.stride(1)]));
}

template <class T, class N>
void store_column(const Tensor& dt, int64_t offset, int64_t count, const N* values) {
  T* to = dt.data<T>() + offset;
  for (int64_t i = 0; i < count; ++i) to[i * dt.stride(1)] = T(values[i]);
}

int64_t offset_of(const Tensor& t, int64_t sequence, int64_t row, int64_t head) {
  return sequence * t.stride(0) + row * t.stride(1) + head * t.stride(2);
}

}  // namespace

ScanSizes::ScanSizes(const Shape& x, const Shape& b, DType of_type)
    : sequences(x[0]),
      tokens(x[1]),
      heads(x[2]),
      groups(b[2]),
      width(x[3]),
      states(b[3]),
      type(of_type),
      kind(word_kind(of_type, bf16_products())),
      columns(round_up(width, kPanel)),
      group_heads(heads / groups) {
  const int64_t share = ceil_div(std::max<int64_t>(1, sequences) * heads, kTasks);
  block_heads = std::min({share, kMostHeads, group_heads});
  blocks = ceil_div(group_heads, block_heads);
}

ChunkDocuments::ChunkDocuments(const int32_t* starts, int64_t first, int64_t tokens)
    : count(tokens), inherits(tokens), last(0) {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t start = starts == nullptr ? 0 : starts[i] - first;
    begin[i] = static_cast<int32_t>(std::max<int64_t>(start, 0));
    if (starts != nullptr && start >= 0) inherits = std::min(inherits, i);
  }
  int64_t next = count;
  for (int64_t i = count - 1; i >= 0; --i) {
    end[i] = static_cast<int32_t>(next);
    if (begin[i] == i) next = i;
  }
  if (count > 0) last = begin[count - 1];
}

ChunkDocuments documents_of(const ScanSizes& s, const Tensor& starts, int64_t sequence,
                            int64_t chunk) {
  const int64_t first = chunk * kScanChunk;
  const int32_t* of_chunk =
      starts.defined() ? starts.data<int32_t>() + sequence * s.tokens + first : nullptr;
  return ChunkDocuments(of_chunk, first, s.tokens_of(chunk));
}

MatrixRows scan_rows(const Tensor& t, int64_t sequence, int64_t row, int64_t head) {
  return {static_cast<const std::byte*>(t.raw()) +
              offset_of(t, sequence, row, head) * size_of(t.dtype()),
          t.stride(1), t.dtype()};
}

void load_dt(const Tensor& dt, int64_t sequence, int64_t row, int64_t count, int64_t head,
             float* out) {
  const int64_t offset = offset_of(dt, sequence, row, head);
  dt.dtype() == DType::f32 ? load_column<float>(dt, offset, count, out)
                           : load_column<bf16>(dt, offset, count, out);
}
void load_dt(const Tensor& dt, int64_t sequence, int64_t row, int64_t count, int64_t head,
             double* out) {
  const double* from = dt.data<double>() + offset_of(dt, sequence, row, head);
  for (int64_t i = 0; i < count; ++i) out[i] = from[i * dt.stride(1)];
}
void store_dt(const Tensor& dt, int64_t sequence, int64_t row, int64_t count, int64_t head,
              const float* values) {
  const int64_t offset = offset_of(dt, sequence, row, head);
  dt.dtype() == DType::f32 ? store_column<float>(dt, offset, count, values)
                           : store_column<bf16>(dt, offset, count, values);
}
void store_dt(const Tensor& dt, int64_t sequence, int64_t row, int64_t count, int64_t head,
              const double* values) {
  store_column<double>(dt, offset_of(dt, sequence, row, head), count, values);
}

template <class N>
double rate_of(const StateScanNumbers& numbers, int64_t head) {
  return std::exp(static_cast<double>(numbers.a_log.data<N>()[head]));
}

template <class N>
void set_decays(double rate, const ChunkDocuments& documents, ScanDecays<N>& d) {
  double sums[kScanChunk], sum = 0;
  const int64_t count = documents.count;
  for (int64_t i = 0; i < count; ++i) sums[i] = sum -= static_cast<double>(d.steps[i]) * rate;
  for (int64_t i = 0; i < count; ++i) {
    d.high[i] = static_cast<N>(sums[i]);
    d.low[i] = static_cast<N>(sums[i] - static_cast<double>(d.high[i]));
    d.to_end[i] = static_cast<N>(sum - sums[i]);
  }
  for (int64_t i = count; i < kScanChunk; ++i) d.steps[i] = d.high[i] = d.low[i] = d.to_end[i] = 0;
  scan_exp(d.high, kScanChunk, d.from_start);
  scan_exp(d.to_end, kScanChunk, d.to_end);
  d.whole = documents.inherits == count && count > 0 ? d.from_start[count - 1] : N{0};
  std::fill(d.from_start + documents.inherits, d.from_start + kScanChunk, N{0});
  std::fill_n(d.to_end, documents.last, N{0});
  for (int64_t i = 0; i < kScanChunk; ++i) d.weights[i] = d.to_end[i] * d.steps[i];
}

template <class N>
GroupChunk<N>::GroupChunk(const ScanSizes& s, bool backward, std::byte* begin) {
  Pieces pieces(begin);
  const bool pairs = is_paired(s.kind);
  const auto turned = [&] {
    const int64_t size =
        pairs ? round_up(s.states, kPanel) * s.words(kScanChunk) : kScanChunk * s.states;
    Word<N>* const at = pieces.take<Word<N>>(size);
    return pairs ? Turned{at, s.words(kScanChunk), 1} : Turned{at, 1, s.states};
  };
  c_rows = pieces.take<Word<N>>(kScanChunk * s.words(s.states));
  b_turned = turned();
  g = pieces.take<N>(kScanChunk * kScanChunk);
  across = backward ? pieces.take<Word<N>>(2 * s.state_panel()) : nullptr;
  c_turned = backward ? turned() : Turned{};
  bytes = pieces.bytes();
}

template <class N>
GroupWork<N>::GroupWork(const ScanSizes& s, std::byte* begin) {
  Pieces pieces(begin);
  across = pieces.take<Word<N>>(2 * s.state_panel());
  turning = pieces.take<Word<N>>(
      is_paired(s.kind) ? round_up(s.states, kPanel) * s.words(kScanChunk) : 0);
  bytes = pieces.bytes();
}

namespace {

// Pairs are packed as panels of a second factor, whose rows are then transposed.
template <class N>
void turn(const ScanSizes& s, const MatrixRows& from, int64_t count, Word<N>* turning,
          const typename GroupChunk<N>::Turned& to) {
  if constexpr (std::is_same_v<N, float>) {
    if (is_paired(s.kind)) {
      const int64_t width = s.words(kScanChunk), panel = s.chunk_panel();
      rows_to_panels(s.kind, from, count, kScanChunk, s.states, panel, turning);
      for (int64_t n = 0; n < s.states; n += kPanel) {
        const auto* at = reinterpret_cast<const std::byte*>(turning + n / kPanel * panel);
        transpose_to_panel(WordKind::f32, {at, kPanel, DType::f32}, width, kPanel, nullptr,
                           to.at + n * width);
      }
      return;
    }
  }
  rows_to_words(s.kind, from, count, s.states, to.at);
}

}  // namespace

template <class W>
void pack_across(const ScanSizes& s, const MatrixRows& from, int64_t count, int64_t elements,
                 W* out) {
  for (int64_t j = 0; j < kScanChunk; j += kPanel)
    transpose_to_panel(s.kind, rows_from(from, std::min(j, count)),
                       std::clamp<int64_t>(count - j, 0, kPanel), elements, nullptr,
                       out + j / kPanel * s.words(elements) * kPanel);
}

template <class N>
void turn_group(const ScanSizes& s, const MatrixRows& b, int64_t count, const GroupWork<N>& work,
                const GroupChunk<N>& to) {
  turn<N>(s, b, count, work.turning, to.b_turned);
}

template <class N>
void pack_group(const ScanSizes& s, const MatrixRows& b, const MatrixRows& c, int64_t low,
                int64_t high, const GroupWork<N>& work, const GroupChunk<N>& to) {
  const int64_t width = s.words(s.states);
  rows_to_words(s.kind, c, high - low, s.states, to.c_rows + low * width);
  pack_across(s, b, high, s.states, work.across);
  for_halves(low, high, [&](int64_t first, int64_t end, int64_t half) {
    tile_product(s.kind, Tile<N>{.m = end - first,
                                 .n = half + kHalfChunk,
                                 .k = width,
                                 .a = to.c_rows + first * width,
                                 .a_row = width,
                                 .a_step = 1,
                                 .b = work.across,
                                 .panel = s.state_panel(),
                                 .c = to.g + first * kScanChunk,
                                 .ldc = kScanChunk,
                                 .accumulate = false});
  });
  if (high == kScanChunk) turn_group(s, b, kScanChunk, work, to);
}

template <class N>
void pack_group_backward(const ScanSizes& s, const MatrixRows& b, const MatrixRows& c,
                         int64_t count, const GroupWork<N>& work, const GroupChunk<N>& to) {
  const int64_t width = s.words(s.states);
  rows_to_words(s.kind, b, count, s.states, to.c_rows);
  pack_across(s, c, count, s.states, to.across);
  for_halves(0, count, [&](int64_t first, int64_t end, int64_t half) {
    tile_product(s.kind, Tile<N>{.m = end - first,
                                 .n = kScanChunk - half,
                                 .k = width,
                                 .a = to.c_rows + first * width,
                                 .a_row = width,
                                 .a_step = 1,
                                 .b = to.across + half / kPanel * s.state_panel(),
                                 .panel = s.state_panel(),
                                 .c = to.g + first * kScanChunk + half,
                                 .ldc = kScanChunk,
                                 .accumulate = false});
  });
  turn<N>(s, b, count, work.turning, to.b_turned);
  turn<N>(s, c, count, work.turning, to.c_turned);
}

template <class N>
HeadWork<N>::HeadWork(const ScanSizes& s, std::byte* begin) {
  Pieces pieces(begin);
  states = pieces.take<N>(s.block_heads * s.state_size());
  pairs = pieces.take<Word<N>>(is_paired(s.kind) ? s.columns / kPanel * s.state_panel() : 0);
  panels = pieces.take<Word<N>>(s.chunk_panels());
  masked = pieces.take<Word<N>>(kScanChunk * s.words(kScanChunk));
  inside = pieces.take<N>(kScanChunk * s.columns);
  before = pieces.take<N>(kScanChunk * s.columns);
  bytes = pieces.bytes();
}

template <class N>
const Word<N>* state_factor(const ScanSizes& s, const N* state, Word<N>* pairs) {
  if constexpr (std::is_same_v<N, double>) {
    return state;
  } else {
    if (!is_paired(s.kind)) return reinterpret_cast<const uint32_t*>(state);
    for (int64_t p = 0; p < s.columns; p += kPanel)
      pair_state_rows(state + p * s.states, s.states, pairs + p / kPanel * s.state_panel());
    return pairs;
  }
}

template <class N>
void scan_chunk(const ScanSizes& s, const HeadChunk<N>& chunk, int64_t low, int64_t high, N d,
                const MatrixRows& out, const HeadWork<N>& work) {
  const int64_t width = s.words(kScanChunk), inherits = std::min(chunk.documents.inherits, high);
  rows_to_panels(s.kind, chunk.x, high, round_up(high, int64_t{2}), s.width, s.chunk_panel(),
                 work.panels);
  mask_rows({.first = low,
             .end = high,
             .kind = s.kind,
             .decays = chunk.decays,
             .begin = chunk.documents.begin,
             .g = chunk.group.g,
             .out = work.masked});
  for_halves(low, high, [&](int64_t first, int64_t end, int64_t half) {
    tile_product(s.kind, Tile<N>{.m = end - first,
                                 .n = s.columns,
                                 .k = s.words(std::min(high, half + kHalfChunk)),
                                 .a = work.masked + first * width,
                                 .a_row = width,
                                 .a_step = 1,
                                 .b = work.panels,
                                 .panel = s.chunk_panel(),
                                 .c = work.inside + first * s.columns,
                                 .ldc = s.columns,
                                 .accumulate = false});
  });
  const bool inherited = chunk.has_state && low < inherits;
  if (inherited) {
    tile_product(s.kind, Tile<N>{.m = inherits - low,
                                 .n = s.columns,
                                 .k = s.words(s.states),
                                 .a = chunk.group.c_rows + low * s.words(s.states),
                                 .a_row = s.words(s.states),
                                 .a_step = 1,
                                 .b = state_factor(s, chunk.state, work.pairs),
                                 .panel = s.state_panel(),
                                 .c = work.before + low * s.columns,
                                 .ldc = s.columns,
                                 .accumulate = false});
  }
  scan_outputs({.rows = high - low,
                .width = s.width,
                .inherits = inherited ? inherits - low : 0,
                .inside = work.inside + low * s.columns,
                .before = work.before + low * s.columns,
                .stride = s.columns,
                .factors = chunk.decays.from_start + low,
                .d = d,
                .x = rows_from(chunk.x, low),
                .out = out});
}

template <class N>
void add_to_state(const ScanSizes& s, const typename GroupChunk<N>::Turned& turned,
                  const Word<N>* panels, int64_t count, bool keeps, N factor, N* state) {
  if (keeps) scale_values(state, s.state_size(), factor);
  for (int64_t p = 0; p < s.columns; p += kPanel) {
    tile_product(s.kind, Tile<N>{.m = s.states,
                                 .n = kPanel,
                                 .k = s.words(count),
                                 .a = turned.at,
                                 .a_row = turned.row,
                                 .a_step = turned.step,
                                 .b = panels + p / kPanel * s.chunk_panel(),
                                 .panel = s.chunk_panel(),
                                 .c = state + p * s.states,
                                 .ldc = kPanel,
                                 .accumulate = keeps});
  }
}

template <class N>
void advance_state(const ScanSizes& s, const HeadChunk<N>& chunk, Word<N>* panels) {
  const int64_t count = chunk.documents.count;
  weighted_panels(s.kind, chunk.x, chunk.decays.weights, count, round_up(count, int64_t{2}),
                  s.width, s.chunk_panel(), panels);
  add_to_state<N>(s, chunk.group.b_turned, panels, count,
                  chunk.has_state && chunk.documents.inherits == count, chunk.decays.whole,
                  chunk.state);
}

namespace {

template <class N>
MatrixRows rows_of_state(const N* values, int64_t stride) {
  return {reinterpret_cast<const std::byte*>(values), stride, DTypeOf<N>::value};
}

}  // namespace

template <class N>
void load_state(const ScanSizes& s, const N* from, N* state) {
  for (int64_t p = 0; p < s.width; p += kPanel)
    transpose_to_panel(WordKind::f32, rows_of_state(from + p * s.states, s.states),
                       std::min(kPanel, s.width - p), s.states, nullptr,
                       reinterpret_cast<Word<N>*>(state + p * s.states));
}

template <class N>
void store_state(const ScanSizes& s, const N* state, N* to, N* turned) {
  for (int64_t p = 0; p < s.width; p += kPanel) {
    for (int64_t n = 0; n < s.states; n += kPanel) {
      const int64_t rows = std::min(kPanel, s.width - p), count = std::min(kPanel, s.states - n);
      transpose_to_panel(WordKind::f32, rows_of_state(state + p * s.states + n * kPanel, kPanel),
                         count, kPanel, nullptr, reinterpret_cast<Word<N>*>(turned));
      for (int64_t r = 0; r < rows; ++r)
        std::copy_n(turned + r * kPanel, count, to + (p + r) * s.states + n);
    }
  }
}

ScanScratch scan_scratch(const ScanSizes& s, int64_t chunks, Stream& stream) {
  ScanScratch scratch;
  const auto set_bytes = [&]<class N>(N) {
    scratch.group_bytes = GroupChunk<N>(s, false, nullptr).bytes;
    scratch.work_bytes = std::max(GroupWork<N>(s, nullptr).bytes, HeadWork<N>(s, nullptr).bytes);
  };
  s.type == DType::f64 ? set_bytes(double{}) : set_bytes(float{});
  Arena& arena = stream.scratch();
  scratch.groups =
      arena.allocate(s.sequences * s.groups * chunks * scratch.group_bytes, "scan of states: b, c");
  scratch.work =
      arena.allocate(scratch.work_bytes * stream.target().threads, "scan of states: chunks");
  return scratch;
}

#define MEGATRON_SCAN_OF(N)                                                                   \
  template double rate_of<N>(const StateScanNumbers&, int64_t);                               \
  template void set_decays(double, const ChunkDocuments&, ScanDecays<N>&);                    \
  template struct GroupChunk<N>;                                                              \
  template struct GroupWork<N>;                                                               \
  template struct HeadWork<N>;                                                                \
  template void pack_group(const ScanSizes&, const MatrixRows&, const MatrixRows&, int64_t,   \
                           int64_t, const GroupWork<N>&, const GroupChunk<N>&);               \
  template void pack_group_backward(const ScanSizes&, const MatrixRows&, const MatrixRows&,   \
                                    int64_t, const GroupWork<N>&, const GroupChunk<N>&);      \
  template void scan_chunk(const ScanSizes&, const HeadChunk<N>&, int64_t, int64_t, N,        \
                           const MatrixRows&, const HeadWork<N>&);                            \
  template void advance_state(const ScanSizes&, const HeadChunk<N>&, Word<N>*);               \
  template void add_to_state(const ScanSizes&, const GroupChunk<N>::Turned&, const Word<N>*,  \
                             int64_t, bool, N, N*);                                           \
  template void pack_across(const ScanSizes&, const MatrixRows&, int64_t, int64_t, Word<N>*); \
  template void turn_group(const ScanSizes&, const MatrixRows&, int64_t, const GroupWork<N>&, \
                           const GroupChunk<N>&);                                             \
  template void load_state(const ScanSizes&, const N*, N*);                                   \
  template void store_state(const ScanSizes&, const N*, N*, N*);                              \
  template const Word<N>* state_factor(const ScanSizes&, const N*, Word<N>*);
MEGATRON_SCAN_OF(float)
MEGATRON_SCAN_OF(double)
#undef MEGATRON_SCAN_OF

}  // namespace megatron::kernels::cpu
