#include "corpus/chat/answer_dataset.h"

#include <algorithm>

#include "base/error.h"
#include "base/utf8.h"
#include "corpus/chat/record_blocks.h"

namespace megatron::corpus {
namespace {

// The tokens in [begin, end) of the answer, if they hold it whole: from the last token that begins
// at its first character or before to the first one that ends at its last character or after.
std::array<int32_t, 2> answer_in(const std::vector<tokenizers::Range>& offsets,
                                 const GoldAnswer& answer, int32_t context) {
  const auto first = static_cast<uint32_t>(answer.begin),
             last = first + static_cast<uint32_t>(count_characters(answer.text));
  if (offsets.front().begin > first || offsets.back().end < last) return {0, 0};
  size_t begin = offsets.size() - 1, end = 0;
  while (offsets[begin].begin > first) --begin;
  while (offsets[end].end < last) ++end;
  return {context + static_cast<int32_t>(begin),
          context + static_cast<int32_t>(std::max(begin, end))};
}

}  // namespace

AnswerReading answer_reading(const models::ModelFacts& model,
                             const tokenizers::Tokenizer& tokenizer, int64_t capacity,
                             int64_t overlap) {
  const tokenizers::JoinedTexts around = tokenizer.codec().join({}, {});
  const bool before = around.first > 0, between = around.second > around.first,
             behind = around.size() > around.second;
  MG_CHECK(before && between && behind,
           "the tokenizer puts no token {} texts, but questions and contexts need [CLS] question "
           "[SEP] context [SEP]: use the tokenizer of an encoder",
           !before    ? "before"
           : !between ? "between"
                      : "after");
  return {.capacity = capacity, .overlap = overlap, .token_types = model.token_types};
}

std::vector<AnswerWindow> answer_windows(const Question& question,
                                         const tokenizers::Tokenizer& tokenizer,
                                         const AnswerReading& reading) {
  const std::vector<int32_t> asked = tokenizer.encode(question.question);
  std::vector<int32_t> tokens;
  std::vector<tokenizers::Range> offsets;
  tokenizer.codec().encode(question.context, {}, tokens, &offsets);
  MG_CHECK(!tokens.empty(), "{}: the context has no tokens", question.place);
  const tokenizers::JoinedTexts without = tokenizer.codec().join(asked, {});
  const auto context = static_cast<int64_t>(without.second), all = std::ssize(tokens),
             room = reading.capacity - std::ssize(without.ids), step = room - reading.overlap;
  MG_CHECK(room > 0,
           "{}: the question has {} tokens, which leaves room for 0 of the context's {} in {} "
           "{}: raise {}",
           question.place, context, all, reading.limit, reading.capacity, reading.limit);
  MG_CHECK(all <= room || step > 0,
           "{}: the question has {} tokens, which leaves room for {} of the context's {} in {} "
           "{}, and windows share {} (--doc-stride): raise {}, or lower --doc-stride",
           question.place, context, room, all, reading.limit, reading.capacity, reading.overlap,
           reading.limit);
  std::vector<AnswerWindow> windows;
  for (int64_t begin = 0;; begin += step) {
    const int64_t end = std::min(begin + room, all);
    AnswerWindow& window = windows.emplace_back();
    tokenizers::JoinedTexts joined = tokenizer.codec().join(
        asked,
        std::span(tokens).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
    window.types = joined.types_of_model(reading.token_types);
    window.ids = std::move(joined.ids);
    window.context = static_cast<int32_t>(context);
    window.offsets.assign(offsets.begin() + begin, offsets.begin() + end);
    if (!question.answers.empty())
      window.answer = answer_in(window.offsets, question.answers[0], window.context);
    if (end == all) return windows;
  }
}

AnswerStore read_answers(const std::vector<std::string>& paths,
                         const tokenizers::Tokenizer& tokenizer, const AnswerReading& reading,
                         ThreadPool& pool, const std::string& label) {
  struct Read {
    std::vector<AnswerWindow> windows;
    bool answered = false;
    std::string source;
  };
  AnswerStore store;
  for_each_tokenized<Read>(
      paths, pool, label,
      [&](const Json& record, std::string place) {
        const std::string source = source_of(record, place);
        const Question question = question_of(record, std::move(place));
        return Read{answer_windows(question, tokenizer, reading), !question.answers.empty(),
                    source};
      },
      [&](Read& read) {
        ++store.questions;
        store.unanswered += read.answered ? 0 : 1;
        const bool found = std::ranges::any_of(read.windows, &AnswerWindow::has_answer);
        store.lost += read.answered && !found ? 1 : 0;
        for (const AnswerWindow& window : read.windows) {
          store.ids.insert(store.ids.end(), window.ids.begin(), window.ids.end());
          store.types.insert(store.types.end(), window.types.begin(), window.types.end());
          store.windows.push_back({.end = std::ssize(store.ids),
                                   .context = window.context,
                                   .context_end = static_cast<int32_t>(window.context_end()),
                                   .answer = window.answer});
          store.sources.add(read.source);
        }
      });
  MG_CHECK(store.size() > 0, "{} has no questions", paths[0]);
  return store;
}

void AnswerDataset::fill(const PackedRow& row, data::Sample& sample) const {
  sample.targets.assign(sample.tokens.size(), 0);
  if (!store_->types.empty()) sample.token_types.assign(sample.tokens.size(), 0);
  size_t at = 0;
  for (const PackedPart& part : row) {
    const int64_t index = example_of(part);
    const AnswerStore::Window& window = store_->windows[static_cast<size_t>(index)];
    const auto begin = static_cast<size_t>(store_->begin(index)),
               length = static_cast<size_t>(store_->length(index)),
               context = at + static_cast<size_t>(window.context);
    sample.loss_mask[at] = 1;
    for (size_t end = 0; end < 2; ++end)
      sample.targets[at + end] = static_cast<double>(window.answer[end]);
    std::fill(sample.labels.begin() + static_cast<std::ptrdiff_t>(context),
              sample.labels.begin() + static_cast<std::ptrdiff_t>(at) + window.context_end, 1);
    if (!store_->types.empty())
      std::ranges::copy(std::span(store_->types).subspan(begin, length),
                        sample.token_types.begin() + static_cast<std::ptrdiff_t>(at));
    place(std::span(store_->ids).subspan(begin, length), store_->sources.of(index), at, sample);
  }
}

}  // namespace megatron::corpus
