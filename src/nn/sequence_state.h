// What a model remembers of sequences that it reads piece by piece: keys and values of every attention layer, in pages
// (a paged "KV cache"; Kwon et al. 2023). Who owns a page, and whose it is, is not known here.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "autograd/tape.h"
#include "nn/batch.h"
#include "ops/attention.h"
#include "tensor/tensor.h"

namespace megatron::nn {

// Of one layer; without heads: it keeps nothing.
struct LayerCache {
  int64_t kv_heads = 0, head_size = 0;
  int64_t window = 0;  // tokens that a query sees at most, itself included; 0: all
};

// The layers of one window. They hold the same tokens, so that one page number means a page in each of them.
struct CacheGroup {
  int64_t window = 0;
  std::vector<int64_t> layers;
  int64_t token_elements = 0;  // keys and values of one token, in all of them
};
// In the order of their first layers; layers that keep nothing are in none.
std::vector<CacheGroup> cache_groups(std::span<const LayerCache> layers);

struct SequenceStateShape {
  std::vector<LayerCache> layers;
  int64_t block_size = 64;     // tokens of a page; a multiple of kernels::kPageKeys
  std::vector<int64_t> pages;  // of each of cache_groups(layers)

  int64_t elements() const;  // of all pages
};

// New tokens [begin, begin + count) of one sequence. tables[g][j] is the page of group g that holds tokens [j P, (j +
// 1) P), P the block size; a page that no token sees any more may be any, or negative. Padding has begin -1, count 1
// and no tables: its token sees nothing and is put nowhere.
struct SequencePart {
  int64_t begin = 0, count = 0;
  std::vector<std::span<const int32_t>> tables;
};

// A batch whose `continuation` is set (nn/batch.h) holds the next tokens of some sequences, one behind the other and
// not padded, as one sequence of the batch. Attention puts their keys and values in their pages and attends to all up
// to each query's index; logits have the very bits of one forward pass over the whole sequence.
class SequenceState {
 public:
  // Throws Error naming bytes and what to change when there is no memory for it.
  SequenceState(const SequenceStateShape& shape, DType type, Runtime& runtime);

  const SequenceStateShape& shape() const { return shape_; }
  const std::vector<CacheGroup>& groups() const { return groups_; }

  // For the batch of these parts; those of equal counts side by side make one call of the attention kernel. The state
  // has to stay where it is.
  Continuation next(std::span<const SequencePart> parts);
  // The same in two steps, for indices at a place of the caller's: what they are (block tables of `blocks` entries at
  // least), and the continuation that reads them from i32 [n] there, by the parts' counts alone where `blocks` is as
  // many as any of them needs.
  std::vector<int32_t> indices(std::span<const SequencePart> parts, int64_t blocks = 0) const;
  Continuation over(const Tensor& indices, std::span<const SequencePart> parts, int64_t blocks = 0);

  // [pages, block size, kv_heads, head_size], of a layer that keeps them.
  const Tensor& keys(int64_t layer) const { return keys_[static_cast<size_t>(layer)]; }
  const Tensor& values(int64_t layer) const { return values_[static_cast<size_t>(layer)]; }

  // Attention's side, without gradients: puts the new keys and values of a layer in their pages and returns what the
  // queries [1,T,N,D] make of all that they see: [T, N D]. options: without positions.
  Tensor attend(Tape& tape, int64_t layer, const ops::Heads& heads,
                const ops::AttentionOptions& options, const Continuation& at) const;

 private:
  SequenceStateShape shape_;
  Runtime& runtime_;
  std::vector<CacheGroup> groups_;
  std::vector<size_t> group_of_;  // by layer
  std::vector<Tensor> keys_, values_;
};

}  // namespace megatron::nn
