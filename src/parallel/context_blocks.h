// Blocks of keys and values that context-parallel ranks pass to each other in ring attention.
// B sequences, of each of which a rank has S' tokens; K key heads of size D, with values of size V;
// n ranks.
#pragma once

#include <memory>

#include "parallel/context_ranks.h"

namespace megatron::parallel {

// Keys and values, or their gradients, of one rank's tokens: [B,S',K,D] and [B,S',K,V], one after
// the other in one message.
class Block {
 public:
  Block() = default;
  Block(Tape& tape, const Shape& k, const Shape& v, DType type);
  // A block of the same shape.
  Block like(Tape& tape, DType type) const { return {tape, k_, v_, type}; }

  const Tensor& both() const { return both_; }
  Tensor k() const { return both_.slice(0, 0, k_.elements()).view(k_); }
  Tensor v() const { return both_.slice(0, k_.elements(), v_.elements()).view(v_); }

 private:
  Shape k_, v_;
  Tensor both_;  // [elements]
};

// In step i of n, this rank has the block of rank - i (modulo n). Every rank makes the same calls.
class BlockExchange {
 public:
  virtual ~BlockExchange() = default;
  // Starts to fetch the block of a step from 1 on. held: the previous step's block. overlaps: true
  // if there is work between this call and finish().
  virtual void start(Tape& tape, const Block& held, int step, bool overlaps) = 0;
  // Waits for the block and returns it. Keys that no query of this rank sees may be 0.
  virtual Block finish(Tape& tape) = 0;
  // Starts to send the gradient of the block of a step from 1 on to the block's rank.
  virtual void add_gradient(Tape& tape, const Block& part, int step) = 0;
  // own: this rank's part of the gradient of its own block. Adds to it, in the order of the steps,
  // the parts that the other ranks have sent.
  virtual void add_received(Tape& tape, const Block& own) = 0;
};

// Passes whole blocks around the ring. With `rows`, each rank instead sends every other rank the
// rows that this one sees; results are the same.
std::unique_ptr<BlockExchange> block_exchange(const ContextRanks& ranks, const PassedRows* rows);

}  // namespace megatron::parallel
