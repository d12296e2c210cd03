// Cache of grammars, each compiled once for all requests that use it.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/json.h"
#include "inference/constraint/grammar.h"

namespace megatron::server {

using SharedGrammar = std::shared_ptr<const inference::Grammar>;

// Keeps the most recently used grammars within max_bytes of memory, which includes the states that
// they cache. Refuses a grammar that needs more by itself. Thread-safe.
class Grammars {
 public:
  static constexpr size_t kMaxBytes = size_t{256} << 20;

  // Makes grammars over the tokens of `tokenizer`. The functions below throw Error for a grammar
  // that cannot be compiled, whose first tokens take too long to find, or that the tokens cannot
  // spell.
  explicit Grammars(const tokenizers::Tokenizer& tokenizer, size_t max_bytes = kMaxBytes);

  SharedGrammar json_object();
  SharedGrammar json_schema(const Json& schema, bool strict);
  SharedGrammar tool_calls(std::span<const inference::ToolSchema> tools);
  SharedGrammar regex(const std::string& pattern);
  SharedGrammar choice(const std::vector<std::string>& texts);  // accepts any one of them

  // Token bytes shared by all requests with a grammar. Throws Error if the tokenizer cannot give
  // its tokens' bytes.
  const std::shared_ptr<const inference::TokenBytes>& token_bytes() const;

 private:
  struct Entry {
    std::string key;
    SharedGrammar grammar;
    size_t bytes = 0;
    bool may_grow = true;  // whether a request may have used it since `bytes` was measured
  };

  template <class F>
  SharedGrammar kept(const std::string& key, F&& compile);
  void keep_within_bounds();

  const size_t max_bytes_;
  std::shared_ptr<const inference::TokenBytes> token_bytes_;
  std::string why_not_;  // reason why the bytes of tokens are unknown
  std::mutex mutex_;
  std::list<Entry> kept_;  // most recently used first
  std::unordered_map<std::string_view, std::list<Entry>::iterator> index_;
};

// The keywords that a grammar does not enforce, as JSON pointers in ASCII, up to about 1000 bytes;
// "" if there are none.
std::string unenforced_list(const inference::Grammar& grammar);

}  // namespace megatron::server
