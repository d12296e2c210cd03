// A data set of questions whose answers stand in a text (extractive question answering).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/thread_pool.h"
#include "corpus/chat/encoder_records.h"
#include "corpus/chat/example_dataset.h"
#include "corpus/chat/sources.h"
#include "models/facts.h"
#include "tokenizers/tokenizer.h"

namespace megatron::corpus {

// How a question and its context are laid out in windows: as the tokenizer joins two texts, [CLS]
// question [SEP] context [SEP].
struct AnswerReading {
  int64_t capacity = 0;     // of a window, in tokens
  int64_t overlap = 0;      // tokens of the context that two windows share (--doc-stride)
  int64_t token_types = 0;  // of the model
  std::string_view limit = "--seq-length";  // flag that sets the capacity
};
// Throws Error naming the tokenizer's missing tokens.
AnswerReading answer_reading(const models::ModelFacts& model,
                             const tokenizers::Tokenizer& tokenizer, int64_t capacity,
                             int64_t overlap);

// A window: the question, then part of the context. A context with more tokens than fit in one
// window is divided into several, which overlap.
struct AnswerWindow {
  std::vector<int32_t> ids, types;         // types: of a model with several
  int32_t context = 0;                     // index of the context's first token
  std::vector<tokenizers::Range> offsets;  // characters of each of the context's tokens in it
  // Indices of the first and the last token of the answer; 0, which is [CLS]: not in this window.
  std::array<int32_t, 2> answer = {0, 0};

  int64_t context_end() const { return context + std::ssize(offsets); }
  bool has_answer() const { return answer[0] > 0; }
};

// The windows of a question, each with the first answer if it contains all of it. Throws Error
// naming the place if the question leaves no room, or the context has no tokens.
std::vector<AnswerWindow> answer_windows(const Question& question,
                                         const tokenizers::Tokenizer& tokenizer,
                                         const AnswerReading& reading);

// Tokens of many windows, one after the other.
struct AnswerStore {
  struct Window {
    int64_t end = 0;                         // of its tokens in ids
    int32_t context = 0, context_end = 0;    // indices in the window of its context's tokens
    std::array<int32_t, 2> answer = {0, 0};  // as in AnswerWindow
  };
  std::vector<int32_t> ids, types;  // as in AnswerWindow
  std::vector<Window> windows;
  Sources sources = {};  // of the windows
  int64_t questions = 0;
  int64_t unanswered = 0;  // questions without an answer
  int64_t lost = 0;        // questions whose answer is whole in no window

  int64_t size() const { return std::ssize(windows); }
  int64_t begin(int64_t window) const {
    return window == 0 ? 0 : windows[static_cast<size_t>(window - 1)].end;
  }
  int64_t length(int64_t window) const { return begin(window + 1) - begin(window); }
};

// Reads the files (chat_reader.h), in their order, on the pool's threads. Shows its progress under
// `label`. Throws Error naming file and line of a bad record.
AnswerStore read_answers(const std::vector<std::string>& paths,
                         const tokenizers::Tokenizer& tokenizer, const AnswerReading& reading,
                         ThreadPool& pool, const std::string& label);

// The loss mask is 1 at the first token of each window. The targets of its first two tokens are the
// indices of the answer's first and last token in the window; labels are 1 at the tokens of the
// context.
class AnswerDataset final : public ExampleDataset {
 public:
  // The arguments are those of ExampleDataset, of which `rest` are those after the examples.
  template <class... Rest>
  AnswerDataset(std::shared_ptr<const AnswerStore> store, std::vector<int64_t> examples,
                Rest&&... rest)
      : ExampleDataset(*store, std::move(examples), std::forward<Rest>(rest)...),
        store_(std::move(store)) {}

 private:
  void fill(const PackedRow& row, data::Sample& sample) const override;

  std::shared_ptr<const AnswerStore> store_;
};

}  // namespace megatron::corpus
