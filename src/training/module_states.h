// Module states of the chunks that a rank trains: their memory and their update once per step, and
// the sums that modules accumulate over the micro-batches of a step.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "models/stage.h"
#include "nn/module_state.h"
#include "parallel/ranks.h"

namespace megatron::training {

class ModuleStates {
 public:
  // Allocates memory for values and observations. All arguments are borrowed.
  ModuleStates(std::span<models::Stage* const> chunks, const parallel::Ranks& ranks,
               Runtime& runtime);

  std::span<nn::ModuleState* const> all() const { return states_; }  // also frozen ones
  void begin_step();                                                 // clears observations and sums
  void update_step();  // collective over the ranks that share a state

 private:
  // Data reduced by one call.
  struct Buffer {
    comm::Reduce reduce = comm::Reduce::sum;
    DType type = DType::f32;
    std::optional<parallel::RankGroup> partial;
    bool expert = false;
    int64_t elements = 0;
    Tensor memory;
  };
  Buffer& buffer_of(const nn::ModuleState& state);

  const parallel::Ranks& ranks_;
  Runtime& runtime_;
  std::vector<nn::ModuleState*> states_, updated_;
  std::vector<nn::StepSum*> step_sums_;
  std::vector<Buffer> buffers_;
};

}  // namespace megatron::training
