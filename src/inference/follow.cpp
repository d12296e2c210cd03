#include "inference/follow.h"

#include "inference/engine.h"

namespace megatron::inference {
namespace {

void make(Engine& engine, EngineCall& call) {
  if (auto* request = std::get_if<Request>(&call)) engine.submit(std::move(*request));
  else if (const auto* of = std::get_if<Cancellation>(&call)) engine.cancel(of->id);
  else engine.weights_changed();
}

}  // namespace

void follow(const models::Stage& stage, Runtime& runtime, const EngineRanks& ranks) {
  using Kind = EngineMessage::Kind;
  MG_ASSERT(ranks.led && !ranks.draws());
  std::optional<Engine> engine;
  for (;;) {
    EngineMessage message = receive(ranks);
    switch (message.kind) {
      case Kind::begin: try { engine.emplace(stage, runtime, message.options, ranks);
        } catch (const EngineRefused&) {  // the drawing rank fails likewise and reports the reason
        }
        break;
      case Kind::step:
        for (EngineCall& call : message.calls) make(*engine, call);
        engine->step();
        break;
      case Kind::settle:
        for (EngineCall& call : message.calls) make(*engine, call);
        message.calls.clear();
        meet(ranks);
        break;
      case Kind::embed: {
        const auto& text = std::get<Request>(message.calls.at(0));
        engine->embedding(text.prompt, text.adapter.get(), text.embedding.value());
        break;
      }
      case Kind::stop: engine.reset(); break;
      case Kind::end: return;
    }
  }
}

Followers::~Followers() {
  if (!ranks_.leads()) return;
  try {
    send({.kind = EngineMessage::Kind::end, .options = {}, .calls = {}}, ranks_);
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): a rank has failed, and so does
                                     // the run
  }
}

}  // namespace megatron::inference
