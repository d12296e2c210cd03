#include "inference/engine_calls.h"

#include <array>

#include "comm/values.h"
#include "inference/byte_stream.h"

namespace megatron::inference {
namespace {

constexpr const char* kCallsName = "engine.calls";

// All members are named, so that a new one cannot be forgotten here.
template <class Bytes, class R>
void visit(Bytes& bytes, R& request, uint64_t& adapter_number) {
  auto& [number, prompt, max_tokens, sampling, end_tokens, logprobs, first_scored,
         prompt_alternatives, grammar, token_bytes, scores, embedding, masked, token_types, adapter,
         expert_choices, priority, beams] = request;
  bytes.fields(number, prompt, max_tokens, end_tokens, logprobs, first_scored, prompt_alternatives,
               scores, embedding, masked, token_types, expert_choices, priority, beams,
               sampling.min_tokens, adapter_number);
}

enum class CallKind : uint8_t { submit, cancel, weights_changed };

void put(ByteWriter& bytes, const EngineCall& call) {
  bytes.put(static_cast<CallKind>(call.index()));
  if (const auto* request = std::get_if<Request>(&call)) {
    uint64_t adapter = request->adapter_number();
    visit(bytes, *request, adapter);
  }
  if (const auto* cancelled = std::get_if<Cancellation>(&call)) bytes.put(cancelled->id);
}

EngineCall get_call(ByteReader& bytes, const EngineRanks& ranks) {
  Request request;
  uint64_t adapter = 0;
  switch (bytes.get<CallKind>()) {
    case CallKind::submit:
      visit(bytes, request, adapter);
      if (adapter != 0) request.adapter = ranks.adapters->find(adapter);
      return request;
    case CallKind::cancel: return Cancellation{bytes.get<RequestId>()};
    case CallKind::weights_changed: break;
  }
  return WeightsChanged{};
}

}  // namespace

void send(const EngineMessage& message, const EngineRanks& ranks) {
  ByteWriter bytes;
  bytes.fields(message.kind, message.options);
  for (const EngineCall& call : message.calls) put(bytes, call);
  std::string all = bytes.take();
  comm::broadcast(*ranks.all, *ranks.host, all, ranks.drawing, kCallsName);
}

EngineMessage receive(const EngineRanks& ranks) {
  std::string all;
  comm::broadcast(*ranks.all, *ranks.host, all, ranks.drawing, kCallsName);
  ByteReader bytes(all);
  EngineMessage message;
  bytes.fields(message.kind, message.options);
  while (!bytes.at_end()) message.calls.push_back(get_call(bytes, ranks));
  return message;
}

void meet(const EngineRanks& ranks) {
  std::array<double, 1> nothing{};
  comm::largest(*ranks.all, *ranks.host, nothing, "engine.settle");
}

EngineLeader::EngineLeader(const EngineOptions& options, const EngineRanks& ranks) : ranks_(ranks) {
  send({.kind = EngineMessage::Kind::begin, .options = options, .calls = {}}, ranks_);
}

EngineLeader::~EngineLeader() {
  try {
    if (!made_) ranks_.all->give_up();
    else send({.kind = EngineMessage::Kind::stop, .options = {}, .calls = {}}, ranks_);
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): a rank has failed, and so does
                                     // the run
  }
}

void EngineLeader::step() {
  sent_ = std::exchange(calls_, {});
  send({.kind = EngineMessage::Kind::step, .options = {}, .calls = sent_}, ranks_);
}

void EngineLeader::settle() {
  sent_ = std::exchange(calls_, {});
  try {
    send({.kind = EngineMessage::Kind::settle, .options = {}, .calls = sent_}, ranks_);
    meet(ranks_);
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): a rank has failed, and so does
                                     // the run
  }
  sent_.clear();
}

void EngineLeader::embed(std::span<const int32_t> tokens, const Adapter* adapter,
                         EmbeddingForm form) {
  Request text;
  text.embedding = form;
  if (adapter != nullptr) text.adapter = adapter->shared_from_this();
  text.prompt.assign(tokens.begin(), tokens.end());
  send({.kind = EngineMessage::Kind::embed, .options = {}, .calls = {std::move(text)}}, ranks_);
}

}  // namespace megatron::inference
