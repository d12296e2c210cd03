#include "base/machine_memory.h"

#include <unistd.h>

namespace megatron {

int64_t machine_memory() {
  const int64_t pages = ::sysconf(_SC_PHYS_PAGES), size = ::sysconf(_SC_PAGESIZE);
  return pages > 0 && size > 0 ? pages * size : 0;
}

}  // namespace megatron
