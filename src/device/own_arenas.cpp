#include "device/own_arenas.h"

namespace megatron {

OwnArenas::OwnArenas(Runtime& runtime)
    : arenas_{Arena::make(runtime.device(), MemoryClass::activations),
              Arena::make(runtime.device(), MemoryClass::communication)} {}

void OwnArenas::Use::exchange() {
  for (std::shared_ptr<Arena>& arena : arenas_.arenas_) runtime_.arenas().exchange(arena);
}

int64_t OwnArenas::high_water(MemoryClass memory_class) const {
  int64_t bytes = 0;
  for (const std::shared_ptr<Arena>& arena : arenas_)
    if (arena->memory_class() == memory_class) bytes += arena->high_water();
  return bytes;
}

}  // namespace megatron
