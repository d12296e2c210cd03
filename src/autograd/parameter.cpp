#include "autograd/parameter.h"

#include <algorithm>

namespace megatron {

int Parameter::micro_batches_final() const {
  return std::ranges::min_element(uses, {}, &Use::micro_batches)->micro_batches;
}

}  // namespace megatron
