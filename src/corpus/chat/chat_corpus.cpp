#include "corpus/chat/chat_corpus.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "corpus/chat/chat_reader.h"
#include "data/random_state.h"
#include "data/split.h"

namespace megatron::corpus {
namespace {

constexpr std::array kSplits = {data::Split::train, data::Split::valid, data::Split::test};

tokenizers::ChatTemplate template_of(const settings::DataSettings& settings,
                                     const Vocabulary& vocabulary) {
  if (vocabulary.directory.empty()) return {};
  auto chat = tokenizers::ChatTemplate::load(vocabulary.directory);
  if (settings.chat_template)
    chat.set_template(read_file(*settings.chat_template), *settings.chat_template);
  return chat;
}

const tokenizers::Tokenizer& tokenizer_of(const Vocabulary& vocabulary) {
  MG_CHECK(vocabulary.tokenizer != nullptr && !vocabulary.directory.empty(),
           "chats (--chats) need a tokenizer: give --model DIR with one, or --tokenizer-model");
  return *vocabulary.tokenizer;
}

std::optional<Packing> packing_of(const settings::DataSettings& settings) {
  if (settings.chat_packing == "none") return std::nullopt;
  return packing_named(settings.chat_packing);
}

std::string_view described(AnswerRule rule) {
  switch (rule) {
    case AnswerRule::generation_marks:
      return "answers are what the chat template marks as {% generation %}";
    case AnswerRule::prefixes:
      return "the chat template has no {% generation %} marks: answers are what a message of the "
             "assistant adds to the text before it";
    case AnswerRule::completion: return "loss is on completions";
  }
  MG_ASSERT(false);
}

// Opens the sets of one run.
class ChatSets {
 public:
  ChatSets(const settings::DataSettings& settings, const Vocabulary& vocabulary, int64_t seq_length,
           int64_t seed, const std::vector<int32_t>& stops, ThreadPool& pool)
      : settings_(settings),
        source_(settings, vocabulary),
        seq_length_(seq_length),
        seed_(seed),
        stops_(stops),
        pool_(pool),
        padding_(
            static_cast<int32_t>(vocabulary.pad.value_or(std::max<int64_t>(vocabulary.eod, 0)))) {}

  std::shared_ptr<const ChatStore> read(const std::vector<std::string>& paths,
                                        const std::string& label) const {
    const std::optional<Packing> packing = packing_of(settings_);
    const bool whole = packing == Packing::bfd_split || packing == Packing::wrapped;
    const ChatReading reading{.longest = whole ? 0 : seq_length_,
                              .keep_start = settings_.chat_truncation == "keep_start",
                              .stops = stops_};
    auto store = std::make_shared<ChatStore>(
        read_chats(paths, source_.tokenizer(), reading, pool_, "reading " + label));
    report(*store, paths[0]);
    return store;
  }

  std::shared_ptr<const ChatDataset> set(const std::shared_ptr<const ChatStore>& store,
                                         std::vector<int64_t> chats, data::Split split,
                                         const std::optional<int64_t>& samples) const {
    auto set = std::make_shared<const ChatDataset>(store, std::move(chats), packing_of(settings_),
                                                   seq_length_, padding_, seed_, samples);
    log::info("{} set: {} rows of {} tokens per epoch, {:.1f}% of them filled{}", data::name(split),
              set->rows(), seq_length_, 100 * set->filled(),
              samples
                  ? fmt::format("; {} samples are {:.2f} epochs", *samples,
                                static_cast<double>(*samples) / static_cast<double>(set->rows()))
                  : "");
    return set;
  }

 private:
  void report(const ChatStore& store, const std::string& path) const {
    const auto with_loss =
        std::ranges::count_if(store.weights, [](float weight) { return weight != 0; });
    log::info("{}: {} chats, {} tokens, {:.1f}% of which carry loss; {}", path, store.size(),
              store.ids.size(),
              100.0 * static_cast<double>(with_loss) / static_cast<double>(store.ids.size()),
              described(store.rule));
    if (store.cut > 0)
      log::warning("{} chats are longer than --seq-length {} and are cut (--chat-truncation {})",
                   store.cut, seq_length_, settings_.chat_truncation);
    if (store.dropped > 0)
      log::warning("{} chats are left out, because none of their tokens carries loss{}",
                   store.dropped, store.cut > 0 ? " after they are cut" : "");
    if (store.answers_left_open > 0)
      log::warning(
          "{} of {} chats end without a token that ends generation, or it carries no loss: a model "
          "trained on them does not learn to stop. The chat template should have the end-of-turn "
          "token within its {{% generation %}} marks",
          store.answers_left_open, store.size() + store.dropped);
  }

  const settings::DataSettings& settings_;
  ChatSource source_;
  int64_t seq_length_, seed_;
  const std::vector<int32_t>& stops_;
  ThreadPool& pool_;
  int32_t padding_;
};

std::vector<int64_t> all_of(const ChatStore& store) {
  std::vector<int64_t> chats(static_cast<size_t>(store.size()));
  std::iota(chats.begin(), chats.end(), int64_t{0});
  return chats;
}

// Each split's chats: drawn by the seed, then in their order.
std::vector<int64_t> drawn(const ChatStore& store, const data::SplitShare& share, int64_t seed) {
  std::vector<int64_t> chats = all_of(store);
  data::RandomState(seed & 0xFFFFFFFF).shuffle(std::span(chats));
  const auto [begin, end] = data::split_range(share, store.size());
  std::vector<int64_t> own(chats.begin() + begin, chats.begin() + end);
  std::ranges::sort(own);
  return own;
}

}  // namespace

ChatSource::ChatSource(const settings::DataSettings& settings, const Vocabulary& vocabulary)
    : tokenizer_(vocabulary.tokenizer),
      template_(template_of(settings, vocabulary)),
      tokens_(tokenizer_of(vocabulary), template_) {}

Corpus open_chats(const settings::DataSettings& settings, const Vocabulary& vocabulary,
                  int64_t seq_length, int64_t seed,
                  const std::array<std::optional<int64_t>, 3>& samples,
                  const std::vector<int32_t>& stops, ThreadPool& pool) {
  const ChatSets sets(settings, vocabulary, seq_length, seed, stops, pool);
  Corpus corpus;
  const auto wanted = [&](data::Split split) { return samples[static_cast<size_t>(split)] != 0; };
  const auto add = [&](data::Split split, const std::shared_ptr<const ChatStore>& store,
                       std::vector<int64_t> chats) {
    const auto at = static_cast<size_t>(split);
    corpus.sets[at] = sets.set(store, std::move(chats), split, samples[at]);
    if (split == data::Split::valid) corpus.validation.push_back({"valid", corpus.sets[at]});
  };
  if (settings.data_path.empty()) {
    const std::array<const std::vector<std::string>*, 3> paths = {
        &settings.train_data_path, &settings.valid_data_path, &settings.test_data_path};
    for (const data::Split split : kSplits) {
      const std::vector<std::string>& own = *paths[static_cast<size_t>(split)];
      if (own.empty() || !wanted(split)) continue;
      const auto store = sets.read(own, fmt::format("{} chats", data::name(split)));
      add(split, store, all_of(*store));
    }
    return corpus;
  }
  const auto store = sets.read(settings.data_path, "chats");
  const data::SplitMatrix shares =
      data::parse_split(settings.split.value_or(wanted(data::Split::valid) ? "98,2,0" : "100,0,0"));
  for (const data::Split split : kSplits) {
    const auto& share = shares[static_cast<size_t>(split)];
    if (!share || !wanted(split)) continue;
    std::vector<int64_t> chats = drawn(*store, *share, seed);
    if (!chats.empty()) add(split, store, std::move(chats));
  }
  return corpus;
}

std::string shown_chats(const settings::DataSettings& settings, const Vocabulary& vocabulary,
                        int64_t count, int64_t seq_length, bool colour) {
  constexpr std::string_view kGreen = "\033[32m", kGrey = "\033[90m", kPlain = "\033[0m";
  const ChatSource source(settings, vocabulary);
  const std::vector<std::string>& paths =
      settings.data_path.empty() ? settings.train_data_path : settings.data_path;
  std::string text;
  read_records(paths, [&](const Json& record, const std::string& place) {
    ChatTokens tokens = source.tokenizer().tokens(example_of(record, place));
    const auto whole = std::ssize(tokens.ids);
    truncate(tokens, seq_length, settings.chat_truncation == "keep_start");
    text += fmt::format("--- {}: {} tokens{}, {} with loss\n", place, whole,
                        whole > seq_length ? fmt::format(", {} kept", seq_length) : "",
                        tokens.counted());
    for (size_t begin = 0; begin < tokens.ids.size();) {
      const bool loss = tokens.weights[begin] != 0;
      size_t end = begin;
      while (end < tokens.ids.size() && (tokens.weights[end] != 0) == loss) ++end;
      const std::string part =
          vocabulary.tokenizer->decode(std::span(tokens.ids).subspan(begin, end - begin));
      if (colour) text += fmt::format("{}{}{}", loss ? kGreen : kGrey, part, kPlain);
      else text += loss ? fmt::format("[[{}]]", part) : part;
      begin = end;
    }
    text += "\n";
    return --count > 0;
  });
  return text;
}

}  // namespace megatron::corpus
