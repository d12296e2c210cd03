#include "tokenizers/trainer/bpe_trainer.h"

#include <algorithm>
#include <limits>
#include <set>

#include "base/error.h"
#include "base/thread_pool.h"
#include "base/utf8.h"
#include "tokenizers/byte_level.h"
#include "tokenizers/definition.h"
#include "tokenizers/pre_tokenizers/pre_tokenizer.h"
#include "tokenizers/trainer/merge_learner.h"
#include "tokenizers/trainer/word_counts.h"

namespace megatron::tokenizers {
namespace {

constexpr size_t kBatch = size_t{16} << 20;  // bytes of text counted at a time
constexpr size_t kBlock = size_t{64} << 10;  // bytes per thread at a time

const char* pattern_named(const std::string& name) {
  if (name == "gpt2") return kGpt2Pattern;
  if (name == "llama3") return kLlama3Pattern;
  if (name == "qwen2") return kQwen2Pattern;
  fail("pattern '{}' is unknown; supported are gpt2, llama3 and qwen2", name);
}

}  // namespace

struct BpeTrainer::Impl {
  BpeTrainerOptions options;
  Definition definition;
  std::unique_ptr<PreTokenizer> pre_tokenizer;
  ThreadPool pool;
  std::vector<RegexScratch> scratch;  // by thread
  std::vector<WordCounts> counts;     // by thread
  std::string batch;
  std::vector<size_t> ends;  // ends of the lines or documents in the batch

  explicit Impl(BpeTrainerOptions given)
      : options(std::move(given)),
        definition(byte_level_definition(pattern_named(options.pattern), options.add_prefix_space)),
        pre_tokenizer(make_pre_tokenizer(definition.member("pre_tokenizer"))),
        pool(options.threads),
        scratch(static_cast<size_t>(options.threads)),
        counts(static_cast<size_t>(options.threads)) {}

  void count_batch();
  Vocabulary first_tokens(const WordCounts& words);
};

void BpeTrainer::Impl::count_batch() {
  std::vector<size_t> blocks = {0};  // indices in `ends`
  for (size_t i = 0, begin = 0; i < ends.size(); ++i) {
    if (ends[i] - begin < kBlock && i + 1 < ends.size()) continue;
    blocks.push_back(i + 1);
    begin = ends[i];
  }
  pool.parallel_for(static_cast<int64_t>(blocks.size()) - 1, [&](int64_t block, int thread) {
    const auto t = static_cast<size_t>(thread);
    const auto b = static_cast<size_t>(block);
    for (size_t i = blocks[b]; i < blocks[b + 1]; ++i) {
      const size_t begin = i == 0 ? 0 : ends[i - 1];
      const std::string_view text = std::string_view(batch).substr(begin, ends[i] - begin);
      pre_tokenizer->split({.bytes = text}, scratch[t],
                           [&](TextView word) { counts[t].add(word.bytes, 1); });
    }
  });
  batch.clear();
  ends.clear();
}

Vocabulary BpeTrainer::Impl::first_tokens(const WordCounts& words) {
  bool seen[256] = {};
  std::fill(seen, seen + 256, options.all_bytes);
  for (size_t i = 0; i < words.size(); ++i) {
    for (const char c : words.word(i)) seen[static_cast<unsigned char>(c)] = true;
  }
  std::set<char32_t> letters;
  for (size_t b = 0; b < 256; ++b) {
    if (seen[b]) letters.insert(kByteLetters[b]);
  }
  Vocabulary vocabulary;
  for (const std::string& token : options.special_tokens) vocabulary.add(token, vocabulary.size());
  for (const char32_t letter : letters) {
    std::string text;
    append_character(letter, text);
    if (!vocabulary.find(text)) vocabulary.add(text, vocabulary.size());
  }
  MG_CHECK(vocabulary.size() <= options.vocabulary_size,
           "vocabulary_size is {}; {} special tokens and {} bytes already make {} (--vocab-size)",
           options.vocabulary_size, options.special_tokens.size(), letters.size(),
           vocabulary.size());
  return vocabulary;
}

BpeTrainer::BpeTrainer(BpeTrainerOptions options) {
  MG_CHECK(options.vocabulary_size >= 1 && options.vocabulary_size <= Vocabulary::kMaximumId,
           "vocabulary_size is {}; it can be 1 to {} (--vocab-size)", options.vocabulary_size,
           Vocabulary::kMaximumId);
  MG_CHECK(options.min_frequency >= 0,
           "min_frequency is {}; it cannot be negative (--min-frequency)", options.min_frequency);
  MG_CHECK(options.max_token_length >= 0, "max_token_length is {}; it cannot be negative",
           options.max_token_length);
  MG_CHECK(options.threads >= 1, "threads is {}; it must be at least 1", options.threads);
  for (const std::string& token : options.special_tokens) {
    MG_CHECK(!token.empty(), "a special token is empty (--special-tokens)");
    check_utf8(token, "a special token");
    MG_CHECK(std::count(options.special_tokens.begin(), options.special_tokens.end(), token) == 1,
             "special token '{}' is listed twice (--special-tokens)", token);
  }
  impl_ = std::make_unique<Impl>(std::move(options));
  if (impl_->options.all_bytes) impl_->first_tokens(WordCounts());  // throws if there are too many
}
BpeTrainer::~BpeTrainer() = default;
BpeTrainer::BpeTrainer(BpeTrainer&&) noexcept = default;

void BpeTrainer::add(std::string_view text) {
  check_utf8(text, "a document");
  while (!text.empty()) {
    const size_t size = std::min(text.size() - 1, text.find('\n')) + 1;
    impl_->batch.append(text.substr(0, size));
    impl_->ends.push_back(impl_->batch.size());
    text.remove_prefix(size);
    if (impl_->batch.size() >= kBatch) impl_->count_batch();
  }
}

Tokenizer BpeTrainer::train(const OnProgress& progress) {
  const BpeTrainerOptions& options = impl_->options;
  impl_->count_batch();
  for (size_t thread = 1; thread < impl_->counts.size(); ++thread) {
    impl_->counts[0].add(impl_->counts[thread]);
    impl_->counts[thread] = {};
  }
  const WordCounts& words = impl_->counts[0];
  Definition definition = impl_->definition;
  definition.vocabulary = impl_->first_tokens(words);
  for (const std::string& token : options.special_tokens) {
    const int64_t id = definition.vocabulary.find(token).value();
    definition.added_tokens.push_back({.content = token, .id = id, .special = true});
  }
  const int64_t limit =
      options.max_token_length > 0 ? options.max_token_length : std::numeric_limits<int64_t>::max();
  MergeLearner learner(words, definition.vocabulary, limit);
  const auto merges = learner.learn(
      options.vocabulary_size, std::max<int64_t>(1, options.min_frequency), [&](int64_t tokens) {
        if (progress) progress(tokens, options.vocabulary_size);
      });
  const Vocabulary& vocabulary = definition.vocabulary;
  for (const uint64_t pair : merges) {
    definition.merges.push_back(
        find_merge(vocabulary, vocabulary.text(left_of(pair)), vocabulary.text(right_of(pair))));
  }
  if (progress) progress(vocabulary.size(), options.vocabulary_size);
  return Tokenizer(make_pipeline(std::move(definition)));
}

}  // namespace megatron::tokenizers
