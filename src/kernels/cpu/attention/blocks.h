// Tiling of attention. The rows of a key head are its queries times the query heads that share it,
// so that keys and values are read once for the whole group.
#pragma once

#include <algorithm>
#include <memory>
#include <span>

#include "base/divide.h"
#include "device/stream.h"
#include "kernels/attention.h"
#include "kernels/cpu/attention/pack.h"
#include "kernels/cpu/attention/rows.h"

namespace megatron::kernels::cpu {

// Divides memory into arrays of 32-bit words, each aligned to 64 bytes, and returns the total
// number of bytes. If begin is null it only counts.
struct ScratchPiece {
  uint32_t** place;
  int64_t words;
};
int64_t cut_pieces(std::byte* begin, std::span<const ScratchPiece> pieces);
inline float* floats(uint32_t* words) { return reinterpret_cast<float*>(words); }

// Sizes of a call, the same for its forward and backward pass.
struct AttentionSizes {
  template <class Args>
  explicit AttentionSizes(const Args& args)
      : AttentionSizes(args.q, args.k, args.v, args.keys(), args.causal, args.dropout) {
    q_positions = args.q_positions;
    k_positions = args.k_positions;
    window_start = args.window_start;
    window_end = args.window_end;
    window = args.window;
    chunk = args.chunk;
  }

  // Keys of a block, padded to panels.
  int64_t block_keys(int64_t block) const {
    return std::min(kKeyColumns, padded_keys - block * kKeyColumns);
  }
  int64_t key_blocks() const { return ceil_div(padded_keys, kKeyColumns); }
  int64_t row_blocks() const { return ceil_div(queries * group, kQueryRows); }

  // Lowest and highest position of the keys that query t of a sample sees.
  int32_t key_begin(int64_t sample, int64_t t) const;
  int32_t position(int64_t sample, int64_t t) const;
  int32_t limit(int64_t sample, int64_t t) const;

  // A row of queries or keys (D elements), or of values (V elements).
  struct Width {
    Width(int64_t size, WordKind kind)
        : elements(size), words(cpu::words(kind, size)), columns(round_up(size, kPanel)) {}
    int64_t elements, words;
    int64_t columns;  // elements, padded to whole panels
  };

  int64_t batch, queries, keys, kv_heads, group;
  WordKind kind;
  Width key, value;
  int64_t padded_keys;  // S padded to whole panels
  Tensor q_positions, k_positions, window_start, window_end;
  int64_t window = 0, chunk = 0;
  bool causal;
  const DropoutArgs::Mask& dropout;

 private:
  AttentionSizes(const Tensor& q, const Tensor& k, const Tensor& v, int64_t keys, bool causal,
                 const DropoutArgs::Mask& dropout);
};

// A range of a block's keys, in multiples of kPanel, and their lowest and highest position.
struct KeyRange {
  int64_t first, count;
  int32_t lowest, highest;
  // Number of keys in the range up to the last one within the requested positions.
  int64_t reachable;
};

// Positions of the keys of every sample, and the lowest and highest position in each panel of
// kPanel keys.
class KeyPlaces {
 public:
  // memory has bytes(sizes) bytes.
  KeyPlaces(const AttentionSizes& sizes, std::shared_ptr<Storage> memory);
  static int64_t bytes(const AttentionSizes& sizes);
  const int32_t* keys(int64_t sample, int64_t block) const {
    return key_ + sample * padded_keys_ + block * kKeyColumns;
  }
  // Keys of a block, without the panels at its ends that have no key in [begin, limit].
  KeyRange within(int64_t sample, int64_t block, int32_t begin, int32_t limit) const;
  // The same for the lowest begin and the highest limit of all queries of the sample.
  KeyRange reachable(int64_t sample, int64_t block) const;

 private:
  std::shared_ptr<Storage> storage_;
  int64_t padded_keys_;
  int32_t* key_;
  int32_t* lowest_;
  int32_t* highest_;
  int32_t* begin_;  // [samples]: over all queries
  int32_t* limit_;
};

// One block of rows of a (sample, key head).
struct RowBlock {
  RowBlock(const AttentionSizes& sizes, int64_t sample, int64_t key_head, int64_t block);

  // Blocks of keys [begin, end) outside of which no row sees a key.
  struct KeyBlocks {
    int64_t begin, end;
  };
  KeyBlocks key_blocks(const AttentionSizes& sizes) const;
  // The tile of this block and a block of keys, without the panels at its ends that no row sees
  // (keys is 0 if no key is seen).
  TilePlace tile(const KeyPlaces& places, int64_t block) const;
  // Draws the tile's random words into `words`; does nothing without dropout.
  TileDropout draw(const AttentionSizes& sizes, const TilePlace& place, uint32_t* words) const;
  // The query head that row i belongs to.
  int64_t head(const AttentionSizes& sizes, int64_t i) const {
    return key_head * sizes.group + (begin + i) % sizes.group;
  }
  // Index of row i in an [B,N,T] tensor.
  int64_t statistics_index(const AttentionSizes& sizes, int64_t i) const;

  int64_t sample, key_head, begin, count;
  int64_t rows;  // count rounded up to an even number
  // Lowest and highest key position that a row sees; padding rows repeat the last row's.
  int32_t key_begin[kQueryRows], limit[kQueryRows];
  int32_t position[kQueryRows];
  int32_t lowest_begin, highest_begin, lowest_limit, highest_limit;
};

// Throws Error that refuses the type and points to the reference device.
void require_attention_type(const char* kernel, DType type);

}  // namespace megatron::kernels::cpu
