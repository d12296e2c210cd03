// The ranks that run one engine together.
#pragma once

#include "comm/group.h"
#include "comm/member.h"
#include "device/stream.h"
#include "parallel/model_ranks.h"

namespace megatron::inference {

class AdaptersByNumber;

// Every rank has an Engine over its part of the model, and all engines get the same calls in the
// same order, so that their schedulers and caches make the same decisions. One rank samples and
// broadcasts the tokens. Groups are borrowed.
struct EngineRanks {
  comm::Group* all = nullptr;         // null: a single rank
  comm::Group* stages = nullptr;      // pipeline stages in layer order; null: a single one
  Stream* host = nullptr;             // host stream, for calls on host memory
  comm::Group* tensor = nullptr;      // ranks that divide this stage's matrices; null: a single one
  parallel::ModelRanks modules = {};  // ranks that share this stage's modules
  int drawing = 0;  // rank of `all` that draws tokens; its stage has the output layer
  // Only the sampling rank's engine is called directly; those of the other ranks are driven by
  // follow() (inference/follow.h).
  bool led = false;
  AdaptersByNumber* adapters = nullptr;  // of a rank that follows; null: there are none

  bool draws() const { return all == nullptr || all->rank() == drawing; }
  bool leads() const { return all != nullptr && led && draws(); }
  // True if one of the ranks, and therefore all of them, have failed.
  bool failed() const {
    return all != nullptr && all->member() != nullptr && !all->member()->failure().empty();
  }
};

}  // namespace megatron::inference
