// Grammars: sets of texts that generation can be constrained to.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "inference/constraint/network.h"
#include "inference/constraint/schema.h"
#include "inference/constraint/token_bytes.h"

namespace megatron::inference {

class Automaton;

// A grammar is compiled once and shared by requests and threads. It keeps the automata that are
// built lazily during generation (Automaton).
class Grammar {
 public:
  // JSON texts that satisfy a schema. schema.h describes the supported keywords, strict schemas and
  // the errors.
  static std::shared_ptr<const Grammar> from_json_schema(const Json& schema, bool strict = false);
  // A call of one of the tools, as JSON.
  static std::shared_ptr<const Grammar> from_tool_calls(std::span<const ToolSchema> tools);
  static std::shared_ptr<const Grammar> from_json_object();  // any object
  static std::shared_ptr<const Grammar> from_texts(const std::vector<std::string>& texts);
  // Texts that the pattern matches as a whole (pattern.h). Throws Error if it matches none.
  static std::shared_ptr<const Grammar> from_regex(std::string_view pattern);

  // Rule 0 of the network must not be empty. unenforced: keywords of the schema that the grammar
  // does not enforce, as JSON pointers.
  explicit Grammar(Network network, std::vector<std::string> unenforced = {});
  ~Grammar();
  const Network& network() const { return network_; }
  const std::vector<std::string>& unenforced() const { return unenforced_; }
  // Bytes of memory, including the states that its automata have cached so far.
  size_t bytes() const;

  // Returns the tokenizer's automaton, which all requests share; a new one if it is full.
  std::shared_ptr<Automaton> automaton(const std::shared_ptr<const TokenBytes>& tokens) const;

 private:
  Network network_;
  std::vector<std::string> unenforced_;
  mutable std::mutex mutex_;
  mutable std::vector<std::shared_ptr<Automaton>> automata_;
};

}  // namespace megatron::inference
