#include "parallel/context_blocks.h"

#include <fmt/core.h>

#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"

namespace megatron::parallel {

Block::Block(Tape& tape, const Shape& k, const Shape& v, DType type)
    : k_(k),
      v_(v),
      both_(communication_buffer(tape, {k.elements() + v.elements()}, type, "context.block")) {}

namespace {

constexpr std::string_view kKeys = "keys and values", kGradients = "gradients of keys and values";

// Sends elements to one rank and receives elements from another. what, step: the contents, and the
// step in which the block is attended to, for the call's name. group: ranks.group() or, for calls
// that overlap, ranks.overlapped().
comm::Work send_to(Tape& tape, comm::Group& group, const Tensor& sent, int to,
                   const Tensor& received, int from, std::string_view what, int step) {
  std::vector<int64_t> sends(static_cast<size_t>(group.size())), receives(sends);
  sends[static_cast<size_t>(to)] = sent.size(0);
  receives[static_cast<size_t>(from)] = received.size(0);
  return group.all_to_all(sent, received, sends, receives, tape.stream(),
                          fmt::format("context, {}, block {}", what, step));
}

void add(Tape& tape, const Block& x, const Block& to) {
  tape.kernels().add({.a = x.both(), .b = to.both(), .out = to.both()}, tape.stream());
}

// Each rank sends the block that it holds to the next rank. The gradient of a block starts at the
// rank after the block's own, follows the block one step later, and ends at the block's own rank.
class RingExchange final : public BlockExchange {
 public:
  explicit RingExchange(const ContextRanks& ranks) : ranks_(ranks) {}

  void start(Tape& tape, const Block& held, int step, bool overlaps) override {
    next_ = held.like(tape, held.both().dtype());
    passing_ =
        pass(tape, overlaps ? ranks_.overlapped() : ranks_.group(), held, next_, kKeys, step);
  }
  Block finish(Tape& tape) override {
    passing_.wait(tape.stream());
    return std::exchange(next_, {});
  }
  void add_gradient(Tape& tape, const Block& part, int step) override {
    if (step > 1) {
      arrival_.wait(tape.stream());
      add(tape, gradient_, part);
    }
    gradient_ = part.like(tape, part.both().dtype());
    arrival_ = pass(tape, ranks_.overlapped(), part, gradient_, kGradients, step);
  }
  void add_received(Tape& tape, const Block& own) override {
    arrival_.wait(tape.stream());
    add(tape, gradient_, own);
  }

 private:
  comm::Work pass(Tape& tape, comm::Group& group, const Block& sent, const Block& received,
                  std::string_view what, int step) const {
    return send_to(tape, group, sent.both(), ranks_.at(1), received.both(), ranks_.at(-1), what,
                   step);
  }

  const ContextRanks& ranks_;
  Block next_, gradient_;  // gradient_: gradient of the previous step's block
  comm::Work passing_, arrival_;
};

// A message with some rows of a block: those of the keys, then those of the values. It allocates
// memory for all rows, so that memory does not depend on the documents of a micro-batch.
class RowsMessage {
 public:
  RowsMessage() = default;
  RowsMessage(Tape& tape, const Block& block, int64_t rows)
      : rows_(rows),
        memory_(communication_buffer(tape, {block.both().size(0)}, block.both().dtype(),
                                     "context.rows")),
        k_width_(width(block.k())),
        v_width_(width(block.v())) {}

  DType type() const { return memory_.dtype(); }
  Tensor sent() const { return memory_.slice(0, 0, rows_ * (k_width_ + v_width_)); }
  // Copies rows of the block to the message. index i32 [rows]: the rows.
  void take(Tape& tape, const Block& block, const Tensor& index) const {
    if (rows_ == 0) return;
    take_rows(tape, all_rows(block.k()), index, k());
    take_rows(tape, all_rows(block.v()), index, v());
  }
  // Copies the message to rows of the block. places i32 [B*S']: index in the message of each row of
  // the block; -1 for rows that are not in it, which become 0.
  void put(Tape& tape, const Block& block, const Tensor& places) const {
    if (rows_ == 0) {
      tape.kernels().fill({.out = block.both(), .value = 0}, tape.stream());
      return;
    }
    take_rows(tape, k(), places, all_rows(block.k()));
    take_rows(tape, v(), places, all_rows(block.v()));
  }

 private:
  static int64_t width(const Tensor& x) { return x.size(2) * x.size(3); }
  static Tensor all_rows(const Tensor& x) { return x.view({x.size(0) * x.size(1), width(x)}); }
  static void take_rows(Tape& tape, const Tensor& x, const Tensor& index, const Tensor& out) {
    tape.kernels().take_rows({.x = x, .index = index, .out = out}, tape.stream());
  }
  Tensor k() const { return memory_.slice(0, 0, rows_ * k_width_).view({rows_, k_width_}); }
  Tensor v() const {
    return memory_.slice(0, rows_ * k_width_, rows_ * v_width_).view({rows_, v_width_});
  }

  int64_t rows_ = 0;
  Tensor memory_;
  int64_t k_width_ = 0, v_width_ = 0;
};

// In step i, each rank sends the rows of its own block that rank + i sees to that rank, which
// returns their gradients.
class RowsExchange final : public BlockExchange {
 public:
  RowsExchange(const ContextRanks& ranks, const PassedRows& rows) : ranks_(ranks), rows_(rows) {}

  void start(Tape& tape, const Block& held, int step, bool overlaps) override {
    if (step == 1) own_ = held;
    step_ = step;
    const RowsMessage sent(tape, own_, rows_.sent.count(step));
    sent.take(tape, own_, rows_.sent.rows(step));
    received_ = RowsMessage(tape, own_, rows_.received.count(step));
    passing_ = send_to(tape, overlaps ? ranks_.overlapped() : ranks_.group(), sent.sent(),
                       ranks_.at(step), received_.sent(), ranks_.at(-step), kKeys, step);
  }
  Block finish(Tape& tape) override {
    passing_.wait(tape.stream());
    Block block = own_.like(tape, own_.both().dtype());
    received_.put(tape, block, rows_.received.places(step_));
    received_ = {};
    return block;
  }
  void add_gradient(Tape& tape, const Block& part, int step) override {
    if (step > 1) take_arrived(tape);
    const RowsMessage sent(tape, part, rows_.received.count(step));
    sent.take(tape, part, rows_.received.rows(step));
    returned_ = RowsMessage(tape, part, rows_.sent.count(step));
    arrival_ = send_to(tape, ranks_.overlapped(), sent.sent(), ranks_.at(-step), returned_.sent(),
                       ranks_.at(step), kGradients, step);
    returned_step_ = step;
  }
  void add_received(Tape& tape, const Block& own) override {
    take_arrived(tape);
    add(tape, gradient_, own);
  }

 private:
  // Adds the gradients that have been returned to those of earlier steps.
  void take_arrived(Tape& tape) {
    arrival_.wait(tape.stream());
    const Block block = own_.like(tape, returned_.type());
    returned_.put(tape, block, rows_.sent.places(returned_step_));
    returned_ = {};
    if (returned_step_ > 1) add(tape, gradient_, block);
    gradient_ = block;
  }

  const ContextRanks& ranks_;
  const PassedRows& rows_;
  Block own_, gradient_;  // gradient_: of the own block, summed over the steps so far
  RowsMessage received_, returned_;
  int step_ = 0, returned_step_ = 0;  // steps of received_ and returned_
  comm::Work passing_, arrival_;
};

}  // namespace

std::unique_ptr<BlockExchange> block_exchange(const ContextRanks& ranks, const PassedRows* rows) {
  if (rows == nullptr) return std::make_unique<RingExchange>(ranks);
  return std::make_unique<RowsExchange>(ranks, *rows);
}

}  // namespace megatron::parallel
