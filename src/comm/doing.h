// What a rank does now, set by whoever runs it, for reports of hangs and of ends.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

namespace megatron::comm {

// Any thread may tell and ask.
class Doing {
 public:
  struct State {
    std::string phase, layer;  // empty: not known
    int64_t step = -1, micro_batch = -1;
    bool may_be_long = false;  // others wait for it as a matter of course: a save, the first step
    bool known() const { return !phase.empty() || !layer.empty() || step >= 0 || micro_batch >= 0; }
  };

  // What was said of the step before is over. may_be_long: all of it.
  void step(int64_t number, bool may_be_long = false);
  // "forward", "update", "save"; leaves layer and micro-batch.
  void phase(std::string_view name, bool may_be_long = false);
  void layer(std::string_view name);  // a span's name; empty: left
  void micro_batch(int64_t index);    // -1: left
  void nothing();

  State state() const;

 private:
  mutable std::mutex mutex_;
  State state_;
  bool long_step_ = false;
};

// "step 7, backward, layer decoder.3.mlp, micro-batch 2"; "nothing known".
std::string describe(const Doing::State& state);

}  // namespace megatron::comm
