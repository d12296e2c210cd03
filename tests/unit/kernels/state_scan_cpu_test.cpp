// The scan of states by chunks equals its recurrence, and pieces of a text give the bits of the
// whole.
#include <limits>

#include "amx_emulator.h"
#include "kernels/cpu/kernels.h"
#include "kernels/reference/kernels.h"
#include "unit/kernels/cpu_maker.h"
#include "unit/kernels/instruction_sets.h"

namespace megatron::kernels::cpu {
namespace {

struct ScanShape {
  int64_t batch, tokens, heads, groups, width, states;
};

template <class Args>
Args inputs(Maker& maker, const ScanShape& s, DType type) {
  Args args;
  args.x = maker.normal({s.batch, s.tokens, s.heads, s.width}, type);
  args.dt = maker.normal({s.batch, s.tokens, s.heads}, type);
  args.b = maker.normal({s.batch, s.tokens, s.groups, s.states}, type);
  args.c = maker.normal({s.batch, s.tokens, s.groups, s.states}, type);
  Doubles rates, biases;
  for (int64_t h = 0; h < s.heads; ++h) {
    rates.push_back(-1 + static_cast<double>(h));
    biases.push_back(-4 + 1.5 * static_cast<double>(h));
  }
  const DType wide = accumulator(type);
  args.numbers = {.a_log = maker.values(rates, wide),
                  .dt_bias = maker.values(biases, wide),
                  .d = maker.normal({s.heads}, wide)};
  return args;
}

StateScanArgs forward_args(Maker& maker, const ScanShape& s, DType type) {
  auto args = inputs<StateScanArgs>(maker, s, type);
  args.out = maker.empty(args.x.shape(), type);
  return args;
}

// Reads both texts of a batch in pieces of these lengths, repeated; slots that were not written
// are NaN.
Tensor read_in_pieces(Maker& maker, const StateScanArgs& whole, const std::vector<int64_t>& pieces,
                      int64_t block_size) {
  const auto& x = whole.x.shape();
  const auto& b = whole.b.shape();
  const int64_t texts = x[0], tokens = x[1], blocks = ceil_div(tokens, block_size);
  const DType type = whole.x.dtype(), wide = accumulator(type);
  std::vector<int32_t> table;
  for (int64_t i = 0; i < texts * blocks; ++i)
    table.push_back(static_cast<int32_t>((i + 1) % (texts * blocks)));
  const auto slot = [&](Shape shape, DType slot_type) {
    Tensor t = maker.empty(shape, slot_type);
    copy_from(t,
              Doubles(static_cast<size_t>(t.elements()), std::numeric_limits<double>::quiet_NaN()));
    return t;
  };
  const ScanSlots slots{.state = slot({texts * blocks, x[2], x[3], b[3]}, wide),
                        .x = slot({texts * blocks, kScanChunk, x[2], x[3]}, type),
                        .b = slot({texts * blocks, kScanChunk, b[2], b[3]}, type),
                        .steps = slot({texts * blocks, kScanChunk, x[2]}, wide)};
  const Tensor out = maker.empty(x, type);
  size_t next = 0;
  for (int64_t begin = 0; begin < tokens;) {
    const int64_t count = std::min(pieces[next++ % pieces.size()], tokens - begin);
    std::vector<int32_t> positions;
    for (int64_t i = 0; i < texts * count; ++i)
      positions.push_back(static_cast<int32_t>(begin + i % count));
    const auto part = [&](const Tensor& t) { return t.slice(1, begin, count); };
    state_scan_continued({.x = part(whole.x),
                          .dt = part(whole.dt),
                          .b = part(whole.b),
                          .c = part(whole.c),
                          .numbers = whole.numbers,
                          .positions = maker.integers(positions).view({texts, count}),
                          .block_table = maker.integers(table).view({texts, blocks}),
                          .block_size = block_size,
                          .slots = slots,
                          .out = part(out)},
                         maker.stream());
    begin += count;
  }
  return out;
}

TEST(StateScan, PiecesGiveTheBitsOfTheWhole) {
  const std::vector<std::vector<int64_t>> cuts = {
      {1, 1, 1, 60, 1, 1, 70}, {7}, {64}, {100, 1, 30}, {130, 5, 2}};
  for_each_target([&](int64_t) {
    for (const auto& [type, way] : types_and_ways()) {
      const UseBf16Products use(way);
      Maker maker;
      const StateScanArgs whole = forward_args(maker, {2, 205, 4, 2, 40, 24}, type);
      state_scan(whole, maker.stream());
      for (const std::vector<int64_t>& pieces : cuts) {
        for (const int64_t block_size : {64, 128}) {
          const Tensor out = read_in_pieces(maker, whole, pieces, block_size);
          EXPECT_TRUE(same_bits(out, whole.out)) << name(type) << " " << str(way) << " pieces of "
                                                 << pieces[0] << " blocks of " << block_size;
        }
        if (slow(way)) break;
      }
    }
  });
}

TEST(StateScan, PiecesGiveTheBitsOfTheWholeInF64) {
  Maker maker;
  const StateScanArgs whole = forward_args(maker, {2, 150, 2, 1, 9, 5}, DType::f64);
  state_scan(whole, maker.stream());
  EXPECT_TRUE(same_bits(read_in_pieces(maker, whole, {30, 1, 70}, 64), whole.out));
}

StateScanBackwardArgs backward_args(Maker& maker, const ScanShape& s, DType type) {
  auto args = inputs<StateScanBackwardArgs>(maker, s, type);
  const DType wide = accumulator(type);
  args.dout = maker.normal(args.x.shape(), type);
  args.dx = maker.empty(args.x.shape(), type);
  args.ddt = maker.empty(args.dt.shape(), type);
  args.db = maker.empty(args.b.shape(), type);
  args.dc = maker.empty(args.c.shape(), type);
  for (Accumulate* sum : {&args.da_log, &args.ddt_bias, &args.dd})
    sum->out = maker.empty({s.heads}, wide);
  return args;
}
std::vector<Tensor> gradients(const StateScanBackwardArgs& a) {
  return {a.dx, a.ddt, a.db, a.dc, a.da_log.out, a.ddt_bias.out, a.dd.out};
}

// The recurrence is computed in f64 from the same values.
TEST(StateScan, ByChunksEqualsTheRecurrence) {
  const ScanShape sizes{1, 300, 4, 2, 33, 20};
  for (const DType type : {DType::f32, DType::f64}) {
    const double bound = type == DType::f32 ? 1e-5 : 1e-10;
    Maker maker, exact;
    const StateScanArgs forward = forward_args(maker, sizes, type),
                        recurrence = forward_args(exact, sizes, DType::f64);
    const auto take = [](const Tensor& from, Tensor to) { copy_from(to, to_doubles(from)); };
    const auto take_inputs = [&](const auto& from, const auto& to) {
      take(from.x, to.x);
      take(from.dt, to.dt);
      take(from.b, to.b);
      take(from.c, to.c);
      take(from.numbers.d, to.numbers.d);
    };
    take_inputs(forward, recurrence);
    state_scan(forward, maker.stream());
    reference::state_scan(recurrence, exact.stream());
    EXPECT_LE(cpu::error(forward.out, to_doubles(recurrence.out)), bound) << name(type);

    const StateScanBackwardArgs backward = backward_args(maker, sizes, type),
                                adjoint = backward_args(exact, sizes, DType::f64);
    take_inputs(backward, adjoint);
    take(backward.dout, adjoint.dout);
    state_scan_backward(backward, maker.stream());
    reference::state_scan_backward(adjoint, exact.stream());
    for (size_t i = 0; i < gradients(adjoint).size(); ++i)
      EXPECT_LE(cpu::error(gradients(backward)[i], to_doubles(gradients(adjoint)[i])), bound)
          << name(type) << " gradient " << i;
  }
}

// With documents, and limits of the step, which some tokens reach.
TEST(StateScan, GradientsEqualDifferences) {
  Maker maker;
  StateScanBackwardArgs args = backward_args(maker, {2, 7, 2, 1, 3, 2}, DType::f64);
  args.numbers.min_step = 0.02;
  args.numbers.max_step = 0.3;
  args.starts = maker.integers({0, 0, 0, 3, 3, 3, 3, 0, 0, 2, 2, 2, 5, 5}).view({2, 7});
  reference::state_scan_backward(args, maker.stream());
  const StateScanArgs forward{.x = args.x,
                              .dt = args.dt,
                              .b = args.b,
                              .c = args.c,
                              .numbers = args.numbers,
                              .starts = args.starts,
                              .out = maker.empty(args.x.shape(), DType::f64)};
  const auto loss = [&] {
    reference::state_scan(forward, maker.stream());
    double sum = 0;
    for (int64_t i = 0; i < forward.out.elements(); ++i)
      sum += forward.out.data<double>()[i] * args.dout.data<double>()[i];
    return sum;
  };
  const std::vector<Tensor> inputs = {
      args.x, args.dt, args.b, args.c, args.numbers.a_log, args.numbers.dt_bias, args.numbers.d};
  for (size_t k = 0; k < inputs.size(); ++k) {
    Doubles slopes;
    for (int64_t i = 0; i < inputs[k].elements(); ++i) {
      double& value = inputs[k].data<double>()[i];
      const double before = value, h = 1e-5;
      value = before + h;
      const double above = loss();
      value = before - h;
      slopes.push_back((above - loss()) / (2 * h));
      value = before;
    }
    EXPECT_LE(cpu::error(gradients(args)[k], slopes), 3e-9) << "input " << k;
  }
}

}  // namespace
}  // namespace megatron::kernels::cpu
