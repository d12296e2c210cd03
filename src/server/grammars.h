// What texts may be held to, compiled once for all requests that ask for the same.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/json.h"
#include "inference/constraint/grammar.h"

namespace megatron::server {

using SharedGrammar = std::shared_ptr<const inference::Grammar>;

// Keeps those that were asked for last. May be used by many threads at once.
class Grammars {
 public:
  // Of tokens of this tokenizer. All throw Error for what cannot be compiled.
  explicit Grammars(const tokenizers::Tokenizer& tokenizer);

  SharedGrammar json_object();
  SharedGrammar json_schema(const Json& schema);
  SharedGrammar regex(const std::string& pattern);
  SharedGrammar choice(const std::vector<std::string>& texts);  // one of them

  // Of all requests with a grammar. Throws Error where the tokenizer has no bytes of tokens.
  const std::shared_ptr<const inference::TokenBytes>& token_bytes() const;

 private:
  template <class F>
  SharedGrammar kept(const std::string& key, F&& compile);

  std::shared_ptr<const inference::TokenBytes> token_bytes_;
  std::string why_not_;  // there are no bytes of tokens
  std::mutex mutex_;
  std::list<std::pair<std::string, SharedGrammar>> kept_;  // used last first
};

// A schema of the strict kind for values that also satisfy `schema`, as tools describe their
// parameters: every object has all of its properties and no other, and what says nothing of a
// value (default, examples) is left out.
Json strict_schema(const Json& schema);

}  // namespace megatron::server
