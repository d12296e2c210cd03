// The scan by chunks on the host. A task computes some heads of one group of one sequence, chunk by
// chunk, so that what the heads share is in cache: B and C in the forms that the products need, and
// G = C B^T. A state is kept transposed, [N,P], as panels of kPanel columns (rows.h).
#pragma once

#include <algorithm>
#include <memory>

#include "base/divide.h"
#include "device/stream.h"
#include "kernels/cpu/state_scan/rows.h"

namespace megatron::kernels::cpu {

// Divides memory into arrays, each aligned to 64 bytes. If begin is null it only counts.
class Pieces {
 public:
  explicit Pieces(std::byte* begin) : begin_(begin) {}
  template <class E>
  E* take(int64_t count) {
    std::byte* const at = begin_ == nullptr ? nullptr : begin_ + bytes_;
    bytes_ += round_up(count * static_cast<int64_t>(sizeof(E)), int64_t{64});
    return reinterpret_cast<E*>(at);
  }
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* begin_;
  int64_t bytes_ = 0;
};

// Tokens of half a chunk. The rows of the first half of M have no columns in the second.
inline constexpr int64_t kHalfChunk = kPanel;
static_assert(kScanChunk == 2 * kHalfChunk);

// Calls f(first, end, half) for the rows [low, high) of each half of a chunk, which begins at
// `half`.
template <class F>
void for_halves(int64_t low, int64_t high, F f) {
  for (int64_t half = 0; half < kScanChunk; half += kHalfChunk) {
    const int64_t first = std::max(low, half), end = std::min(high, half + kHalfChunk);
    if (first < end) f(first, end, half);
  }
}

struct ScanSizes {
  template <class Args>
  explicit ScanSizes(const Args& args)
      : ScanSizes(args.x.shape(), args.b.shape(), args.x.dtype()) {}

  int64_t words(int64_t elements) const { return cpu::words(kind, elements); }
  int64_t chunks() const { return ceil_div(tokens, kScanChunk); }
  // Tokens of a chunk of a whole sequence.
  int64_t tokens_of(int64_t chunk) const {
    return std::min(kScanChunk, tokens - chunk * kScanChunk);
  }
  int64_t tasks() const { return sequences * groups * blocks; }
  int64_t state_size() const { return columns * states; }
  // Words of one panel of kPanel columns, summed over states or over the tokens of a chunk.
  int64_t state_panel() const { return words(states) * kPanel; }
  int64_t chunk_panel() const { return words(kScanChunk) * kPanel; }
  int64_t chunk_panels() const { return columns / kPanel * chunk_panel(); }

  int64_t sequences, tokens, heads, groups, width, states;
  DType type;
  WordKind kind;
  int64_t columns;  // width, padded to whole panels
  // Heads that share b and c, those of a task at most, and the tasks that they are divided into.
  int64_t group_heads, block_heads, blocks;

 private:
  ScanSizes(const Shape& x, const Shape& b, DType of_type);
};

// The heads of one task.
struct ScanTask {
  ScanTask(const ScanSizes& s, int64_t task)
      : index(task), group_index(task / s.blocks), sequence(group_index / s.groups) {
    const int64_t of_group = group_index % s.groups, block = task % s.blocks;
    first = of_group * s.group_heads + block * s.block_heads;
    count = std::min(s.block_heads, s.group_heads - block * s.block_heads);
  }
  int64_t index, group_index;  // group_index: sequence * groups + group
  int64_t sequence, first, count;
};

// Which tokens of a chunk are of one document.
struct ChunkDocuments {
  // starts: of the chunk's tokens, of which the first is token `first`; null: a single document.
  ChunkDocuments(const int32_t* starts, int64_t first, int64_t count);
  int32_t begin[kScanChunk], end[kScanChunk];  // of each token's document, in the chunk
  int64_t count;
  int64_t inherits;  // tokens [0, inherits) are of a document that began before the chunk
  int64_t last;      // first token of the last one's document
};
ChunkDocuments documents_of(const ScanSizes& s, const Tensor& starts, int64_t sequence,
                            int64_t chunk);

// Rows from `row` on of the head (group) `head` of a [B,T,H,P] tensor.
MatrixRows scan_rows(const Tensor& tensor, int64_t sequence, int64_t row, int64_t head);
inline MatrixRows rows_from(MatrixRows rows, int64_t row) {
  rows.base += row * rows.stride * size_of(rows.type);
  return rows;
}
// dt of tokens [row, row + count) and one head, and the reverse.
void load_dt(const Tensor& dt, int64_t sequence, int64_t row, int64_t count, int64_t head,
             float* out);
void load_dt(const Tensor& dt, int64_t sequence, int64_t row, int64_t count, int64_t head,
             double* out);
void store_dt(const Tensor& dt, int64_t sequence, int64_t row, int64_t count, int64_t head,
              const float* values);
void store_dt(const Tensor& dt, int64_t sequence, int64_t row, int64_t count, int64_t head,
              const double* values);

template <class N>
ScanLimits<N> limits_of(const StateScanNumbers& numbers, int64_t head) {
  return {numbers.dt_bias.data<N>()[head], static_cast<N>(numbers.min_step),
          static_cast<N>(numbers.max_step)};
}
// e^a_log.
template <class N>
double rate_of(const StateScanNumbers& numbers, int64_t head);
// Sets everything but the steps, which are those of documents.count tokens.
template <class N>
void set_decays(double rate, const ChunkDocuments& documents, ScanDecays<N>& decays);

// What the heads of a group share in one chunk.
template <class N>
struct GroupChunk {
  GroupChunk(const ScanSizes& s, bool backward, std::byte* begin);

  // B^T or C^T as the first factor of a product that is summed over the chunk's tokens.
  struct Turned {
    Word<N>* at;
    int64_t row, step;
  };

  int64_t bytes;
  Word<N>* c_rows;  // [kScanChunk][words(states)]; backward: of b
  Turned b_turned;
  N* g;             // [kScanChunk][kScanChunk]; backward: its transpose
  Word<N>* across;  // backward: C as panels, summed over states, [2][state_panel]
  Turned c_turned;  // backward
};
template <class N>
struct GroupWork {
  GroupWork(const ScanSizes& s, std::byte* begin);
  int64_t bytes;
  Word<N>*across, *turning;
};
// Packs rows [low, high) of c and [0, high) of b; b_turned if all tokens of the chunk are there.
template <class N>
void pack_group(const ScanSizes& s, const MatrixRows& b, const MatrixRows& c, int64_t low,
                int64_t high, const GroupWork<N>& work, const GroupChunk<N>& to);
// Packs b_turned alone, of `count` rows.
template <class N>
void turn_group(const ScanSizes& s, const MatrixRows& b, int64_t count, const GroupWork<N>& work,
                const GroupChunk<N>& to);
// The rows of a matrix as the columns of two panels, summed over its elements; columns beyond
// `count` are 0.
template <class W>
void pack_across(const ScanSizes& s, const MatrixRows& from, int64_t count, int64_t elements,
                 W* out);
// Packs `count` rows of b and c for the backward pass.
template <class N>
void pack_group_backward(const ScanSizes& s, const MatrixRows& b, const MatrixRows& c,
                         int64_t count, const GroupWork<N>& work, const GroupChunk<N>& to);

// Memory of one thread for the chunks of one head.
template <class N>
struct HeadWork {
  HeadWork(const ScanSizes& s, std::byte* begin);
  int64_t bytes;
  N* states;                // [block_heads][state_size]
  Word<N>* pairs;           // the state as the second factor, if kinds are paired
  Word<N>*panels, *masked;  // tokens of x; M
  N *inside, *before;       // [kScanChunk][columns]
};

template <class N>
struct HeadChunk {
  const ScanDecays<N>& decays;
  const ChunkDocuments& documents;
  const GroupChunk<N>& group;
  MatrixRows x;  // of the chunk's first token
  N* state;      // before the chunk, if has_state
  bool has_state;
};
// Outputs of tokens [low, high) of the chunk. out: of token `low`.
template <class N>
void scan_chunk(const ScanSizes& s, const HeadChunk<N>& chunk, int64_t low, int64_t high, N d,
                const MatrixRows& out, const HeadWork<N>& work);
// Replaces the state by that after the chunk's `count` tokens.
template <class N>
void advance_state(const ScanSizes& s, const HeadChunk<N>& chunk, Word<N>* panels);

// state = (keeps ? factor * state : 0) + turned x panels, summed over `count` tokens.
template <class N>
void add_to_state(const ScanSizes& s, const typename GroupChunk<N>::Turned& turned,
                  const Word<N>* panels, int64_t count, bool keeps, N factor, N* state);
// The state as a second factor; pairs: memory for it.
template <class N>
const Word<N>* state_factor(const ScanSizes& s, const N* state, Word<N>* pairs);

// A state from [P,N] to panels, and the reverse; turned: memory of kPanel^2 elements.
template <class N>
void load_state(const ScanSizes& s, const N* from, N* state);
template <class N>
void store_state(const ScanSizes& s, const N* state, N* to, N* turned);

// Memory that a call requests from the scratch arena.
struct ScanScratch {
  std::shared_ptr<Storage> groups, work, partials, sums;
  int64_t group_bytes = 0, work_bytes = 0, partial_bytes = 0;  // of a chunk; of a thread
};
// What a forward pass over that many chunks of each sequence needs.
ScanScratch scan_scratch(const ScanSizes& s, int64_t chunks, Stream& stream);
ScanScratch state_scan_scratch(const StateScanArgs& args, Stream& stream);
ScanScratch state_scan_backward_scratch(const StateScanBackwardArgs& args, Stream& stream);
ScanScratch state_scan_continued_scratch(const StateScanContinuedArgs& args, Stream& stream);
ScanScratch state_carry_scratch(const StateCarryArgs& args, Stream& stream);

template <class N>
using Tile = std::conditional_t<std::is_same_v<N, double>, DoubleTileProduct, TileProduct>;

}  // namespace megatron::kernels::cpu
