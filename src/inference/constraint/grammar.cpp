#include "inference/constraint/grammar.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "inference/constraint/automaton.h"
#include "inference/constraint/json_text.h"
#include "inference/constraint/pattern.h"
#include "inference/constraint/schema_compiler.h"

namespace megatron::inference {

namespace {

// The grammar of the rules that `add` adds. If they are too large and no schema is strict, compiles
// again with large bounds noted instead of enforced.
template <class Add>
std::shared_ptr<const Grammar> compiled(bool strict, Add&& add) {
  constexpr int64_t kUsuallyHeld = 1000;
  for (int64_t most_held = kMaximumCount;; most_held = kUsuallyHeld) {
    Network network;
    SchemaCompiler compiler(network, most_held);
    try {
      add(compiler, network.rules()[0]);
      compiler.finish();
      return std::make_shared<const Grammar>(std::move(network), compiler.notes());
    } catch (const GrammarLimit&) {
      if (strict || most_held == kUsuallyHeld) throw;
    }
  }
}

}  // namespace

Grammar::Grammar(Network network, std::vector<std::string> unenforced)
    : network_(std::move(network)), unenforced_(std::move(unenforced)) {}
Grammar::~Grammar() = default;

std::shared_ptr<const Grammar> Grammar::from_json_schema(const Json& schema, bool strict) {
  const SchemaDocument document{&schema, "", strict};
  return compiled(strict, [&](SchemaCompiler& compiler, const Network::Rule& whole) {
    compiler.add_document(whole.start, whole.final, document);
  });
}

std::shared_ptr<const Grammar> Grammar::from_tool_calls(std::span<const ToolSchema> tools) {
  std::vector<SchemaDocument> documents;
  for (const ToolSchema& tool : tools)
    documents.push_back({&tool.parameters, tool.name, tool.strict});
  const bool strict = std::ranges::any_of(tools, &ToolSchema::strict);
  return compiled(strict, [&](SchemaCompiler& compiler, const Network::Rule& whole) {
    compiler.add_calls(whole.start, whole.final, documents);
  });
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
