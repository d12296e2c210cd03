#include "inference/constraint/grammar.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "inference/constraint/automaton.h"
#include "inference/constraint/json_text.h"
#include "inference/constraint/pattern.h"

namespace megatron::inference {

Grammar::Grammar(Network network, std::vector<std::string> unenforced)
    : network_(std::move(network)), unenforced_(std::move(unenforced)) {}
Grammar::~Grammar() = default;

std::shared_ptr<const Grammar> Grammar::from_json_schema(const Json& schema, bool strict) {
  Network network;
  std::vector<std::string> unenforced = add_schema(network, schema, strict);
  return std::make_shared<const Grammar>(std::move(network), std::move(unenforced));
}

std::shared_ptr<const Grammar> Grammar::from_tool_calls(std::span<const ToolSchema> tools) {
  Network network;
  std::vector<std::string> unenforced = add_tool_calls(network, tools);
  return std::make_shared<const Grammar>(std::move(network), std::move(unenforced));
}

std::shared_ptr<const Grammar> Grammar::from_json_object() {
  Network network;
  const Network::Rule whole = network.rules()[0];
  JsonText(network).add_any_object(whole.start, whole.final);
  return std::make_shared<const Grammar>(std::move(network));
}

std::shared_ptr<const Grammar> Grammar::from_texts(const std::vector<std::string>& texts) {
  Network network;
  const Network::Rule whole = network.rules()[0];
  JsonText(network).add_texts(whole.start, whole.final, texts);
  return std::make_shared<const Grammar>(std::move(network));
}

std::shared_ptr<const Grammar> Grammar::from_regex(std::string_view pattern) {
  Network network;
  const Network::Rule whole = network.rules()[0];
  add_pattern(network, whole.start, whole.final, pattern, Matching::whole, Spelling::utf8);
  MG_CHECK(network.live(Network::Bytes().set())[static_cast<size_t>(whole.start)],
           "no text matches the pattern '{}'", pattern);
  return std::make_shared<const Grammar>(std::move(network));
}

std::shared_ptr<Automaton> Grammar::automaton(
    const std::shared_ptr<const TokenBytes>& tokens) const {
  const std::lock_guard lock(mutex_);
  const auto known = std::ranges::find_if(
      automata_, [&](const auto& automaton) { return automaton->tokens() == tokens; });
  if (known != automata_.end() && !(*known)->is_full()) return *known;
  auto made = std::make_shared<Automaton>(network_, tokens);
  if (known != automata_.end()) {
    *known = made;
  } else {
    automata_.push_back(made);
  }
  return made;
}

size_t Grammar::bytes() const {
  const std::lock_guard lock(mutex_);
  size_t all = sizeof(Grammar) + network_.bytes();
  for (const auto& automaton : automata_) all += automaton->bytes();
  return all;
}

}  // namespace megatron::inference
