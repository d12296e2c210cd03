#include "ops/gradient_check_state_space.h"

#include "ops/columns.h"
#include "ops/state_space.h"

namespace megatron::ops {
namespace {

using kernels::GateOrder;

struct Kind {
  int64_t sequences = 2, length = 5;
  StateSpaceShape shape{.heads = 4, .head_size = 3, .groups = 2, .states = 2};
  GateOrder order = GateOrder::gate_first;
  bool bias = true, documents = false, limits = false;
};

// A document of one token in the middle of the first sequence; another one begins at the third
// token of each.
Tensor some_starts(Tape& tape, const Kind& kind) {
  Tensor starts =
      tape.empty({kind.sequences * kind.length}, DType::i32, "gradient_check.document_starts");
  std::vector<int32_t> values;
  for (int64_t b = 0; b < kind.sequences; ++b)
    for (int64_t t = 0; t < kind.length; ++t)
      values.push_back(static_cast<int32_t>(t < 2 ? 0 : b == 0 && t > 2 ? 3 : 2));
  copy_from(starts, std::span<const int32_t>(values));
  return starts;
}

void add_state_space_case(std::vector<GradientCase>& cases, const std::string& name,
                          const Kind& kind) {
  const StateSpaceShape& shape = kind.shape;
  std::vector<Shape> weights = {{shape.channels(), 4}, {shape.heads}, {shape.heads}, {shape.heads}};
  if (kind.bias) weights.push_back({shape.channels()});
  if (kind.order != GateOrder::gate_only) weights.push_back({shape.width()});
  add_case(cases, name, {{kind.sequences * kind.length, shape.projected()}}, weights,
           [kind](Tape& t, auto x, auto w) {
             StateSpace space{.shape = kind.shape,
                              .conv = w[0],
                              .conv_bias = {},
                              .a_log = w[1],
                              .dt_bias = w[2],
                              .d = w[3],
                              .norm = {},
                              .order = kind.order,
                              .eps = 0.3};
             if (kind.bias) space.conv_bias = w[4];
             if (kind.order != GateOrder::gate_only) space.norm = w[kind.bias ? 5 : 4];
             if (kind.limits) {
               space.min_step = 0.4;
               space.max_step = 1.1;
             }
             return state_space(t, x[0], kind.sequences, space,
                                kind.documents ? some_starts(t, kind) : Tensor());
           });
}

}  // namespace

void add_state_space_cases(std::vector<GradientCase>& cases) {
  add_case(cases, "scale_columns", {{3, 6}}, {}, [](Tape& t, auto x, auto) {
    Tensor own = t.empty(x[0].value.shape(), x[0].value.dtype(), "gradient_check.scaled");
    t.kernels().copy({.x = x[0].value, .out = own}, t.stream());  // the op overwrites its input
    return scale_columns(t, Var(own, x[0].id), {{1, 0.5}, {3, 1}, {2, -3}});
  });
  add_state_space_case(cases, "state_space", {});
  add_state_space_case(cases, "state_space, norm before the gate",
                       {.order = GateOrder::norm_first, .bias = false, .documents = true});
  add_state_space_case(cases, "state_space, gate alone, with limits",
                       {.order = GateOrder::gate_only, .limits = true});
  add_state_space_case(cases, "state_space, documents and limits",
                       {.documents = true, .limits = true});
  add_state_space_case(cases, "state_space of several chunks",
                       {.sequences = 1,
                        .length = kernels::kScanChunk + 3,
                        .shape = {.heads = 2, .head_size = 2, .groups = 1, .states = 2},
                        .bias = false});
}

}  // namespace megatron::ops
