// Texts that generation may be held to.
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

// Compiled once and shared by requests and threads. What is found out about it while texts are
// written (Automaton) is kept with it.
class Grammar {
 public:
  // Texts of JSON that satisfy a schema: see schema.h for what is read, for what a strict schema
  // is, and for the errors.
  static std::shared_ptr<const Grammar> from_json_schema(const Json& schema, bool strict = false);
  // A call of one of the tools, as JSON.
  static std::shared_ptr<const Grammar> from_tool_calls(std::span<const ToolSchema> tools);
  static std::shared_ptr<const Grammar> from_json_object();  // any object
  static std::shared_ptr<const Grammar> from_texts(const std::vector<std::string>& texts);
  // Texts that the pattern matches as a whole: see pattern.h. Throws Error where it matches none.
  static std::shared_ptr<const Grammar> from_regex(std::string_view pattern);

  // Rule 0 of the network must not be empty. unenforced: keywords of the schema that the grammar
  // does not enforce, as JSON pointers.
  explicit Grammar(Network network, std::vector<std::string> unenforced = {});
  ~Grammar();
  const Network& network() const { return network_; }
  const std::vector<std::string>& unenforced() const { return unenforced_; }
  // Bytes of memory, including the states that its automata have cached so far.
  size_t bytes() const;

  // The automaton for a tokenizer, one for all requests; a new one where it is full.
  std::shared_ptr<Automaton> automaton(const std::shared_ptr<const TokenBytes>& tokens) const;

 private:
  Network network_;
  std::vector<std::string> unenforced_;
  mutable std::mutex mutex_;
  mutable std::vector<std::shared_ptr<Automaton>> automata_;
};

}  // namespace megatron::inference
