// What a model remembers of sequences that it reads piece by piece: keys and values of every
// attention layer (a "KV cache"). Room is kept for `capacity` tokens a sequence.
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

struct SequenceStateShape {
  int64_t sequences = 0, capacity = 0;
  std::vector<LayerCache> layers;

  // Keys and values of one token, in all layers.
  int64_t token_elements() const;
};

// A batch whose `continuation` is set (nn/batch.h) holds the next tokens of some sequences: token t
// of its sequence b stands at index lengths()[first + b] + t, also where its new tokens are padding
// (which no true token sees, and which later, true tokens overwrite). Attention writes the new keys
// and values there and attends to all up to each query's index; logits have the very bits of one
// forward pass over the whole sequence.
class SequenceState {
 public:
  // Throws Error naming bytes and what to change when there is no memory for it.
  SequenceState(const SequenceStateShape& shape, DType type, Runtime& runtime);

  const SequenceStateShape& shape() const { return shape_; }
  std::span<const int64_t> lengths() const { return lengths_; }  // tokens held, by sequence

  // For a batch of `tokens` new tokens each of sequences [first, first + sequences). It holds for
  // one forward pass; tokens beyond the capacity are padding.
  Continuation next(int64_t first, int64_t sequences, int64_t tokens);
  // After the forward pass: the first counts[b] new tokens of sequence first + b are kept.
  void advance(int64_t first, std::span<const int64_t> counts);
  // Sequence b forgets all but its first `length` tokens.
  void truncate(int64_t sequence, int64_t length);

  // [sequences, capacity, kv_heads, head_size], of a layer that keeps them.
  const Tensor& keys(int64_t layer) const { return keys_[static_cast<size_t>(layer)]; }
  const Tensor& values(int64_t layer) const { return values_[static_cast<size_t>(layer)]; }

  // Attention's side: puts the new keys and values [B,S,K,D] of a layer in their places and returns
  // the queries with all keys and values of the batch's sequences. Without gradients.
  ops::Heads extend(Tape& tape, int64_t layer, const ops::Heads& heads, const Continuation& at);

 private:
  SequenceStateShape shape_;
  Runtime& runtime_;
  std::vector<Tensor> keys_, values_;
  std::vector<int64_t> lengths_;
};

}  // namespace megatron::nn
