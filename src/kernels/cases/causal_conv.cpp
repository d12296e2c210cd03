#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "kernels/cases/inputs.h"

namespace megatron::kernels {
namespace {

struct Sequences {
  int64_t batch = 1, length = 1, channels = 1, width = 4;
  bool bias = true, sums = true;        // sums: of the weights' gradients
  std::vector<int64_t> documents = {};  // their first tokens, one later in each next sequence
  Layout layout = {};
  float beta = 0;
  bool real = false;
  DType type = DType::f32;

  std::string str() const {
    return fmt::format("b={} t={} c={} k={} {}{}{}{}{}", batch, length, channels, width,
                       describe(type, layout), bias ? "" : " no bias", sums ? "" : " no sums",
                       documents.empty() ? "" : fmt::format(" documents {}", documents),
                       beta != 0 ? " accumulated" : "");
  }
  Shape shape() const { return {batch, length, channels}; }

  Tensor starts(Inputs& inputs) const {
    if (documents.empty()) return {};
    std::vector<double> values;
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t t = 0; t < length; ++t) {
        int64_t start = 0;
        for (const int64_t first : documents)
          if (first + b <= t) start = std::max(start, first + b);
        values.push_back(static_cast<double>(start));
      }
    }
    return inputs.values("starts", {batch, length}, DType::i32, values);
  }
};

// Sums of a size of about 1, whose sigmoid is neither 0 nor 1.
template <class Args, class S>
Args convolution(Inputs& inputs, const S& s) {
  Args args;
  args.x = inputs.normal("x", s.shape(), s.type, 1, s.layout);
  args.weight = inputs.normal("weight", {s.channels, s.width}, s.type, 0.5);
  if (s.bias) args.bias = inputs.normal("bias", {s.channels}, s.type);
  return args;
}

CausalConvArgs conv_args(Inputs& inputs, const Sequences& s) {
  auto args = convolution<CausalConvArgs>(inputs, s);
  args.starts = s.starts(inputs);
  args.out = inputs.output("out", s.shape(), s.type, s.layout);
  return args;
}

CausalConvBackwardArgs conv_backward_args(Inputs& inputs, const Sequences& s) {
  auto args = convolution<CausalConvBackwardArgs>(inputs, s);
  const DType wide = accumulator(s.type);
  args.starts = s.starts(inputs);
  args.dout = inputs.normal("dout", s.shape(), s.type, 1, s.layout);
  args.dx = inputs.output("dx", s.shape(), s.type, s.layout);
  if (!s.sums) return args;
  args.dweight = inputs.sum("dweight", {s.channels, s.width}, wide, s.beta);
  if (s.bias) args.dbias = inputs.sum("dbias", {s.channels}, wide, s.beta);
  return args;
}

// Pieces of texts in one call: their first tokens (-1: padding only) and, if they are shorter than
// the longest, their lengths.
struct Piece {
  int64_t begin = 0, tokens = -1;
};
struct Pieces {
  std::vector<Piece> texts;
  int64_t length = 1, channels = 1, width = 4, block_size = 64;
  bool bias = true;
  Layout layout = {};
  bool real = false;
  DType type = DType::f32;

  int64_t count() const { return static_cast<int64_t>(texts.size()); }
  std::string str() const {
    std::string begins = real ? fmt::format(" {} texts", count()) : "";
    for (const Piece& piece : real ? std::vector<Piece>() : texts)
      begins += fmt::format(" {}+{}", piece.begin, piece.tokens < 0 ? length : piece.tokens);
    return fmt::format("{} of{} c={} k={} blocks of {} {}{}", length, begins, channels, width,
                       block_size, describe(type, layout), bias ? "" : " no bias");
  }
  Shape shape() const { return {count(), length, channels}; }
};

CausalConvContinuedArgs conv_continued_args(Inputs& inputs, const Pieces& p) {
  int64_t blocks = 1;
  for (const Piece& piece : p.texts)
    blocks = std::max(blocks, (piece.begin + p.length) / p.block_size + 1);
  std::vector<double> positions, table;
  for (int64_t b = 0; b < p.count(); ++b) {
    const auto [begin, tokens] = p.texts[static_cast<size_t>(b)];
    const int64_t end = begin < 0 ? begin : begin + (tokens < 0 ? p.length : tokens);
    for (int64_t t = begin; t < begin + p.length; ++t)
      positions.push_back(t < end ? static_cast<double>(t) : -1);
    // Slots in reverse order; none for blocks that no token needs any more.
    for (int64_t j = 0; j < blocks; ++j)
      table.push_back((j + 1) * p.block_size < begin
                          ? -1
                          : static_cast<double>(p.count() * blocks - 1 - (b * blocks + j)));
  }
  auto args = convolution<CausalConvContinuedArgs>(inputs, p);
  args.positions = inputs.values("positions", {p.count(), p.length}, DType::i32, positions);
  args.block_table = inputs.values("block_table", {p.count(), blocks}, DType::i32, table);
  args.block_size = p.block_size;
  const Shape tails = {p.count() * blocks, p.width - 1, p.channels};
  args.tails = inputs.updated("tails", inputs.normal("tails", tails, p.type));
  args.out = inputs.output("out", p.shape(), p.type, p.layout);
  return args;
}

std::vector<Sequences> sequences() {
  return in_types<Sequences>({
      {},
      {.batch = 2, .length = 0, .channels = 8, .beta = 1},
      {.batch = 0, .length = 3, .channels = 8},
      {.batch = 2, .length = 7, .channels = 33, .width = 3, .documents = {3, 4}, .layout = kPadded},
      {.batch = 3, .length = 3, .channels = 40, .width = 8, .layout = kMisaligned, .beta = 1},
      {.batch = 2, .length = 21, .channels = 20, .width = 1, .documents = {5}, .layout = kPadded},
      {.batch = 2, .length = 19, .channels = 72, .width = 2, .bias = false, .sums = false},
      {.batch = 1, .length = 150, .channels = 96, .documents = {1, 5, 63, 64, 66, 127, 149}},
      {.batch = 2, .length = 40, .channels = 600, .documents = {15, 17}, .beta = 1},
      {.batch = 2, .length = 70, .channels = 48, .width = 8, .documents = {30, 32, 33, 40, 64}},
      {.batch = 3, .length = 530, .channels = 8, .width = 4, .bias = false, .documents = {511}},
      {.batch = 1, .length = 4096, .channels = 5376, .real = true},
      {.batch = 1, .length = 4096, .channels = 10240, .real = true},
  });
}

std::vector<Pieces> pieces() {
  return in_types<Pieces>({
      {.texts = {{0}}},
      {.texts = {{0}, {5}, {63}, {64}, {-1}, {65}, {130}}, .channels = 40},
      {.texts = {{0}, {1}, {60}, {64, 3}, {-1}, {122}},
       .length = 7,
       .channels = 33,
       .layout = kPadded},
      {.texts = {{0}, {32}, {64, 1}}, .length = 64, .channels = 24, .bias = false},
      {.texts = {{10}, {28}, {0, 99}}, .length = 100, .channels = 520, .layout = kMisaligned},
      {.texts = {{3}, {0}, {1, 2}, {8}}, .length = 9, .channels = 20, .width = 8, .block_size = 2},
      {.texts = {{2}, {0, 0}}, .length = 3, .channels = 16, .width = 1, .block_size = 2},
      {.texts = {{62}, {1}}, .length = 3, .channels = 16, .width = 2},
      {.texts = {{0}, {7}}, .length = 0, .channels = 8},
      {.texts = std::vector<Piece>(64, {.begin = 200}), .channels = 5376, .real = true},
  });
}

}  // namespace

void add_causal_conv_cases(std::vector<Case>& cases) {
  // K products and sums, then as the activation.
  for (const Sequences& s : sequences()) {
    const double bound = tolerance(s.type, 8 + static_cast<double>(s.width));
    cases.push_back(case_of(&Table::causal_conv, s, bound, conv_args));
  }
  // As above and once more in the slope; sums over B T tokens.
  for (const Sequences& s : sequences()) {
    const auto tokens = static_cast<double>(s.batch * s.length),
               width = static_cast<double>(s.width);
    const double bound = tolerance(s.type, 16 + 2 * width + std::sqrt(tokens));
    cases.push_back(case_of(&Table::causal_conv_backward, s, bound, conv_backward_args));
  }
  for (const Pieces& p : pieces()) {
    const double bound = tolerance(p.type, 8 + static_cast<double>(p.width));
    cases.push_back(case_of(&Table::causal_conv_continued, p, bound, conv_continued_args));
  }
}

}  // namespace megatron::kernels
