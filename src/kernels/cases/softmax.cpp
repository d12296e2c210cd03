#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "kernels/cases/inputs.h"

namespace megatron::kernels {
namespace {

struct Scores {
  int64_t batch = 1, heads = 1, queries = 1, keys = 1;
  DType type = DType::f32;
  bool causal = true, positions = false, in_place = false, begins = false;
  Layout layout;
  bool real = false;
  int64_t window = 0, chunk = 0;
  double soft_cap = 0;
  bool sinks = false;
  float beta = 0;  // of dsinks

  double elements() const { return static_cast<double>(batch * heads * queries * keys); }
  Shape shape() const { return {batch, heads, queries, keys}; }
  std::string str() const {
    return fmt::format("b={} n={} t={} s={} {}{}{}{}{}{}{}{}{}{}", batch, heads, queries, keys,
                       describe(type, layout), causal ? " causal" : " full",
                       positions ? " positions" : "", begins ? " begins" : "",
                       in_place ? " in place" : "",
                       window > 0 ? fmt::format(" window={}", window) : "",
                       chunk > 0 ? fmt::format(" chunk={}", chunk) : "",
                       soft_cap > 0 ? fmt::format(" cap={}", soft_cap) : "", sinks ? " sinks" : "",
                       beta > 0 ? " added" : "");
  }
  // The sum over S keys, exp within 2 u of a score of size 4, one division. Rows of few seen keys
  // stand sqrt(S) above the rms of p.
  double tolerance() const {
    return kernels::tolerance(type, 8 + std::sqrt(keys)) * std::max(1.0, std::sqrt(keys) / 8);
  }
};

SoftmaxArgs forward_args(Inputs& inputs, const Scores& s) {
  SoftmaxArgs args{.causal = s.causal,
                   .scale = 0.5f,
                   .window = s.window,
                   .chunk = s.chunk,
                   .soft_cap = s.soft_cap};
  if (s.sinks) args.sinks = inputs.normal("sinks", {s.heads}, accumulator(s.type));
  args.s = inputs.normal("s", s.shape(), s.type, 3, s.layout);
  args.p =
      s.in_place ? inputs.updated("p", args.s) : inputs.output("p", s.shape(), s.type, s.layout);
  args.lse = inputs.output("lse", {s.batch, s.heads, s.queries}, accumulator(s.type));
  if (s.positions) {
    args.q_positions = inputs.integers("q_positions", {s.batch, s.queries}, DType::i32, 0, 60);
    args.k_positions = inputs.integers("k_positions", {s.batch, s.keys}, DType::i32, 15, 60);
  }
  if (s.begins)
    args.window_start = inputs.integers("window_start", {s.batch, s.queries}, DType::i32, 0, 40);
  return args;
}

Case forward(const Scores& s) {
  return {.kernel = "softmax",
          .name = s.str(),
          .dtype = s.type,
          .tolerance = s.tolerance(),
          .real = s.real,
          .make = [s](Runtime& runtime) {
            Inputs inputs(runtime);
            const SoftmaxArgs args = forward_args(inputs, s);
            return inputs.call(
                [args](Stream& stream, const Table& table) { table.softmax(args, stream); });
          }};
}

Case backward(const Scores& s) {
  return {.kernel = "softmax_backward",
          .name = s.str(),
          .dtype = s.type,
          .tolerance = s.tolerance(),
          .real = s.real,
          .make = [s](Runtime& runtime) {
            Inputs inputs(runtime), forward_inputs(runtime);
            const SoftmaxArgs f = forward_args(forward_inputs, s);
            table(inputs.forward_of(s.real)).softmax(f, runtime.stream());
            SoftmaxBackwardArgs args{.p = f.p,
                                     .dp = inputs.normal("dp", s.shape(), s.type, 1, s.layout),
                                     .ds = {},
                                     .scale = 0.5f,
                                     .soft_cap = s.soft_cap};
            if (s.soft_cap > 0 || s.sinks) args.lse = f.lse;
            if (s.sinks) {
              const DType wide = accumulator(s.type);
              args.sinks = f.sinks;
              args.dsinks.beta = s.beta;
              args.dsinks.out =
                  s.beta == 0 ? inputs.output("dsinks", {s.heads}, wide)
                              : inputs.updated("dsinks", inputs.normal("dsinks", {s.heads}, wide));
            }
            args.ds = s.in_place ? inputs.updated("ds", args.dp)
                                 : inputs.output("ds", s.shape(), s.type, s.layout);
            return inputs.call([args](Stream& stream, const Table& table) {
              table.softmax_backward(args, stream);
            });
          }};
}

// Soft caps and sinks; rows of keys with positions are those of queries that see few or none.
void add_scored(std::vector<Scores>& list, DType type) {
  list.push_back({.batch = 2, .heads = 2, .queries = 33, .keys = 33, .type = type, .soft_cap = 2});
  list.push_back({.batch = 2,
                  .heads = 3,
                  .queries = 33,
                  .keys = 33,
                  .type = type,
                  .layout = kMisaligned,
                  .sinks = true,
                  .beta = 1});
  list.push_back({.batch = 2,
                  .heads = 2,
                  .queries = 40,
                  .keys = 21,
                  .type = type,
                  .positions = true,
                  .in_place = true,
                  .soft_cap = 1.5,
                  .sinks = true});
  list.push_back(
      {.queries = 5, .keys = 1096, .type = type, .causal = false, .soft_cap = 2, .sinks = true});
}

std::vector<Scores> softmax_shapes() {
  std::vector<Scores> list;
  for (const DType type : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    list.push_back({.type = type});
    list.push_back({.batch = 2,
                    .heads = 3,
                    .queries = 7,
                    .keys = 33,
                    .type = type,
                    .causal = false,
                    .layout = kMisaligned});
    list.push_back(
        {.batch = 2, .heads = 2, .queries = 33, .keys = 33, .type = type, .in_place = true});
    list.push_back(
        {.batch = 2, .heads = 2, .queries = 40, .keys = 21, .type = type, .positions = true});
    list.push_back(
        {.batch = 2, .heads = 2, .queries = 40, .keys = 37, .type = type, .begins = true});
    list.push_back({.batch = 2,
                    .heads = 2,
                    .queries = 40,
                    .keys = 21,
                    .type = type,
                    .positions = true,
                    .begins = true});
    list.push_back({.batch = 2, .heads = 2, .queries = 40, .keys = 40, .type = type, .window = 7});
    list.push_back({.batch = 2,
                    .heads = 2,
                    .queries = 40,
                    .keys = 21,
                    .type = type,
                    .positions = true,
                    .begins = true,
                    .window = 30,
                    .chunk = 16});
    list.push_back({.batch = 1, .heads = 2, .queries = 0, .keys = 4, .type = type});
    list.push_back({.batch = 1, .heads = 2, .queries = 3, .keys = 0, .type = type});
    list.push_back({.heads = 2, .queries = 20, .keys = 520, .type = type, .causal = false});
    // Rows of whole vectors, longer than CUDA keeps in registers.
    list.push_back({.queries = 5, .keys = 1096, .type = type, .causal = false});
    add_scored(list, type);
    if (trained(type)) {
      list.push_back(
          {.batch = 1, .heads = 12, .queries = 1024, .keys = 1024, .type = type, .real = true});
    }
  }
  return list;
}

}  // namespace

void add_softmax_cases(std::vector<Case>& cases) {
  for (const Scores& s : softmax_shapes()) cases.push_back(forward(s));
  for (const Scores& s : softmax_shapes()) cases.push_back(backward(s));
}

}  // namespace megatron::kernels
