// Memory apart from all other: what is recorded there (recorded_part.h) finds it free when it comes
// again, whatever is in flight beside it.
#pragma once

#include <array>
#include <memory>

#include "device/stream.h"

namespace megatron {

// Arenas of activations and of what tensor-parallel ranks exchange.
class OwnArenas {
 public:
  explicit OwnArenas(Runtime& runtime);

  // While it lives, the runtime's memory of these classes is taken here.
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

  int64_t high_water(MemoryClass memory_class) const;  // 0 of other classes; not during a Use

 private:
  std::array<std::shared_ptr<Arena>, 2> arenas_;
};

}  // namespace megatron
