// What a rank does now, told by whoever runs it, for reports of hangs and of ends.
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
    std::string phase, layer;  // empty: not told
    int64_t step = -1, micro_batch = -1;
    bool told() const { return !phase.empty() || !layer.empty() || step >= 0 || micro_batch >= 0; }
  };

  void step(int64_t number);          // what was told of the step before is over
  void phase(std::string_view name);  // "forward", "update", "save"; leaves layer and micro-batch
  void layer(std::string_view name);  // a span's name; empty: left
  void micro_batch(int64_t index);    // -1: left
  void nothing();

  State state() const;

 private:
  mutable std::mutex mutex_;
  State state_;
};

// "step 7, backward, layer decoder.3.mlp, micro-batch 2"; "nothing told".
std::string describe(const Doing::State& state);

}  // namespace megatron::comm
