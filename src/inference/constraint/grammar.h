// Texts that generation may be held to.
#pragma once

#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "inference/constraint/network.h"
#include "inference/constraint/token_bytes.h"

namespace megatron::inference {

class Automaton;

// Compiled once and shared by requests and threads. What is found out about it while texts are
// written (Automaton) is kept with it.
class Grammar {
 public:
  // Texts of JSON that satisfy a schema: see schema.h for what is read and for the errors.
  static std::shared_ptr<const Grammar> from_json_schema(const Json& schema);
  static std::shared_ptr<const Grammar> from_json_object();  // any object
  // Texts that the pattern matches as a whole: see pattern.h. Throws Error where it matches none.
  static std::shared_ptr<const Grammar> from_regex(std::string_view pattern);

  explicit Grammar(Network network);  // rule 0 of which is not empty
  ~Grammar();
  const Network& network() const { return network_; }

  // The automaton for a tokenizer, one for all requests; a new one where it is full.
  std::shared_ptr<Automaton> automaton(const std::shared_ptr<const TokenBytes>& tokens) const;

 private:
  Network network_;
  mutable std::mutex mutex_;
  mutable std::vector<std::shared_ptr<Automaton>> automata_;
};

}  // namespace megatron::inference
