// What a model reads before the answer, and in which tokens.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "data/random_state.h"
#include "tasks/task.h"
#include "tokenizers/tokenizer.h"

namespace megatron::tasks {

// Description, examples with answers and text of a task's examples, from the first on. The task is borrowed.
class Contexts {
 public:
  // Throws Error where there are too few examples to choose from.
  explicit Contexts(const Task& task);
  std::string next();
  std::string next_preamble();  // the same without the text

 private:
  using Pool = std::vector<const Example*>;
  Pool draw(Pool& pool, const Example& example);

  const Task& task_;
  bool own_;                           // the others of the task are the pool
  std::map<std::string, Pool> pools_;  // by subject
  std::map<std::string, data::RandomState> random_;
  size_t at_ = 0;
};

// Python's random.sample(range(size), count).
std::vector<size_t> python_sample(data::RandomState& random, size_t size, size_t count);

// Tokens of a context and of a continuation behind it.
struct TokenPair {
  std::vector<int32_t> tokens;
  int64_t context = 0;  // of them, at least one
};

struct TokenOptions {
  bool add_bos_token = false;  // what the tokenizer puts round a text
  int64_t positions = 0;       // of the model
};

// As lm-evaluation-harness' _encode_pair: white space at the end of the context goes to the continuation, whose tokens
// are those that context and continuation together have behind as many as the context alone. Before an empty context
// stands the token of a beginning (or end). Of more tokens than the model has positions the first are dropped. Throws
// Error naming place.
TokenPair encode_pair(const tokenizers::Tokenizer& tokenizer, const TokenOptions& options,
                      std::string context, std::string continuation, const std::string& place);

// A context that up to `room` tokens are to follow; its first tokens are dropped where there are too many.
std::vector<int32_t> encode_context(const tokenizers::Tokenizer& tokenizer,
                                    const TokenOptions& options, const std::string& context,
                                    int64_t room, const std::string& place);

}  // namespace megatron::tasks
