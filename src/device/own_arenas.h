// Separate arenas for recorded work (recorded_part.h). Their memory is free whenever the work is
// queued again, whatever else is in flight.
#pragma once

#include <array>
#include <memory>

#include "device/stream.h"

namespace megatron {

// Arenas of activations and of communication between tensor-parallel ranks.
class OwnArenas {
 public:
  explicit OwnArenas(Runtime& runtime);

  // While it exists, the runtime's memory of these classes comes from these arenas.
  class Use {
   public:
    Use(OwnArenas& arenas, Runtime& runtime) : arenas_(arenas), runtime_(runtime) { exchange(); }
    ~Use() { exchange(); }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    void exchange();
    OwnArenas& arenas_;
    Runtime& runtime_;
  };

  int64_t high_water(MemoryClass memory_class) const;  // 0 for other classes; not during a Use

 private:
  std::array<std::shared_ptr<Arena>, 2> arenas_;
};

}  // namespace megatron
