// Opens a run's chats, pairs, labelled texts, questions or preferences as data sets.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "corpus/chat/chat_dataset.h"
#include "corpus/chat/preference_dataset.h"
#include "corpus/corpus.h"

namespace megatron::corpus {

// Finds out how chats become tokens: the vocabulary's tokenizer, and its chat template, or that of
// --chat-template. Throws Error naming the flags if there is no tokenizer.
class ChatSource {
 public:
  ChatSource(const settings::DataSettings& settings, const Vocabulary& vocabulary);
  const ChatTokenizer& tokenizer() const { return tokens_; }

 private:
  std::shared_ptr<const tokenizers::Tokenizer> tokenizer_;
  tokenizers::ChatTemplate template_;
  ChatTokenizer tokens_;
};

// What the data sets of a run's examples are made of; references are borrowed.
struct ExampleFiles {
  const settings::DataSettings& settings;
  const Vocabulary& vocabulary;
  int64_t seq_length = 0, seed = 0;
  int64_t decoder_length = 0;  // for an encoder-decoder, whose encoder reads seq_length tokens
  int64_t start_token = -1;    // of such a model's texts; -1: the tokenizer's (data/t5_tokens.h)
  std::array<bool, 3> wanted;  // sets to open
  // Numbers of samples as for open_corpus(), given the number of rows of the training set.
  std::function<std::array<std::optional<int64_t>, 3>(int64_t train_rows)> samples;
  // With --extend-to-iters, numbers of samples whose order the others follow, in data sets whose
  // order depends on how many are requested; 0: all.
  std::array<int64_t, 3> ordered{};
  ThreadPool& pool;
  bool by_source = false;  // a validation set for each source (source_of()), named like it
};

// The data sets of --data-path (--train-data-path, ...), files of examples (chat_reader.h), as
// open_corpus opens those of token files. Without --split, --data-path is for training, but for 2%
// of the examples if samples of the validation set are asked for; its examples are drawn by the
// seed. Log what was read. stops: tokens at which generation ends. model: which tokens of a text
// are scored, and its labels.
Corpus open_chats(const ExampleFiles& files, const std::vector<int32_t>& stops);
Corpus open_pairs(const ExampleFiles& files, const models::ModelFacts& model);
Corpus open_labelled(const ExampleFiles& files, const models::ModelFacts& model);
Corpus open_word_labels(const ExampleFiles& files, const models::ModelFacts& model);
Corpus open_answers(const ExampleFiles& files, const models::ModelFacts& model);
Corpus open_text_pairs(const ExampleFiles& files);
Corpus open_preferences(const ExampleFiles& files, const PreferenceUse& use);
// All files of examples that the settings name.
std::vector<std::string> example_paths(const settings::DataSettings& settings);

// Text of the first `count` examples for a terminal: tokens with loss in green (those of a text
// that is scored: the one that has the score, as the model's facts say; those of an answer; the
// first ones of words with labels), others grey. decoder_length: of --task seq2seq.
std::string shown_examples(const settings::DataSettings& settings, const Vocabulary& vocabulary,
                           int64_t count, int64_t seq_length, bool colour,
                           const models::ModelFacts& model = {}, int64_t decoder_length = 0);

}  // namespace megatron::corpus
