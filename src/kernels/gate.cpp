#include "kernels/gate.h"

#include "kernels/row_rules.h"

namespace megatron::kernels {

void check(const GateArgs& args) {
  const Rules rules("gate", {{"x", args.x}, {"gate", args.gate}, {"out", args.out}});
  check_rows(rules, args.x, "x [T,N] of a floating type, last dim contiguous");
  check_rows_as(rules, args.gate, args.x, "gate as x");
  check_rows_as(rules, args.out, args.x, "out as x");
}

void check(const GateBackwardArgs& args) {
  const Rules rules("gate_backward", {{"x", args.x},
                                      {"gate", args.gate},
                                      {"dout", args.dout},
                                      {"dx", args.dx},
                                      {"dgate", args.dgate}});
  check_rows(rules, args.x, "x [T,N] of a floating type, last dim contiguous");
  check_rows_as(rules, args.gate, args.x, "gate as x");
  check_rows_as(rules, args.dout, args.x, "dout as x");
  check_rows_as(rules, args.dx, args.x, "dx as x");
  check_rows_as(rules, args.dgate, args.x, "dgate as x");
}

}  // namespace megatron::kernels
