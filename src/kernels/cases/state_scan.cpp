#include <fmt/core.h>

#include <array>
#include <limits>

#include "base/divide.h"
#include "kernels/cases/inputs.h"

namespace megatron::kernels {
namespace {

struct Scan {
  int64_t batch = 1, tokens = 1, heads = 1, groups = 1, width = 8, states = 8;
  // Lengths of the documents, repeated cyclically; each sequence begins one token later.
  std::vector<int64_t> documents = {};
  double min_step = 0, max_step = std::numeric_limits<double>::infinity();
  bool sliced = false;  // x, b, c and dt are parts of one tensor, the output of a product
  bool steep = false;   // decays that are 0 or 1 after a few tokens
  bool added = false;   // sums are accumulated
  bool handed = false;  // documents began before the sequence, and go on after it
  bool real = false;
  DType type = DType::f32;

  std::string str() const {
    return fmt::format("b={} t={} h={}/{} p={} n={} {}{}{}{}{}{}{}", batch, tokens, heads, groups,
                       width, states, describe(type, {}), documents.empty() ? "" : " documents",
                       max_step < 1 ? " limits" : "", sliced ? " sliced" : "",
                       steep ? " steep" : "", added ? " added" : "", handed ? " handed" : "");
  }
};

// f32: 1e-5, for sums of up to a few hundred terms, whose errors add up like the root of their
// number. f64: logarithms of decays of up to some hundreds, which f32 has as two numbers.
// Types of 16 bits also round operands of products, each by at most 2^-9 (2^-12) of a term and
// independently, which is less than the last rounding to a neighbour. That may be of an element of
// 24 times the root mean square: the results are products of four normal numbers.
double scan_tolerance(DType type) {
  if (type == DType::f64) return tolerance(type, 256);
  const double wide = tolerance(DType::f32, 20);
  return wide + (type == DType::bf16 ? 24 * 0x1p-7 : type == DType::f16 ? 24 * 0x1p-10 : 0);
}

template <class Args>
void set_inputs(Inputs& inputs, const Scan& s, Args& args) {
  const int64_t heads = s.heads, inner = heads * s.width, of_groups = s.groups * s.states;
  const Shape of_x{s.batch, s.tokens, heads, s.width}, of_b{s.batch, s.tokens, s.groups, s.states};
  if (s.sliced) {
    const int64_t columns = inner + 2 * of_groups + heads;
    const Tensor all = inputs.normal("projected", {s.batch, s.tokens, columns}, s.type, 1, kPadded);
    const auto part = [&](const Shape& shape, int64_t offset) {
      const std::array<int64_t, 4> strides{all.stride(0), all.stride(1), shape[-1], 1};
      return all.as_strided(shape, strides, offset);
    };
    args.x = part(of_x, 0);
    args.b = part(of_b, inner);
    args.c = part(of_b, inner + of_groups);
    args.dt = all.slice(2, columns - heads, heads);
  } else {
    args.x = inputs.normal("x", of_x, s.type);
    args.b = inputs.normal("b", of_b, s.type);
    args.c = inputs.normal("c", of_b, s.type);
    args.dt = inputs.normal("dt", {s.batch, s.tokens, heads}, s.type);
  }
  const DType wide = accumulator(s.type);
  // Heads that remember a few tokens and heads that remember hundreds.
  std::vector<double> bias, rate;
  for (int64_t h = 0; h < heads; ++h) {
    bias.push_back(s.steep ? 3.0 - 2 * static_cast<double>(h)
                           : -4.5 + 2 * static_cast<double>(h % 3));
    rate.push_back(s.steep ? 5.0 - 4 * static_cast<double>(h % 3)
                           : -1 + static_cast<double>(h % 4));
  }
  args.numbers = {.a_log = inputs.values("a_log", {heads}, wide, rate),
                  .dt_bias = inputs.values("dt_bias", {heads}, wide, bias),
                  .d = inputs.normal("d", {heads}, wide),
                  .min_step = s.min_step,
                  .max_step = s.max_step};
}

Tensor starts_of(Inputs& inputs, const Scan& s) {
  if (s.documents.empty()) return {};
  std::vector<double> starts;
  for (int64_t sequence = 0; sequence < s.batch; ++sequence) {
    int64_t begin = s.handed ? -3 : 0, end = s.documents[0] + sequence;
    size_t next = 1;
    for (int64_t t = 0; t < s.tokens; ++t) {
      if (t == end) {
        begin = end;
        end += s.documents[next++ % s.documents.size()];
      }
      starts.push_back(static_cast<double>(begin));
    }
  }
  return inputs.values("starts", {s.batch, s.tokens}, DType::i32, starts);
}

// A state that is handed from or to another sequence.
Tensor handed_state(Inputs& inputs, const Scan& s, const char* name) {
  if (!s.handed) return {};
  return inputs.normal(name, {s.batch, s.heads, s.width, s.states}, accumulator(s.type));
}

Layout layout_of(const Scan& s) { return s.sliced ? kPadded : Layout{}; }

StateScanArgs scan_args(Inputs& inputs, const Scan& s) {
  StateScanArgs args;
  set_inputs(inputs, s, args);
  args.starts = starts_of(inputs, s);
  args.initial = handed_state(inputs, s, "initial");
  args.out = inputs.output("out", args.x.shape(), s.type, layout_of(s));
  return args;
}

StateScanBackwardArgs scan_backward_args(Inputs& inputs, const Scan& s) {
  StateScanBackwardArgs args;
  set_inputs(inputs, s, args);
  args.starts = starts_of(inputs, s);
  args.initial = handed_state(inputs, s, "initial");
  args.dfinal = handed_state(inputs, s, "dfinal");
  args.dout = inputs.normal("dout", args.x.shape(), s.type, 1, layout_of(s));
  args.dx = inputs.output("dx", args.x.shape(), s.type, layout_of(s));
  args.ddt = inputs.output("ddt", args.dt.shape(), s.type, layout_of(s));
  args.db = inputs.output("db", args.b.shape(), s.type, layout_of(s));
  args.dc = inputs.output("dc", args.b.shape(), s.type, layout_of(s));
  const DType wide = accumulator(s.type);
  const float beta = s.added ? 1 : 0;
  args.da_log = inputs.sum("da_log", {s.heads}, wide, beta);
  args.ddt_bias = inputs.sum("ddt_bias", {s.heads}, wide, beta);
  args.dd = inputs.sum("dd", {s.heads}, wide, beta);
  return args;
}

struct CarryScan {
  Scan scan;
  bool gradient = false, real = false;
  DType type = DType::f32;

  std::string str() const {
    Scan shape = scan;
    shape.type = type;
    return shape.str() + (gradient ? " gradient" : "");
  }
};

StateCarryArgs carry_args(Inputs& inputs, const CarryScan& carry) {
  Scan s = carry.scan;
  s.type = carry.type;
  StateScanArgs scan;
  set_inputs(inputs, s, scan);
  StateCarryArgs args{.x = scan.x, .dt = scan.dt, .b = scan.b, .numbers = scan.numbers};
  args.starts = starts_of(inputs, s);
  args.gradient = carry.gradient;
  const DType wide = accumulator(s.type);
  args.state = inputs.output("state", {s.batch, s.heads, s.width, s.states}, wide);
  args.decay = inputs.output("decay", {s.batch, s.heads}, wide);
  return args;
}

// A piece of every text: tokens [begin, begin + scan.tokens), with another begin for every text.
struct Piece {
  Scan scan;
  int64_t begin = 0, block = 64;
  int64_t padding = 0;  // at the end of the last text
  bool idle = false;    // the first text is padding
  DType type = DType::f32;

  std::string str() const {
    Scan shape = scan;
    shape.type = type;
    return fmt::format("{} from {} blocks of {}{}{}", shape.str(), begin, block,
                       padding > 0 ? " padding" : "", idle ? " idle" : "");
  }
};

StateScanContinuedArgs continued_args(Inputs& inputs, const Piece& piece) {
  Scan s = piece.scan;
  s.type = piece.type;
  StateScanContinuedArgs args{.block_size = piece.block};
  set_inputs(inputs, s, args);
  const int64_t last = piece.begin + 37 * s.batch + s.tokens, blocks = ceil_div(last, piece.block);
  const int64_t slots = s.batch * blocks + 1;
  std::vector<double> positions, table;
  for (int64_t text = 0; text < s.batch; ++text) {
    for (int64_t i = 0; i < s.tokens; ++i) {
      const bool padding =
          (piece.idle && text == 0) || (text == s.batch - 1 && i >= s.tokens - piece.padding);
      positions.push_back(padding ? -1 : static_cast<double>(piece.begin + 37 * text + i));
    }
    for (int64_t i = 0; i < blocks; ++i)
      table.push_back(static_cast<double>((text * blocks + i) * 5 % slots));
  }
  if (slots % 5 == 0)
    for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<double>(i);
  args.positions = inputs.values("positions", {s.batch, s.tokens}, DType::i32, positions);
  args.block_table = inputs.values("block_table", {s.batch, blocks}, DType::i32, table);
  const DType wide = accumulator(s.type);
  const auto slot = [&](const char* name, const Shape& shape, DType type) {
    return inputs.updated(name, inputs.normal(name, shape, type));
  };
  args.slots.state = slot("slot_state", {slots, s.heads, s.width, s.states}, wide);
  args.slots.x = slot("slot_x", {slots, kScanChunk, s.heads, s.width}, s.type);
  args.slots.b = slot("slot_b", {slots, kScanChunk, s.groups, s.states}, s.type);
  args.slots.steps = inputs.updated(
      "slot_steps", inputs.positive("slot_steps", {slots, kScanChunk, s.heads}, wide));
  args.out = inputs.output("out", args.x.shape(), s.type, layout_of(s));
  return args;
}

// Documents begin at the borders of chunks, next to them and inside; some chunks have several.
std::vector<Scan> scan_shapes() {
  return {
      {},
      {.batch = 0, .tokens = 3, .heads = 2},
      {.batch = 2, .tokens = 0, .heads = 2},
      {.batch = 2, .tokens = 7, .heads = 6, .groups = 3, .width = 5, .states = 3, .sliced = true},
      {.batch = 1, .tokens = 64, .heads = 2, .width = 64, .states = 32},
      {.batch = 1, .tokens = 65, .heads = 3, .width = 33, .states = 17, .added = true},
      {.batch = 2,
       .tokens = 200,
       .heads = 4,
       .groups = 2,
       .width = 40,
       .states = 24,
       .sliced = true},
      {.tokens = 129, .heads = 2, .width = 64, .states = 128, .min_step = 0.05, .max_step = 0.3},
      {.batch = 2,
       .tokens = 210,
       .heads = 3,
       .width = 16,
       .states = 16,
       .documents = {64, 64, 1, 13, 30, 40},
       .added = true},
      {.batch = 3, .tokens = 150, .heads = 2, .groups = 2, .documents = {3, 5}, .sliced = true},
      {.batch = 2, .tokens = 150, .heads = 6, .width = 24, .states = 40, .steep = true},
      {.batch = 2,
       .tokens = 90,
       .heads = 3,
       .width = 9,
       .states = 11,
       .documents = {70},
       .sliced = true,
       .steep = true},
      // states that are handed on, through sequences of one chunk or several, and the last of
      // which is not whole; documents that go on, and that begin inside or at the borders
      {.tokens = 5, .heads = 2, .width = 9, .states = 11, .handed = true},
      {.batch = 2,
       .tokens = 130,
       .heads = 4,
       .groups = 2,
       .width = 40,
       .states = 24,
       .sliced = true,
       .added = true,
       .handed = true},
      {.batch = 2,
       .tokens = 150,
       .heads = 3,
       .width = 16,
       .states = 16,
       .documents = {64, 64, 30},
       .handed = true},
      // tasks of several heads on the host, the last of them of fewer
      {.batch = 2, .tokens = 90, .heads = 20, .groups = 2, .documents = {40, 31}},
      // Mamba-2 2.7B and Nemotron-H 8B
      {.tokens = 2048, .heads = 80, .width = 64, .states = 128, .sliced = true, .real = true},
      {.tokens = 2048,
       .heads = 128,
       .groups = 8,
       .width = 64,
       .states = 128,
       .sliced = true,
       .real = true},
  };
}

std::vector<CarryScan> carries() {
  std::vector<CarryScan> all;
  for (const Scan& scan : scan_shapes())
    if (scan.handed || scan.tokens <= 64 || scan.real)
      for (const bool gradient : {false, true}) all.push_back({scan, gradient, scan.real});
  return all;
}

std::vector<Piece> pieces() {
  const Scan two{.batch = 2, .heads = 4, .groups = 2, .width = 24, .states = 20};
  const auto of = [](Scan scan, int64_t tokens, bool sliced = false) {
    scan.tokens = tokens;
    scan.sliced = sliced;
    return scan;
  };
  return {
      {},
      {.scan = of(two, 0)},
      {.scan = of(two, 1), .begin = 27},
      {.scan = of(two, 1, true), .begin = 63},
      {.scan = of(two, 1), .begin = 64, .block = 128},
      {.scan = of(two, 1), .begin = 128, .block = 128},
      {.scan = of(two, 7, true), .begin = 60},
      {.scan = of(two, 7), .begin = 120, .block = 128, .idle = true},
      {.scan = of(two, 64), .begin = 64},
      {.scan = of(two, 64, true), .begin = 27, .padding = 5},
      {.scan = of(two, 100, true), .begin = 0, .block = 128, .padding = 40},
      {.scan = of(two, 130), .begin = 50, .block = 64},
      {.scan = of(two, 130, true), .begin = 10, .block = 192, .idle = true},
      {.scan = {.batch = 3, .tokens = 9, .heads = 2, .width = 64, .states = 128}, .begin = 30},
      {.scan = {.tokens = 1, .heads = 3, .width = 33, .states = 17}, .begin = 90},
      {.scan = {.batch = 2, .tokens = 70, .heads = 20, .groups = 2}, .begin = 30, .block = 128},
  };
}

}  // namespace

void add_state_scan_cases(std::vector<Case>& cases) {
  for (const Scan& s : in_types(scan_shapes()))
    cases.push_back(case_of(&Table::state_scan, s, scan_tolerance(s.type), scan_args));
  for (const Scan& s : in_types(scan_shapes()))
    cases.push_back(
        case_of(&Table::state_scan_backward, s, scan_tolerance(s.type), scan_backward_args));
  for (const CarryScan& c : in_types(carries()))
    cases.push_back(case_of(&Table::state_carry, c, scan_tolerance(c.type), carry_args));
  for (const Piece& p : in_types(pieces()))
    cases.push_back(
        case_of(&Table::state_scan_continued, p, scan_tolerance(p.type), continued_args));
}

}  // namespace megatron::kernels
