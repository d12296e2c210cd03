#include "base/error.h"

namespace megatron {

void assertion_failed(const char* condition, const char* file, int line) {
  throw InternalError(fmt::format("internal error: {} does not hold at {}:{}; please report this",
                                  condition, file, line));
}

}  // namespace megatron
