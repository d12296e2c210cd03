#include "ops/state_space_norm.h"

namespace megatron::ops {
namespace {

using kernels::GateOrder;

// Rows [T,W] as [T,1,W].
Tensor as_groups(const Tensor& x) { return x.view({x.size(0), 1, x.size(1)}); }

// Sums [T,1] of the products of a and b, with the weight if there is one, over all of a group.
Tensor products(Tape& tape, const StateSpaceExchange& exchange, const Tensor& a, const Tensor& b,
                const Tensor& weight) {
  const Tensor sums =
      tape.empty({a.size(0), 1}, kernels::accumulator(a.dtype()), "state_space.sums");
  tape.kernels().row_dot(
      {.a = as_groups(a), .b = as_groups(b), .weight = weight, .weight_offset = 0, .out = sums},
      tape.stream());
  exchange.add_up(sums, tape);
  return sums;
}

void normalise_shared(Tape& tape, const GatedNorm& norm, const StateSpaceExchange& exchange,
                      const Tensor& x, const Tensor& out, const Tensor& rstd) {
  tape.kernels().head_norm({.x = as_groups(x),
                            .weight = norm.weight,
                            .bias = {},
                            .eps = norm.eps,
                            .squares = products(tape, exchange, x, x, {}),
                            .row_width = x.size(1) * norm.sharing,
                            .out = as_groups(out),
                            .mean = {},
                            .rstd = rstd},
                           tape.stream());
}

void gate(Tape& tape, const Tensor& x, const Tensor& z, const Tensor& out) {
  tape.kernels().gated_norm(
      {.order = GateOrder::gate_only, .x = x, .z = z, .weight = {}, .out = out, .rstd = {}},
      tape.stream());
}

}  // namespace

GatedNormSaved gated_norm(const GatedNorm& norm, const StateSpaceExchange* exchange,
                          const Tensor& x, const Tensor& z, const Tensor& out, Tape& tape) {
  GatedNormSaved saved;
  if (norm.order != GateOrder::gate_only)
    saved.rstd =
        tape.empty({x.size(0), norm.groups}, kernels::accumulator(x.dtype()), "state_space.rstd");
  if (!norm.is_shared()) {
    tape.kernels().gated_norm({.order = norm.order,
                               .groups = norm.groups,
                               .eps = norm.eps,
                               .x = x,
                               .z = z,
                               .weight = norm.weight,
                               .out = out,
                               .rstd = saved.rstd},
                              tape.stream());
    return saved;
  }
  saved.middle = tape.empty(x.shape(), x.dtype(), "state_space.middle");
  if (norm.order == GateOrder::gate_first) {
    gate(tape, x, z, saved.middle);
    normalise_shared(tape, norm, *exchange, saved.middle, out, saved.rstd);
  } else {
    normalise_shared(tape, norm, *exchange, x, saved.middle, saved.rstd);
    gate(tape, saved.middle, z, out);
  }
  return saved;
}

void gated_norm_backward(const GatedNorm& norm, const StateSpaceExchange* exchange, const Tensor& x,
                         const Tensor& z, const GatedNormSaved& saved, const Tensor& dout,
                         const Tensor& dx, const Tensor& dz, const GradSlot& dweight, Tape& tape) {
  const auto ungate = [&](const Tensor& gated, const Tensor& dy, const Tensor& to) {
    tape.kernels().gated_norm_backward({.order = GateOrder::gate_only,
                                        .x = gated,
                                        .z = z,
                                        .weight = {},
                                        .rstd = {},
                                        .dout = dy,
                                        .dx = to,
                                        .dz = dz,
                                        .dweight = {}},
                                       tape.stream());
  };
  const auto normalise_backward = [&](const Tensor& normed, const Tensor& dy, const Tensor& to) {
    tape.kernels().head_norm_backward(
        {.x = as_groups(normed),
         .weight = norm.weight,
         .dout = as_groups(dy),
         .mean = {},
         .rstd = saved.rstd,
         .products = products(tape, *exchange, dy, normed, norm.weight),
         .row_width = normed.size(1) * norm.sharing,
         .dx = as_groups(to),
         .dweight = dweight,
         .dbias = {}},
        tape.stream());
  };
  if (!norm.is_shared()) {
    tape.kernels().gated_norm_backward({.order = norm.order,
                                        .groups = norm.groups,
                                        .x = x,
                                        .z = z,
                                        .weight = norm.weight,
                                        .rstd = saved.rstd,
                                        .dout = dout,
                                        .dx = dx,
                                        .dz = dz,
                                        .dweight = dweight},
                                       tape.stream());
    return;
  }
  const Tensor dmiddle = tape.empty(x.shape(), x.dtype(), "state_space.dmiddle");
  if (norm.order == GateOrder::gate_first) {
    normalise_backward(saved.middle, dout, dmiddle);
    ungate(x, dmiddle, dx);
  } else {
    ungate(saved.middle, dout, dmiddle);
    normalise_backward(x, dmiddle, dx);
  }
}

}  // namespace megatron::ops
