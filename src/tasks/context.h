// Text that a model reads before the answer, and its tokens.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "data/random_state.h"
#include "tasks/task.h"
#include "tokenizers/tokenizer.h"

namespace megatron::tasks {

// Contexts of a task's examples, in order from the first: description, examples with answers, and
// text. The task is borrowed.
class Contexts {
 public:
  // Throws Error if there are too few examples to choose from.
  explicit Contexts(const Task& task);
  std::string next();
  std::string next_preamble();  // the preamble without the text

 private:
  using Pool = std::vector<const Example*>;
  Pool draw(Pool& pool, const Example& example);

  const Task& task_;
  bool own_;                           // whether the pool is the task's own other examples
  std::map<std::string, Pool> pools_;  // by subject
  std::map<std::string, data::RandomState> random_;
  size_t at_ = 0;
};

// Same results as Python's random.sample(range(size), count).
std::vector<size_t> python_sample(data::RandomState& random, size_t size, size_t count);

// Tokens of a context and of the continuation after it.
struct TokenPair {
  std::vector<int32_t> tokens;
  int64_t context = 0;  // most tokens, at least one
};

struct TokenOptions {
  bool add_bos_token = false;  // adds the tokenizer's beginning-of-sequence token
  int64_t positions = 0;       // the model's number of positions
};

// Same as lm-evaluation-harness' _encode_pair: white space at the end of the context is moved to
// the continuation, whose tokens are those of context and continuation together after the number of
// tokens of the context alone. An empty context is replaced by the token for the beginning (or end)
// of text. If there are more tokens than the model has positions, the first are dropped. Throws
// Error naming place.
TokenPair encode_pair(const tokenizers::Tokenizer& tokenizer, const TokenOptions& options,
                      std::string context, std::string continuation, const std::string& place);

// Tokens of a context that leave room for up to `room` more; the first tokens are dropped if there
// are too many.
std::vector<int32_t> encode_context(const tokenizers::Tokenizer& tokenizer,
                                    const TokenOptions& options, const std::string& context,
                                    int64_t room, const std::string& place);

}  // namespace megatron::tasks
