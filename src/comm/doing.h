// Current activity of a rank, set by the code that runs it, for reports of hangs and failures.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

namespace megatron::comm {

// Any thread may read and write it.
class Doing {
 public:
  struct State {
    std::string phase, layer;  // empty: unknown
    int64_t step = -1, micro_batch = -1;
    bool may_be_long = false;  // other ranks are expected to wait for it: a save, the first step
    bool known() const { return !phase.empty() || !layer.empty() || step >= 0 || micro_batch >= 0; }
  };

  // Clears the record of the previous step. may_be_long: the whole step may take long.
  void step(int64_t number, bool may_be_long = false);
  // Name of the phase: "forward", "update", "save". Resets layer and micro-batch.
  void phase(std::string_view name, bool may_be_long = false);
  void layer(std::string_view name);  // a span's name; empty when it ends
  void micro_batch(int64_t index);    // -1 when it ends
  void nothing();

  State state() const;

 private:
  mutable std::mutex mutex_;
  State state_;
  bool long_step_ = false;
};

// Formats "step 7, backward, layer decoder.3.mlp, micro-batch 2"; "nothing known".
std::string describe(const Doing::State& state);

}  // namespace megatron::comm
