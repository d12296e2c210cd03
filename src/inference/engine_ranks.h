// The ranks that run one engine together.
#pragma once

#include "comm/group.h"
#include "comm/member.h"
#include "device/stream.h"

namespace megatron::inference {

// Every rank has an Engine over its part of the model, and all engines get the same calls in the same order, so that
// schedulers and caches decide alike. One rank draws, and tells all what. Groups are borrowed.
struct EngineRanks {
  comm::Group* all = nullptr;     // null: one rank
  comm::Group* stages = nullptr;  // of the pipeline, in the order of the layers; null: one
  Stream* host = nullptr;         // of the host, for calls on its memory
  comm::Group* tensor = nullptr;  // that divide this stage's matrices; null: one
  int drawing = 0;                // of `all`; its stage has the output layer
  // The drawing rank's engine alone is called, and the others' are by follow() (inference/follow.h).
  bool led = false;

  bool draws() const { return all == nullptr || all->rank() == drawing; }
  bool leads() const { return all != nullptr && led && draws(); }
  // One of them has failed, and all with it.
  bool failed() const {
    return all != nullptr && all->member() != nullptr && !all->member()->failure().empty();
  }
};

}  // namespace megatron::inference
