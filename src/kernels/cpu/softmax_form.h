// How products become scores on the host's softmax, and the score that has no key.
#pragma once

#include <limits>

namespace megatron::kernels::cpu {

template <class C>
struct SoftmaxForm {
  C scale = 1, soft_cap = 0;  // soft_cap 0: none
  C sink = -std::numeric_limits<C>::infinity();
  bool has_sink() const { return sink > -std::numeric_limits<C>::infinity(); }
};

}  // namespace megatron::kernels::cpu
