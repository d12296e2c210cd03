// Calls of the engine that leads, as they are sent to those that follow.
#pragma once

#include <span>
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
  // begin: an engine with `options`. step: the calls, then a step. embed: the embedding of the prompt of the one
  // request. stop: the engine goes. end: no more engines come.
  enum class Kind : uint8_t { begin, step, embed, stop, end } kind = Kind::end;
  EngineOptions options;
  std::vector<EngineCall> calls;
};

// Collective over ranks.all: the leading rank's message goes to all. Of a request only what a schedule depends on: what
// is drawn, and with which grammar, is the leading rank's alone to know. Ranks that wait for it leave their GPU idle.
void send(const EngineMessage& message, const EngineRanks& ranks);
EngineMessage receive(const EngineRanks& ranks);

// An engine that leads has one: the others make an engine with the same options, get its calls before each step, and
// let their engine go with it.
class EngineLeader {
 public:
  EngineLeader(const EngineOptions& options, const EngineRanks& ranks);
  ~EngineLeader();
  EngineLeader(const EngineLeader&) = delete;
  EngineLeader& operator=(const EngineLeader&) = delete;

  void made() { made_ = true; }  // on all ranks, or on none; else the others fail with this one
  void add(EngineCall call) { calls_.push_back(std::move(call)); }
  void step();
  void embed(std::span<const int32_t> tokens);

 private:
  const EngineRanks ranks_;
  std::vector<EngineCall> calls_;
  bool made_ = false;
};

}  // namespace megatron::inference
