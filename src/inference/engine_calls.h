// Calls of the engine that leads, as they are sent to those that follow.
#pragma once

#include <variant>
#include <vector>

#include "inference/engine_options.h"
#include "inference/engine_ranks.h"
#include "inference/request.h"
#include "inference/sequence.h"

namespace megatron::inference {

struct WeightsChanged {};
// A request that is submitted, one that is cancelled, or other weights.
using EngineCall = std::variant<Request, RequestId, WeightsChanged>;

struct EngineMessage {
  // begin: an engine with `options`. step: the calls, then a step. stop: the engine goes. end: no more engines come.
  enum class Kind : uint8_t { begin, step, stop, end } kind = Kind::end;
  EngineOptions options;
  std::vector<EngineCall> calls;
};

// Collective over ranks.all: the leading rank's message goes to all. Of a request only what a schedule depends on: what
// is drawn, and with which grammar, is the leading rank's alone to know.
void send(const EngineMessage& message, const EngineRanks& ranks, Stream& stream);
EngineMessage receive(const EngineRanks& ranks, Stream& stream);

// An engine that leads has one: the others make an engine with the same options, get its calls before each step, and
// let their engine go with it.
class EngineLeader {
 public:
  EngineLeader(const EngineOptions& options, const EngineRanks& ranks, Stream& stream);
  ~EngineLeader();
  EngineLeader(const EngineLeader&) = delete;
  EngineLeader& operator=(const EngineLeader&) = delete;

  void made() { made_ = true; }  // the engine; else the other ranks fail with it
  void add(EngineCall call) { calls_.push_back(std::move(call)); }
  void step();

 private:
  const EngineRanks ranks_;
  Stream& stream_;
  std::vector<EngineCall> calls_;
  bool made_ = false;
};

}  // namespace megatron::inference
