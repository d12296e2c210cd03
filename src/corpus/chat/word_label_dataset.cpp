#include "corpus/chat/word_label_dataset.h"

#include <algorithm>

#include "base/error.h"
#include "base/utf8.h"
#include "corpus/chat/record_blocks.h"
#include "corpus/chat/scored_dataset.h"

namespace megatron::corpus {
namespace {

// Labels of tokens, by the words in whose characters each begins or reaches.
void place_labels(const std::vector<tokenizers::Range>& words,
                  const std::vector<tokenizers::Range>& offsets,
                  const std::vector<int32_t>& of_words, std::vector<int32_t>& labels) {
  size_t word = 0;
  for (size_t t = 0; t < offsets.size() && word < words.size(); ++t) {
    if (offsets[t].begin == offsets[t].end) continue;  // around the text, or of nothing
    while (word < words.size() && words[word].end <= offsets[t].begin) ++word;  // without a token
    if (word == words.size() || offsets[t].end <= words[word].begin) continue;
    labels[t] = of_words[word];
    while (word < words.size() && words[word].begin < offsets[t].end) ++word;
    // The rest of a word that began in an earlier token has no label.
  }
}

void cut(WordLabelTokens& tokens, const WordLabelReading& reading) {
  const int64_t kept = reading.capacity;
  tokens.cut = std::ssize(tokens.ids) > kept;
  if (!tokens.cut) return;
  tokenizers::cut_text(tokens.ids, kept, reading.keep_start, reading.ends);
  if (!reading.keep_start) tokens.labels.erase(tokens.labels.begin(), tokens.labels.end() - kept);
  tokens.labels.resize(static_cast<size_t>(kept));
  // The special tokens at the ends have replaced tokens of the text; they have no label.
  if (reading.ends.first && tokens.ids.front() == *reading.ends.first)
    tokens.labels.front() = WordLabelTokens::kNone;
  if (reading.ends.last && tokens.ids.back() == *reading.ends.last)
    tokens.labels.back() = WordLabelTokens::kNone;
}

}  // namespace

WordLabelTokens word_label_tokens(const LabelledWords& text, const tokenizers::Tokenizer& tokenizer,
                                  const WordLabelReading& reading,
                                  const std::vector<std::string>& names, const std::string& place) {
  std::string joined;
  std::vector<tokenizers::Range> words;
  std::vector<int32_t> of_words;
  uint32_t characters = 0;
  WordLabelTokens tokens;
  for (size_t w = 0; w < text.words.size(); ++w) {
    if (w > 0) joined += ' ', ++characters;
    const auto length = static_cast<uint32_t>(count_characters(text.words[w]));
    words.push_back({characters, characters + length});
    joined += text.words[w];
    characters += length;
    of_words.push_back(text.labels[w].is_null() ? WordLabelTokens::kNone
                                                : class_of(text.labels[w], names, place));
    tokens.words += of_words.back() == WordLabelTokens::kNone ? 0 : 1;
  }
  std::vector<tokenizers::Range> offsets;
  tokenizer.codec().encode(joined, {.add_special_tokens = true}, tokens.ids, &offsets);
  tokens.labels.assign(tokens.ids.size(), WordLabelTokens::kNone);
  place_labels(words, offsets, of_words, tokens.labels);
  cut(tokens, reading);
  tokens.without = tokens.words - std::ranges::count_if(tokens.labels, [](int32_t label) {
                     return label != WordLabelTokens::kNone;
                   });
  return tokens;
}

WordLabelStore read_word_labels(const std::vector<std::string>& paths,
                                const tokenizers::Tokenizer& tokenizer,
                                const WordLabelReading& reading,
                                const std::vector<std::string>& names, ThreadPool& pool,
                                const std::string& label) {
  struct Read {
    WordLabelTokens tokens;
    std::string source, place;
  };
  MG_CHECK(reading.capacity > 2, "{} is {}; a text with labels needs at least 3 tokens",
           reading.limit, reading.capacity);
  WordLabelStore store;
  for_each_tokenized<Read>(
      paths, pool, label,
      [&](const Json& record, std::string place) {
        return Read{
            word_label_tokens(labelled_words_of(record, place), tokenizer, reading, names, place),
            source_of(record, place), place};
      },
      [&](Read& read) {
        const WordLabelTokens& tokens = read.tokens;
        MG_CHECK(!tokens.ids.empty(), "{}: the text has no tokens", read.place);
        store.cut += tokens.cut ? 1 : 0;
        store.words += tokens.words;
        store.without += tokens.without;
        store.ids.insert(store.ids.end(), tokens.ids.begin(), tokens.ids.end());
        store.labels.insert(store.labels.end(), tokens.labels.begin(), tokens.labels.end());
        store.ends.push_back(std::ssize(store.ids));
        store.sources.add(read.source);
      });
  MG_CHECK(store.size() > 0, "{} has no texts", paths[0]);
  MG_CHECK(store.without < store.words, "{} has no word with a label and a token{}", paths[0],
           store.cut > 0 ? fmt::format(" ({} cuts its texts)", reading.limit) : std::string());
  return store;
}

void WordLabelDataset::fill(const PackedRow& row, data::Sample& sample) const {
  size_t at = 0;
  for (const PackedPart& part : row) {
    const int64_t text = example_of(part);
    const auto begin = static_cast<size_t>(store_->begin(text)),
               length = static_cast<size_t>(store_->length(text));
    for (size_t t = 0; t < length; ++t) {
      const int32_t label = store_->labels[begin + t];
      if (label == WordLabelTokens::kNone) continue;
      sample.labels[at + t] = label;
      sample.loss_mask[at + t] = 1;
    }
    place(std::span(store_->ids).subspan(begin, length), store_->sources.of(text), at, sample);
  }
}

}  // namespace megatron::corpus
