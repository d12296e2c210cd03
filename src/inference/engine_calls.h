// Calls of the leading engine, as they are sent to the followers.
#pragma once

#include <memory>
#include <span>
#include <variant>
#include <vector>

#include "inference/engine_options.h"
#include "inference/engine_ranks.h"
#include "inference/request.h"
#include "inference/sequence.h"

namespace megatron::inference {

struct Cancellation {
  RequestId id = 0;
  std::shared_ptr<const Adapter> adapter = {};  // of the request; not sent
};
struct WeightsChanged {};
using EngineCall = std::variant<Request, Cancellation, WeightsChanged>;

struct EngineMessage {
  // begin: creates an engine with `options`. step: makes the calls, then a step. settle: makes
  // the calls, and waits until all ranks have. embed: computes the embedding of the single
  // request's prompt. stop: destroys the engine. end: no more engines
  // follow.
  enum class Kind : uint8_t { begin, step, settle, embed, stop, end } kind = Kind::end;
  EngineOptions options;
  std::vector<EngineCall> calls;
};

// Collective over ranks.all: broadcasts the leading rank's message. Of a request only what the
// schedule and beam search depend on is sent, and the number of its adapter: sampling and grammars
// are handled by the leading rank alone. While ranks wait for a message, their GPUs are idle.
void send(const EngineMessage& message, const EngineRanks& ranks);
EngineMessage receive(const EngineRanks& ranks);
// Collective: returns when all ranks have called it.
void meet(const EngineRanks& ranks);

// Owned by a leading engine: the other ranks create an engine with the same options, receive its
// calls before each step, and destroy their engine with it.
class EngineLeader {
 public:
  EngineLeader(const EngineOptions& options, const EngineRanks& ranks);
  ~EngineLeader();
  EngineLeader(const EngineLeader&) = delete;
  EngineLeader& operator=(const EngineLeader&) = delete;

  // Must be called on all ranks or on none; otherwise the others fail with this one.
  void made() { made_ = true; }
  void add(EngineCall call) { calls_.push_back(std::move(call)); }
  void step();
  void passed() { sent_.clear(); }  // after the passes of a step
  void settle();                    // with nothing running
  void embed(std::span<const int32_t> tokens, const Adapter* adapter, EmbeddingForm form);

 private:
  const EngineRanks ranks_;
  std::vector<EngineCall> calls_;
  // Calls that other ranks may not have made yet. The adapters that they use stay loaded.
  std::vector<EngineCall> sent_;
  bool made_ = false;
};

}  // namespace megatron::inference
