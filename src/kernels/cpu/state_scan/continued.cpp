#include <cstring>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/products/few_rows.h"
#include "kernels/cpu/rows_ahead.h"
#include "kernels/cpu/state_scan/scan.h"

namespace megatron::kernels::cpu {
namespace {

// The tokens of one text in this call: [position, position + count) of the text, at `row` of the
// tensors.
struct TextPiece {
  int64_t position = 0, count = 0, row = 0;

  int64_t first_chunk() const { return position / kScanChunk; }
  int64_t chunks() const {
    return count == 0 ? 0 : (position + count - 1) / kScanChunk + 1 - first_chunk();
  }
};

TextPiece piece_of(const Tensor& positions, int64_t text) {
  const int64_t tokens = positions.size(1);
  const int32_t* at = positions.data<int32_t>() + text * tokens;
  TextPiece piece;
  while (piece.row < tokens && at[piece.row] < 0) ++piece.row;
  if (piece.row == tokens) return piece;
  piece.position = at[piece.row];
  while (piece.row + piece.count < tokens && at[piece.row + piece.count] >= 0) ++piece.count;
  return piece;
}
// Chunks of a piece of that many tokens, wherever it begins.
int64_t most_chunks(int64_t tokens) {
  return tokens == 0 ? 0 : ceil_div(tokens - 1, kScanChunk) + 1;
}

// The part of a piece that is in one of its chunks: tokens [low, high) of the chunk.
struct ChunkPart {
  ChunkPart(const TextPiece& piece, int64_t index, int64_t block_size, const int32_t* table)
      : chunk(piece.first_chunk() + index),
        low(std::max(piece.position - chunk * kScanChunk, int64_t{0})),
        high(std::min(piece.position + piece.count - chunk * kScanChunk, kScanChunk)),
        row(piece.row + chunk * kScanChunk + low - piece.position),
        first(index == 0),
        last(index + 1 == piece.chunks()),
        slot(table[chunk * kScanChunk / block_size]),
        ends_block(last || (chunk + 1) * kScanChunk % block_size == 0) {
    if (first && chunk > 0) before = table[(piece.position - 1) / block_size];
  }
  // Tokens before `low` are in the slot, where those of this part join them.
  bool joins() const { return low > 0; }
  bool ends_chunk() const { return high == kScanChunk; }

  int64_t chunk, low, high;
  int64_t row;  // of token `low` in the tensors
  bool first, last;
  int64_t slot;
  int64_t before = -1;  // the first part: the slot with the state, if the text did not begin here
  bool ends_block;      // or is the last one
};

template <class N>
class ContinuedScan {
 public:
  ContinuedScan(const StateScanContinuedArgs& args, const ScanScratch& scratch)
      : args_(args),
        s_(args),
        scratch_(scratch),
        most_(most_chunks(s_.tokens)),
        size_(size_of(s_.type)) {}

  void run(Stream& stream) const {
    const int64_t per_text = s_.groups * most_;
    stream.pool().parallel_for(s_.sequences * per_text, [&](int64_t index, int thread) {
      const int64_t text = index / per_text, of_group = index % per_text / most_;
      const TextPiece piece = piece_of(args_.positions, text);
      if (index % most_ >= piece.chunks()) return;
      pack(text, of_group, part(piece, text, index % most_), GroupWork<N>(s_, work(thread)),
           group(text * s_.groups + of_group, index % most_));
    });
    stream.pool().parallel_for(s_.tasks(), [&](int64_t task, int thread) {
      scan(ScanTask(s_, task), HeadWork<N>(s_, work(thread)));
    });
  }

 private:
  std::byte* work(int thread) const { return scratch_.work->data() + thread * scratch_.work_bytes; }
  GroupChunk<N> group(int64_t group, int64_t index) const {
    const int64_t place = group * most_ + index;
    return GroupChunk<N>(s_, false, scratch_.groups->data() + place * scratch_.group_bytes);
  }
  ChunkPart part(const TextPiece& piece, int64_t text, int64_t index) const {
    return ChunkPart(piece, index, args_.block_size,
                     args_.block_table.data<int32_t>() + text * args_.block_table.size(1));
  }
  // True if a part has so few tokens that operands are read in place instead of being packed first.
  bool reads_in_place(const ChunkPart& part) const {
    if constexpr (std::is_same_v<N, double>) return false;
    return part.first && takes_few_rows(s_.kind, s_.type, part.high - part.low);
  }

  // Rows of the chunk from its first token on. If the chunk began in an earlier piece, its rows are
  // collected in the slot.
  MatrixRows rows(const Tensor& tensor, const Tensor& slots, int64_t text, const ChunkPart& part,
                  int64_t head) const {
    const MatrixRows here = scan_rows(tensor, text, part.row, head);
    if (!part.joins()) return here;
    keep(here, slots, part, head);
    return scan_rows(slots, part.slot, 0, head);
  }
  // Copies the part's rows to the slot.
  void keep(const MatrixRows& from, const Tensor& slots, const ChunkPart& part,
            int64_t head) const {
    const MatrixRows to = scan_rows(slots, part.slot, part.low, head);
    for (int64_t i = 0; i < part.high - part.low; ++i)
      std::memcpy(const_cast<std::byte*>(rows_from(to, i).base), rows_from(from, i).base,
                  static_cast<size_t>(slots.size(3) * size_));
  }
  bool is_kept(const ChunkPart& part) const { return !part.joins() && !part.ends_chunk(); }

  void pack(int64_t text, int64_t of_group, const ChunkPart& part, const GroupWork<N>& work,
            const GroupChunk<N>& to) const {
    const MatrixRows b = rows(args_.b, args_.slots.b, text, part, of_group),
                     c = scan_rows(args_.c, text, part.row, of_group);
    if (!reads_in_place(part)) return pack_group(s_, b, c, part.low, part.high, work, to);
    if constexpr (std::is_same_v<N, float>) {
      const int64_t width = s_.words(s_.states), count = part.high - part.low;
      rows_to_words(s_.kind, c, count, s_.states, to.c_rows + part.low * width);
      few_rows_product_nt(s_.kind, {.m = count,
                                    .n = part.high,
                                    .elements = s_.states,
                                    .a = to.c_rows + part.low * width,
                                    .a_row = width,
                                    .b = b,
                                    .c = to.g + part.low * kScanChunk,
                                    .ldc = kScanChunk,
                                    .accumulate = false});
      if (part.ends_chunk()) turn_group(s_, b, kScanChunk, work, to);
    }
  }

  void scan(const ScanTask& task, const HeadWork<N>& work) const {
    const TextPiece piece = piece_of(args_.positions, task.sequence);
    for (int64_t i = 0; i < task.count; ++i) clear_padding(piece, task.sequence, task.first + i);
    const int64_t of_group = task.group_index % s_.groups;
    for (int64_t index = 0; index < piece.chunks(); ++index) {
      const ChunkPart here = part(piece, task.sequence, index);
      const GroupChunk<N> shared = group(task.group_index, index);
      const ChunkDocuments documents(nullptr, 0, here.high);
      for (int64_t i = 0; i < task.count; ++i)
        scan_head(task.sequence, here, task.first + i, documents, shared,
                  work.states + i * s_.state_size(), work);
      if (is_kept(here) && task.first == of_group * s_.group_heads)
        keep(scan_rows(args_.b, task.sequence, here.row, of_group), args_.slots.b, here, of_group);
    }
  }

  void clear_padding(const TextPiece& piece, int64_t text, int64_t head) const {
    const MatrixRows out = scan_rows(args_.out, text, 0, head);
    for (int64_t row = 0; row < s_.tokens; ++row)
      if (row < piece.row || row >= piece.row + piece.count)
        std::memset(const_cast<std::byte*>(rows_from(out, row).base), 0,
                    static_cast<size_t>(s_.width * size_));
  }

  void scan_head(int64_t text, const ChunkPart& part, int64_t head, const ChunkDocuments& documents,
                 const GroupChunk<N>& shared, N* state, const HeadWork<N>& work) const {
    ScanDecays<N> decays;
    set_steps(text, part, head, decays.steps);
    set_decays(rate_of<N>(args_.numbers, head), documents, decays);
    const HeadChunk<N> here{.decays = decays,
                            .documents = documents,
                            .group = shared,
                            .x = rows(args_.x, args_.slots.x, text, part, head),
                            .state = state,
                            .has_state = part.chunk > 0};
    const N d = args_.numbers.d.data<N>()[head];
    const MatrixRows out = scan_rows(args_.out, text, part.row, head);
    const bool in_place = reads_in_place(part);
    if (part.before >= 0 && (!in_place || part.ends_chunk()))
      load_state<N>(s_, slot_state(part.before, head), state);
    if (in_place) {
      scan_few(part, head, here, d, out, work);
    } else {
      scan_chunk(s_, here, part.low, part.high, d, out, work);
    }
    if (is_kept(part)) keep(scan_rows(args_.x, text, part.row, head), args_.slots.x, part, head);
    if (part.ends_chunk()) {
      advance_state(s_, here, work.panels);
      if (part.ends_block) store_state<N>(s_, state, slot_state(part.slot, head), work.inside);
    } else {
      keep_state(part, head, state, work);
    }
  }

  // The state before a chunk that continues in a later piece.
  void keep_state(const ChunkPart& part, int64_t head, const N* state,
                  const HeadWork<N>& work) const {
    N* const to = slot_state(part.slot, head);
    if (part.chunk == 0) {
      std::fill_n(to, s_.width * s_.states, N{0});
    } else if (!part.first) {
      store_state<N>(s_, state, to, work.inside);
    } else if (part.before != part.slot) {
      std::copy_n(slot_state(part.before, head), s_.width * s_.states, to);
    }
  }

  void set_steps(int64_t text, const ChunkPart& part, int64_t head, N* steps) const {
    N* const kept = args_.slots.steps.template data<N>() + part.slot * kScanChunk * s_.heads + head;
    for (int64_t i = 0; i < part.low; ++i) steps[i] = kept[i * s_.heads];
    N dt[kScanChunk];
    load_dt(args_.dt, text, part.row, part.high - part.low, head, dt);
    scan_steps(limits_of<N>(args_.numbers, head), dt, part.high - part.low, steps + part.low);
    if (!part.joins() && part.ends_chunk()) return;
    for (int64_t i = part.low; i < part.high; ++i) kept[i * s_.heads] = steps[i];
  }

  // The outputs of few tokens, with the bits of scan_chunk().
  void scan_few(const ChunkPart& part, int64_t head, const HeadChunk<N>& here, N d,
                const MatrixRows& out, const HeadWork<N>& work) const {
    if constexpr (std::is_same_v<N, float>) {
      const int64_t count = part.high - part.low, width = s_.words(kScanChunk);
      mask_rows({.first = part.low,
                 .end = part.high,
                 .kind = s_.kind,
                 .decays = here.decays,
                 .begin = here.documents.begin,
                 .g = here.group.g,
                 .out = work.masked});
      for_halves(part.low, part.high, [&](int64_t first, int64_t end, int64_t half) {
        few_rows_product_nn(s_.kind, {.m = end - first,
                                      .n = s_.width,
                                      .elements = std::min(part.high, half + kHalfChunk),
                                      .a = work.masked + first * width,
                                      .a_row = width,
                                      .b = here.x,
                                      .c = work.inside + (first - part.low) * s_.columns,
                                      .ldc = s_.columns,
                                      .accumulate = false});
      });
      if (here.has_state)
        few_rows_product_nt(s_.kind, {.m = count,
                                      .n = s_.width,
                                      .elements = s_.states,
                                      .a = here.group.c_rows + part.low * s_.words(s_.states),
                                      .a_row = s_.words(s_.states),
                                      .b = state_rows(slot_state(part.before, head), work),
                                      .c = work.before,
                                      .ldc = s_.columns,
                                      .accumulate = false});
      scan_outputs({.rows = count,
                    .width = s_.width,
                    .inherits = here.has_state ? count : 0,
                    .inside = work.inside,
                    .before = work.before,
                    .stride = s_.columns,
                    .factors = here.decays.from_start + part.low,
                    .d = d,
                    .x = rows_from(here.x, part.low),
                    .out = out});
    }
  }
  MatrixRows state_rows(const N* state, const HeadWork<N>& work) const {
    if (!is_paired(s_.kind))
      return {reinterpret_cast<const std::byte*>(state), s_.states, DType::f32};
    auto* const rounded = reinterpret_cast<std::byte*>(work.pairs);
    // The processor itself prefetches only up to the end of a page. Behind a state is the next
    // head's.
    constexpr int64_t kPart = 256, kAhead = 2 * kElementsAhead<N>;
    for (int64_t i = 0, all = s_.width * s_.states; i < all; i += kPart) {
      prefetch(state + i + kAhead, kPart * sizeof(N));
      round_rows(s_.kind, state + i, std::min(kPart, all - i), rounded + i * size_);
    }
    return {rounded, s_.states, DType::bf16};
  }

  N* slot_state(int64_t slot, int64_t head) const {
    return args_.slots.state.template data<N>() + (slot * s_.heads + head) * s_.width * s_.states;
  }

  const StateScanContinuedArgs& args_;
  const ScanSizes s_;
  const ScanScratch& scratch_;
  int64_t most_, size_;
};

}  // namespace

ScanScratch state_scan_continued_scratch(const StateScanContinuedArgs& args, Stream& stream) {
  if (args.x.elements() == 0) return {};
  const ScanSizes s(args);
  return scan_scratch(s, most_chunks(s.tokens), stream);
}

void state_scan_continued(const StateScanContinuedArgs& args, Stream& stream) {
  if (args.x.elements() == 0) return;
  const ScanScratch scratch = state_scan_continued_scratch(args, stream);
  args.x.dtype() == DType::f64 ? ContinuedScan<double>(args, scratch).run(stream)
                               : ContinuedScan<float>(args, scratch).run(stream);
}

}  // namespace megatron::kernels::cpu
