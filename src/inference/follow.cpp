#include "inference/follow.h"

#include "base/error.h"
#include "inference/engine.h"

namespace megatron::inference {
namespace {

void make(Engine& engine, EngineCall& call) {
  if (auto* request = std::get_if<Request>(&call)) engine.submit(std::move(*request));
  else if (const auto* id = std::get_if<RequestId>(&call)) engine.cancel(*id);
  else engine.weights_changed();
}

}  // namespace

void follow(const models::Stage& stage, Runtime& runtime, const EngineRanks& ranks) {
  using Kind = EngineMessage::Kind;
  MG_ASSERT(ranks.led && !ranks.draws());
  std::optional<Engine> engine;
  for (;;) {
    EngineMessage message = receive(ranks, runtime.stream());
    switch (message.kind) {
      case Kind::begin: engine.emplace(stage, runtime, message.options, ranks); break;
      case Kind::step:
        for (EngineCall& call : message.calls) make(*engine, call);
        engine->step();
        break;
      case Kind::stop: engine.reset(); break;
      case Kind::end: return;
    }
  }
}

Followers::~Followers() {
  if (!ranks_.leads()) return;
  try {
    send({.kind = EngineMessage::Kind::end, .options = {}, .calls = {}}, ranks_, runtime_.stream());
  } catch (
      const std::
          exception&) {  // NOLINT(bugprone-empty-catch): a rank has failed, and so does the run
  }
}

}  // namespace megatron::inference
