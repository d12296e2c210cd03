// What a model remembers of sequences that it reads piece by piece: keys and values of every
// attention layer (a "KV cache"). Room is kept for `capacity` tokens a sequence; a layer with a window keeps what
// that sees, and some more, so that it is seldom moved.
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
  // Tokens of a sequence that a layer has room for.
  int64_t room(const LayerCache& layer) const;
  int64_t elements() const;  // of all sequences
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
  // Sequence b forgets all but its first `length` tokens. Where layers keep windows alone: all of them (0), or
  // none.
  void truncate(int64_t sequence, int64_t length);

  // [sequences, room, kv_heads, head_size], of a layer that keeps them.
  const Tensor& keys(int64_t layer) const { return keys_[static_cast<size_t>(layer)]; }
  const Tensor& values(int64_t layer) const { return values_[static_cast<size_t>(layer)]; }

  // The queries of a pass with the keys and values that they may see, and the positions of both.
  struct Extended {
    ops::Heads heads;
    Tensor q_positions, k_positions;
  };
  // Attention's side: puts the new keys and values [B,S,K,D] of a layer in their places. Without gradients.
  Extended extend(Tape& tape, int64_t layer, const ops::Heads& heads, const Continuation& at);

 private:
  // Layers of one window that is shorter than the capacity. Index 0 of a sequence is the position bases[b], a
  // multiple of kKeyStep, so that attention's tiles hold the same keys as in the whole sequence. A pass whose
  // tokens do not fit behind what is held puts both together in tensors of its own; advance() then keeps the
  // window of them.
  struct Window {
    int64_t window = 0, room = 0;
    std::vector<int64_t> bases;  // by sequence
    // Of the pass under way.
    bool apart = false;
    std::vector<int64_t> pass_bases;  // by row
    Tensor k_positions;               // [B, keys]
    struct Layer {
      int64_t index;
      Tensor keys, values;  // of a pass apart
    };
    std::vector<Layer> layers;
  };
  Window* window_of(int64_t layer);
  void plan(Window& window, const Continuation& pass, int64_t tokens);
  Tensor extended(Tape& tape, const Window& window, const Tensor& added, const Tensor& cache,
                  const Continuation& at) const;
  void keep(Window& window, int64_t first, std::span<const int64_t> counts);

  SequenceStateShape shape_;
  Runtime& runtime_;
  std::vector<Tensor> keys_, values_;
  std::vector<int64_t> lengths_;
  std::vector<Window> windows_;
};

}  // namespace megatron::nn
