// Rules of kernels on rows [T,N] that may lie apart, and on logits of a router.
#pragma once

#include "kernels/check_rules.h"

namespace megatron::kernels {

inline void check_rows(const Rules& rules, const Tensor& x, const char* rule) {
  rules.require(x.defined() && x.rank() == 2 && is_float_type(x) && last_is_dense(x), rule);
}
inline void check_rows_as(const Rules& rules, const Tensor& t, const Tensor& x, const char* rule) {
  check_rows(rules, t, rule);
  rules.require(t.shape() == x.shape() && t.dtype() == x.dtype(), rule);
}

inline void check_logits(const Rules& rules, const Tensor& logits) {
  rules.contiguous(logits, 2, is_wide, "logits f32 or f64 [T,E], E > 0");
  rules.require(logits.size(1) > 0, "logits f32 or f64 [T,E], E > 0");
}

}  // namespace megatron::kernels
