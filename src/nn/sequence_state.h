// State of a model that reads sequences in pieces: keys and values of every attention layer, in
// pages (a paged "KV cache"; Kwon et al. 2023), and states of fixed size, in slots. The ownership
// of pages and slots is managed elsewhere.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "autograd/tape.h"
#include "nn/batch.h"
#include "ops/attention.h"
#include "tensor/tensor.h"

namespace megatron::nn {

// A tensor of a state of fixed size.
struct SlotTensor {
  Shape shape;
  DType type;
};

// Cache of one layer: in pages, elements of every token, which are keys and values of heads or a
// latent from which they are computed (nn/latent_attention.h); or in slots, a state that each token
// replaces, such as a sum over all tokens so far; or both. Cross attention has keys and values of
// every token of an encoder's text, in pages as well. A layer with none of these caches nothing.
struct LayerCache {
  int64_t kv_heads = 0, head_size = 0;
  int64_t window = 0;  // maximum number of tokens that a query sees, including its own; 0: all
  int64_t latent = 0;  // width of a latent, with the rotary key
  std::vector<SlotTensor> slot = {};        // the state of one sequence
  int64_t cross_heads = 0, cross_size = 0;  // cross attention's; 0: it has none

  int64_t token_elements() const { return latent > 0 ? latent : 2 * kv_heads * head_size; }
  int64_t cross_elements() const { return 2 * cross_heads * cross_size; }
  int64_t slot_bytes() const;
};

// The layers with pages of one window, those with slots, or those with cross attention. They hold
// the same tokens, so one number identifies a page or a slot in each of them. A layer with pages
// and slots is in a group of either.
//
// A slot takes the place of a page: that of block j holds the state after the last token of the
// block that has been read. The next token needs only the state after the token before it, so slots
// have a window of two tokens.
struct CacheGroup {
  static constexpr int64_t kSlotWindow = 2;

  int64_t window = 0;
  bool slots = false;
  bool of_encoder = false;  // tokens are those of an encoder's text
  std::vector<int64_t> layers;
  int64_t token_elements = 0;  // pages: elements of one token, over all layers
  int64_t slot_bytes = 0;      // slots: bytes of one, over all layers

  // True if the layers of both belong together.
  bool matches(const CacheGroup& other) const {
    return slots == other.slots && window == other.window && of_encoder == other.of_encoder;
  }
};
// In the order of their first layers, that of cross attention last; layers that keep nothing are in
// no group.
std::vector<CacheGroup> cache_groups(std::span<const LayerCache> layers);

struct SequenceStateShape {
  std::vector<LayerCache> layers;
  int64_t block_size = 64;     // tokens per page; a multiple of kernels::kPageKeys
  std::vector<int64_t> pages;  // for each of cache_groups(layers)
  // How latent attention reads its latents: by products that map queries to latents and weighted
  // sums of latents to values (absorbed), or by computing all keys and values again (plain), which
  // gives the bits of a forward pass over the whole sequence. A layer with an adapter of the
  // product that gives keys and values is always plain.
  bool absorbed = false;

  int64_t bytes(DType type) const;  // total over all pages, of that type, and slots
};

// New tokens [begin, begin + count) of one sequence. tables[g][j] is the page of group g that holds
// tokens [j P, (j + 1) P), P the block size, or the slot with the state after them; it may be
// anything, or negative, for one that no token needs any more. Of a group of cross attention the
// table has the pages of the encoder's text, of `encoded` tokens. Padding has begin -1, count 1 and
// no tables: its token sees nothing and is stored nowhere.
struct SequencePart {
  int64_t begin = 0, count = 0, encoded = 0;
  std::vector<std::span<const int32_t>> tables;
};

// An encoder's text of `count` tokens that is read whole. pages: those of the group of cross
// attention.
struct EncoderPart {
  int64_t count = 0;
  std::span<const int32_t> pages;
};

// Least numbers of entries in block tables.
struct TableWidths {
  int64_t blocks = 0;   // of sequences
  int64_t encoded = 0;  // of encoders' texts
  bool operator==(const TableWidths&) const = default;
};

// A batch whose `continuation` is set (nn/batch.h) holds the next tokens of some sequences,
// concatenated without padding, as one sequence of the batch. Attention stores their keys and
// values in their pages and attends to all tokens up to each query's index; the logits have the
// same bits as one forward pass over the whole sequence.
//
// A layer with slots reads the state before the token at index q of a sequence from the slot of
// block (q - 1) / P, or starts with a zero state at q = 0, and writes the state after it to the
// slot of block q / P. So at the end of a block the sequence moves on to another slot, and the
// previous slot remains as a snapshot, from which other sequences with the same prefix can
// continue.
class SequenceState {
 public:
  // Throws Error naming bytes and what to change if memory does not suffice.
  SequenceState(const SequenceStateShape& shape, DType type, Runtime& runtime);

  const SequenceStateShape& shape() const { return shape_; }
  const std::vector<CacheGroup>& groups() const { return groups_; }

  // Prepares the batch of these parts; adjacent parts of equal counts share one call of the
  // attention kernel. The state must not move.
  // texts: those that an encoder reads in the same pass (Batch::encoder), in their order.
  Continuation next(std::span<const SequencePart> parts, std::span<const EncoderPart> texts = {});
  // The same in two steps without texts, for indices in the caller's memory: the index values, and
  // the continuation that reads them there from i32 [n]. The continuation depends only on the
  // parts' counts if the widths are as large as any of them needs.
  std::vector<int32_t> indices(std::span<const SequencePart> parts,
                               const TableWidths& widths) const;
  Continuation over(const Tensor& indices, std::span<const SequencePart> parts,
                    const TableWidths& widths);

  // Copies pages, or slots, of a group in every one of its layers: from[i] to to[i], one after the
  // other.
  void copy_pages(size_t group, std::span<const int32_t> from, std::span<const int32_t> to);

  // [pages, block size, kv_heads, head_size], for a layer that keeps them.
  const Tensor& keys(int64_t layer) const { return keys_[static_cast<size_t>(layer)]; }
  const Tensor& values(int64_t layer) const { return values_[static_cast<size_t>(layer)]; }
  // [pages, block size, 1, latent], for a layer that keeps latents.
  const Tensor& latents(int64_t layer) const { return keys(layer); }
  // [slots, ...], for a layer with slots: tensor `index` of LayerCache::slot.
  const Tensor& slots(int64_t layer, size_t index = 0) const {
    return slots_[static_cast<size_t>(layer)][index];
  }
  // The calls of a layer's pages, or if it has none those of its slots.
  const Continuation::Group& group(const Continuation& at, int64_t layer) const {
    return at.groups[group_of_[static_cast<size_t>(layer)]];
  }
  const Continuation::Group& slot_group(const Continuation& at, int64_t layer) const {
    return at.groups[slot_group_of_[static_cast<size_t>(layer)]];
  }
  // [pages, block size, cross_heads, cross_size], for a layer with cross attention.
  const Tensor& cross_keys(int64_t layer) const { return cross_keys_[static_cast<size_t>(layer)]; }
  const Tensor& cross_values(int64_t layer) const {
    return cross_values_[static_cast<size_t>(layer)];
  }

  // Called by attention, without gradients: stores the new keys and values of a layer in their
  // pages and returns the attention output of the queries [1,T,N,D] over all tokens that they see:
  // [T, N D]. options: without positions.
  Tensor attend(Tape& tape, int64_t layer, const ops::Heads& heads,
                const ops::AttentionOptions& options, const Continuation& at) const;
  // The same for cross attention. k, v: of the encoder's texts that the pass reads [1,E,K,D]; empty
  // if it reads none. A token sees the whole text of its sequence.
  Tensor attend_encoded(Tape& tape, int64_t layer, const ops::Heads& heads,
                        const ops::AttentionOptions& options, const Continuation& at) const;

  // True if calls have the numbers of their own pages (Continuation::Call::own_pages).
  bool numbers_pages() const;

 private:
  std::vector<int32_t> indices(std::span<const SequencePart> parts,
                               std::span<const EncoderPart> texts, const TableWidths& widths) const;
  Continuation over(const Tensor& indices, std::span<const SequencePart> parts,
                    std::span<const EncoderPart> texts, const TableWidths& widths);

  SequenceStateShape shape_;
  Runtime& runtime_;
  std::vector<CacheGroup> groups_;
  std::vector<size_t> group_of_, slot_group_of_;  // by layer
  std::vector<Tensor> keys_, values_, cross_keys_, cross_values_;
  std::vector<std::vector<Tensor>> slots_;
};

// The tokens of a call, or of texts, from x [1,T,N,D], arranged by sequence: [B,S,N,D].
Tensor by_sequence(const Tensor& x, const Continuation::Call& call);
Tensor by_sequence(const Tensor& x, const TextRun& run);

}  // namespace megatron::nn
