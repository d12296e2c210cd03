#include "corpus/chat/chat_corpus.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "corpus/chat/answer_dataset.h"
#include "corpus/chat/chat_reader.h"
#include "corpus/chat/scored_dataset.h"
#include "corpus/chat/text_pair_dataset.h"
#include "corpus/chat/word_label_dataset.h"
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
           "the examples of this --task need a tokenizer: give --model DIR with one, or "
           "--tokenizer-model");
  return *vocabulary.tokenizer;
}

std::optional<Packing> packing_of(const settings::DataSettings& settings) {
  if (settings.chat_packing == "none" || settings.sft) return std::nullopt;
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
    case AnswerRule::messages:
      return "answers are messages of the assistant, each tokenized by itself "
             "(--sft-tokenizer-prompt-format)";
    case AnswerRule::everything:
      return "every token carries loss (--sft-tokenizer-prompt-format default)";
  }
  MG_ASSERT(false);
}

std::vector<int64_t> all_of(int64_t size) {
  std::vector<int64_t> examples(static_cast<size_t>(size));
  std::iota(examples.begin(), examples.end(), int64_t{0});
  return examples;
}

// Each split's examples: drawn by the seed, then in their order; without a seed, consecutive ones.
std::vector<int64_t> drawn(int64_t size, const data::SplitShare& share,
                           std::optional<int64_t> seed) {
  std::vector<int64_t> examples = all_of(size);
  if (seed) data::RandomState(*seed & 0xFFFFFFFF).shuffle(std::span(examples));
  const auto [begin, end] = data::split_range(share, size);
  std::vector<int64_t> own(examples.begin() + begin, examples.begin() + end);
  std::ranges::sort(own);
  return own;
}

void report_set(data::Split split, const std::string& name, const ExampleDataset& set,
                const std::optional<int64_t>& samples) {
  const std::string_view plain = data::name(split);
  const int64_t rows = set.rows().rows();
  log::info("{} set{}: {} rows of {} per epoch, {:.1f}% of them filled{}", plain,
            name == plain ? "" : " of source " + name, rows, set.length_text(), 100 * set.filled(),
            samples ? fmt::format("; {} samples are {:.2f} epochs", *samples,
                                  static_cast<double>(*samples) / static_cast<double>(rows))
                    : "");
}

// Examples of a data set, with its name.
struct NamedExamples {
  std::string name;
  std::vector<int64_t> examples;
};

constexpr size_t kMostSources = 20;

// The names by which training losses are logged; none if there is one source, or too many.
std::vector<std::string> logged_sources(const Sources& sources) {
  if (sources.names().size() < 2) return {};
  if (sources.names().size() <= kMostSources) return sources.names();
  log::info(
      "the examples have {} sources ('source' or 'channel' of a record, or else its file): their "
      "losses are logged together, since at most {} can be logged separately",
      sources.names().size(), kMostSources);
  return {};
}

// The examples of each source, in the order in which sources occur in the files.
std::vector<NamedExamples> by_source(const Sources& sources, const std::vector<int64_t>& examples) {
  std::vector<NamedExamples> all;
  for (const std::string& name : sources.names()) all.push_back({name, {}});
  for (const int64_t example : examples) all[sources.of(example)].examples.push_back(example);
  std::erase_if(all, [](const NamedExamples& of_source) { return of_source.examples.empty(); });
  MG_CHECK(
      all.size() <= kMostSources,
      "--multiple-validation-sets: the validation set has {} sources ('source' or 'channel' of "
      "a record, or else its file; the first are '{}' and '{}'), but at most {} can be "
      "evaluated separately; leave the flag out, or give the records fewer sources",
      all.size(), all[0].name, all[1].name, kMostSources);
  return all;
}

// Opens the sets of files of examples. read(paths, label) gives a shared pointer to a store with
// size(); Set is made of it as ChatDataset is.
template <class Set, class Read>
Corpus open_sets(const ExampleFiles& files, int32_t padding, const Read& read) {
  const settings::DataSettings& settings = files.settings;
  const std::optional<Packing> packing = packing_of(settings);
  Corpus corpus;
  const auto wanted = [&](data::Split split) { return files.wanted[static_cast<size_t>(split)]; };
  std::array<std::optional<int64_t>, 3> samples;
  const auto add_set = [&](data::Split split, const auto& store, NamedExamples of) {
    const auto at = static_cast<size_t>(split);
    const auto set = std::make_shared<Set>(
        store, std::move(of.examples), packing, files.seq_length, padding,
        settings.sft ? std::nullopt : std::optional(files.seed), std::nullopt);
    if (split == data::Split::train) {
      samples = files.samples(set->rows().rows());
      corpus.sources = logged_sources(store->sources);
    }
    if (samples[at]) set->request(*samples[at]);
    report_set(split, of.name, *set, samples[at]);
    if (corpus.sets[at] == nullptr) corpus.sets[at] = set;
    if (split == data::Split::valid) corpus.validation.push_back({of.name, set});
  };
  const auto add = [&](data::Split split, const auto& store, std::vector<int64_t> examples) {
    if (split == data::Split::valid && files.by_source) {
      for (NamedExamples& of : by_source(store->sources, examples))
        add_set(split, store, std::move(of));
    } else {
      add_set(split, store, {std::string(data::name(split)), std::move(examples)});
    }
  };
  if (settings.data_path.empty()) {
    const std::array<const std::vector<std::string>*, 3> paths = {
        &settings.train_data_path, &settings.valid_data_path, &settings.test_data_path};
    for (const data::Split split : kSplits) {
      const std::vector<std::string>& own = *paths[static_cast<size_t>(split)];
      if (own.empty() || !wanted(split)) continue;
      const auto store = read(own, fmt::format("reading {} data", data::name(split)));
      add(split, store, all_of(store->size()));
    }
    return corpus;
  }
  const auto store = read(settings.data_path, "reading data");
  const data::SplitMatrix shares =
      data::parse_split(settings.split.value_or(wanted(data::Split::valid) ? "98,2,0" : "100,0,0"));
  for (const data::Split split : kSplits) {
    const auto& share = shares[static_cast<size_t>(split)];
    if (!share || !wanted(split)) continue;
    std::vector<int64_t> examples =
        drawn(store->size(), *share, settings.sft ? std::nullopt : std::optional(files.seed));
    if (!examples.empty()) add(split, store, std::move(examples));
  }
  return corpus;
}

int32_t padding_of(const Vocabulary& vocabulary) {
  return static_cast<int32_t>(vocabulary.pad.value_or(std::max<int64_t>(vocabulary.eod, 0)));
}

void report_chats(const ChatStore& store, const std::string& path, const ExampleFiles& files) {
  const auto with_loss =
      std::ranges::count_if(store.weights, [](float weight) { return weight != 0; });
  log::info("{}: {} chats, {} tokens, {:.1f}% of which carry loss; {}", path, store.size(),
            store.ids.size(),
            100.0 * static_cast<double>(with_loss) / static_cast<double>(store.ids.size()),
            described(store.rule));
  if (store.cut > 0)
    log::warning("{} chats are longer than --seq-length {} and are cut (--chat-truncation {})",
                 store.cut, files.seq_length, files.settings.chat_truncation);
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

void report_scored(const ScoredStore& store, const std::string& path, const ExampleFiles& files) {
  const bool pairs = store.texts_per_example == 2;
  log::info("{}: {} {}, {} tokens", path, store.size(), pairs ? "pairs of texts" : "texts",
            store.ids.size());
  if (store.cut > 0)
    log::warning("{} texts are cut, because {} than --seq-length {} (--chat-truncation {})",
                 store.cut, pairs ? "their pairs are longer" : "they are longer", files.seq_length,
                 files.settings.chat_truncation);
  if (store.dropped > 0)
    log::warning("{} pairs are left out, because their texts are equal after they are cut",
                 store.dropped);
}

void report_word_labels(const WordLabelStore& store, const std::string& path,
                        const ExampleFiles& files) {
  log::info("{}: {} texts of {} words with labels, {} tokens", path, store.size(), store.words,
            store.ids.size());
  if (store.cut > 0)
    log::warning(
        "{} texts are cut, because they are longer than --seq-length {} "
        "(--chat-truncation {})",
        store.cut, files.seq_length, files.settings.chat_truncation);
  if (store.without > 0)
    log::warning("{} words with labels are left out: {}no token begins in them", store.without,
                 store.cut > 0 ? "they are cut off, or " : "");
}

void report_answers(const AnswerStore& store, const std::string& path) {
  log::info("{}: {} questions, {} windows of their contexts, {} tokens{}", path, store.questions,
            store.size(), store.ids.size(),
            store.unanswered == 0
                ? ""
                : fmt::format("; the contexts do not answer {} of them", store.unanswered));
  if (store.lost > 0)
    log::warning(
        "the answers of {} questions do not fit in any window, so these are trained as questions "
        "without an answer: raise --seq-length or --doc-stride",
        store.lost);
}

TextPairReading text_pair_reading(const settings::DataSettings& settings,
                                  const Vocabulary& vocabulary, int64_t encoder_length,
                                  int64_t decoder_length, int64_t start_token) {
  const tokenizers::Tokenizer& tokenizer = tokenizer_of(vocabulary);
  const bool ends = vocabulary.add_special_tokens;
  return {.encoder_length = encoder_length,
          .decoder_length = decoder_length,
          .input_key = settings.input_key.value_or(""),
          .target_key = settings.target_key.value_or(""),
          .keep_start = settings.chat_truncation == "keep_start",
          .ends = ends,
          .input_ends = ends ? tokenizers::text_ends(tokenizer) : tokenizers::TextEnds{},
          .around = data::decoder_tokens(data::sample_tokens(tokenizer), start_token)};
}

void report_text_pairs(const TextPairStore& store, const std::string& path,
                       const ExampleFiles& files) {
  log::info("{}: {} pairs of texts, {} tokens for the encoder and {} for the decoder", path,
            store.size(), store.inputs.size(), store.targets.size());
  if (store.cut > 0)
    log::warning(
        "{} texts for the encoder are cut, because they are longer than --seq-length {} "
        "(--chat-truncation {})",
        store.cut, files.seq_length, files.settings.chat_truncation);
}

void report_preferences(const PreferenceStore& store, const std::string& path,
                        const ExampleFiles& files) {
  const bool unpaired = store.reading.use.unpaired;
  int64_t chosen = 0, compared = 0;
  for (const PreferenceDocument& document : store.documents) {
    chosen += document.role == PreferenceRole::chosen ? 1 : 0;
    compared += document.completion_length;
  }
  log::info("{}: {}, {} tokens, {:.1f}% of which are completions", path,
            unpaired ? fmt::format("{} desirable and {} undesirable completions", chosen,
                                   store.size() - chosen)
                     : fmt::format("{} pairs of completions", store.size()),
            store.ids.size(),
            100.0 * static_cast<double>(compared) / static_cast<double>(store.ids.size()));
  if (store.margins > 0)
    log::info("{} pairs have a margin, which only --task reward reads", store.margins);
  if (store.cut > 0)
    log::warning(
        "{} completions are cut with their prompts, because {} --seq-length {} "
        "(--chat-truncation {})",
        store.cut,
        !unpaired                      ? "their pairs are longer than"
        : store.reading.use.mismatched ? "they are longer than half of"
                                       : "they are longer than",
        files.seq_length, files.settings.chat_truncation);
  if (store.dropped > 0)
    log::warning("{} {} are dropped, because cutting leaves nothing of them to compare",
                 store.dropped, unpaired ? "completions" : "pairs");
}

}  // namespace

ChatSource::ChatSource(const settings::DataSettings& settings, const Vocabulary& vocabulary)
    : tokenizer_(vocabulary.tokenizer),
      template_(template_of(settings, vocabulary)),
      tokens_(tokenizer_of(vocabulary), template_) {}

Corpus open_chats(const ExampleFiles& files, const std::vector<int32_t>& stops) {
  const ChatSource source(files.settings, files.vocabulary);
  const std::optional<Packing> packing = packing_of(files.settings);
  const bool whole = packing == Packing::bfd_split || packing == Packing::wrapped;
  const ChatReading reading{
      .longest = whole ? 0 : files.seq_length,
      .keep_start = files.settings.chat_truncation == "keep_start",
      .stops = stops,
      .format = files.settings.sft ? std::optional(prompt_format(files.settings.sft_prompt_format))
                                   : std::nullopt};
  if (reading.format) source.tokenizer().check(*reading.format);
  return open_sets<ChatDataset>(
      files, padding_of(files.vocabulary),
      [&](const std::vector<std::string>& paths, const std::string& label) {
        auto store = std::make_shared<const ChatStore>(
            read_chats(paths, source.tokenizer(), reading, files.pool, label));
        report_chats(*store, paths[0], files);
        return store;
      });
}

namespace {

template <class Read>
Corpus open_scored(const ExampleFiles& files, const models::ModelFacts& model, const Read& read) {
  const ChatSource source(files.settings, files.vocabulary);
  ScoredReading reading = scored_reading(model, *files.vocabulary.tokenizer);
  reading.capacity = files.seq_length;
  reading.keep_start = files.settings.chat_truncation == "keep_start";
  return open_sets<ScoredDataset>(
      files, padding_of(files.vocabulary),
      [&](const std::vector<std::string>& paths, const std::string& label) {
        auto store =
            std::make_shared<const ScoredStore>(read(paths, source.tokenizer(), reading, label));
        report_scored(*store, paths[0], files);
        return store;
      });
}

}  // namespace

Corpus open_pairs(const ExampleFiles& files, const models::ModelFacts& model) {
  return open_scored(files, model,
                     [&](const auto& paths, const ChatTokenizer& tokenizer,
                         const ScoredReading& reading, const std::string& label) {
                       return read_pairs(paths, tokenizer, reading, files.pool, label);
                     });
}

Corpus open_labelled(const ExampleFiles& files, const models::ModelFacts& model) {
  return open_scored(files, model,
                     [&](const auto& paths, const ChatTokenizer& tokenizer,
                         const ScoredReading& reading, const std::string& label) {
                       return read_labelled(paths, tokenizer, reading, model.label_names,
                                            files.pool, label);
                     });
}

namespace {

WordLabelReading word_label_reading(const settings::DataSettings& settings,
                                    const tokenizers::Tokenizer& tokenizer, int64_t seq_length) {
  return {.capacity = seq_length,
          .keep_start = settings.chat_truncation == "keep_start",
          .ends = tokenizers::text_ends(tokenizer)};
}

}  // namespace

Corpus open_word_labels(const ExampleFiles& files, const models::ModelFacts& model) {
  const tokenizers::Tokenizer& tokenizer = tokenizer_of(files.vocabulary);
  const WordLabelReading reading = word_label_reading(files.settings, tokenizer, files.seq_length);
  return open_sets<WordLabelDataset>(
      files, padding_of(files.vocabulary),
      [&](const std::vector<std::string>& paths, const std::string& label) {
        auto store = std::make_shared<const WordLabelStore>(
            read_word_labels(paths, tokenizer, reading, model.label_names, files.pool, label));
        report_word_labels(*store, paths[0], files);
        return store;
      });
}

Corpus open_answers(const ExampleFiles& files, const models::ModelFacts& model) {
  const tokenizers::Tokenizer& tokenizer = tokenizer_of(files.vocabulary);
  const AnswerReading reading =
      answer_reading(model, tokenizer, files.seq_length, files.settings.doc_stride);
  return open_sets<AnswerDataset>(
      files, padding_of(files.vocabulary),
      [&](const std::vector<std::string>& paths, const std::string& label) {
        auto store = std::make_shared<const AnswerStore>(
            read_answers(paths, tokenizer, reading, files.pool, label));
        report_answers(*store, paths[0]);
        return store;
      });
}

Corpus open_text_pairs(const ExampleFiles& files) {
  const tokenizers::Tokenizer& tokenizer = tokenizer_of(files.vocabulary);
  const TextPairReading reading = text_pair_reading(
      files.settings, files.vocabulary, files.seq_length, files.decoder_length, files.start_token);
  return open_sets<TextPairDataset>(
      files, static_cast<int32_t>(reading.around.pad),
      [&](const std::vector<std::string>& paths, const std::string& label) {
        auto store = std::make_shared<const TextPairStore>(
            read_text_pairs(paths, tokenizer, reading, files.pool, label));
        report_text_pairs(*store, paths[0], files);
        return store;
      });
}

Corpus open_preferences(const ExampleFiles& files, const PreferenceUse& use) {
  const ChatSource source(files.settings, files.vocabulary);
  const PreferenceReading reading{.capacity = files.seq_length,
                                  .keep_start = files.settings.chat_truncation == "keep_start",
                                  .use = use};
  return open_sets<PreferenceDataset>(
      files, padding_of(files.vocabulary),
      [&](const std::vector<std::string>& paths, const std::string& label) {
        auto store = std::make_shared<const PreferenceStore>(
            read_preferences(paths, source.tokenizer(), reading, files.pool, label));
        report_preferences(*store, paths[0], files);
        return store;
      });
}

std::vector<std::string> example_paths(const settings::DataSettings& settings) {
  if (!settings.data_path.empty()) return settings.data_path;
  std::vector<std::string> all;
  for (const auto* paths :
       {&settings.train_data_path, &settings.valid_data_path, &settings.test_data_path})
    all.insert(all.end(), paths->begin(), paths->end());
  return all;
}

namespace {

// Shows runs of tokens with and without loss.
std::string shown_tokens(const ChatTokens& tokens, const tokenizers::Tokenizer& tokenizer,
                         bool colour) {
  constexpr std::string_view kGreen = "\033[32m", kGrey = "\033[90m", kPlain = "\033[0m";
  std::string text;
  for (size_t begin = 0; begin < tokens.ids.size();) {
    const bool loss = tokens.weights[begin] != 0;
    size_t end = begin;
    while (end < tokens.ids.size() && (tokens.weights[end] != 0) == loss) ++end;
    const std::string part = tokenizer.decode(std::span(tokens.ids).subspan(begin, end - begin));
    if (colour) text += fmt::format("{}{}{}", loss ? kGreen : kGrey, part, kPlain);
    else text += loss ? fmt::format("[[{}]]", part) : part;
    begin = end;
  }
  return text + "\n";
}

// The texts of a record, each with its heading.
using ShownTexts = std::vector<std::pair<std::string, ChatTokens>>;

ShownTexts shown_words(const Json& record, const std::string& place,
                       const tokenizers::Tokenizer& tokenizer, const WordLabelReading& reading) {
  const LabelledWords words = labelled_words_of(record, place);
  LabelledWords numbered = words;
  std::vector<std::string> names;
  for (size_t w = 0; w < words.labels.size(); ++w) {
    if (words.labels[w].is_null()) continue;
    numbered.labels[w] = Json(std::ssize(names));
    const Json& label = words.labels[w];
    names.push_back(label.is_string() ? label.as_string() : label.dump());
  }
  const WordLabelTokens tokens = word_label_tokens(numbered, tokenizer, reading, names, place);
  std::vector<float> weights;
  for (const int32_t label : tokens.labels) weights.push_back(label >= 0 ? 1 : 0);
  const std::string cut =
      tokens.cut
          ? fmt::format(", cut to {} tokens (--seq-length), which leaves out {} of its words",
                        reading.capacity, tokens.without)
          : "";
  return {{fmt::format("{}, labels {}{}", place, fmt::join(names, " "), cut),
           ChatTokens{.ids = tokens.ids, .weights = std::move(weights)}}};
}

ShownTexts shown_windows(const Json& record, const std::string& place,
                         const tokenizers::Tokenizer& tokenizer, const AnswerReading& reading) {
  const std::vector<AnswerWindow> windows =
      answer_windows(question_of(record, place), tokenizer, reading);
  ShownTexts texts;
  for (size_t i = 0; i < windows.size(); ++i) {
    ChatTokens tokens{.ids = windows[i].ids, .weights = {}};
    tokens.weights.resize(tokens.ids.size());
    const auto [first, last] = windows[i].answer;
    std::fill(tokens.weights.begin() + first, tokens.weights.begin() + last + 1, 1.0f);
    texts.emplace_back(fmt::format("{}, window {} of {}", place, i + 1, windows.size()),
                       std::move(tokens));
  }
  return texts;
}

ShownTexts shown_pair(const Json& record, const std::string& place,
                      const tokenizers::Tokenizer& tokenizer, const TextPairReading& reading) {
  const TextPairTokens pair =
      text_pair_tokens(text_pair_of(record, place, reading), tokenizer, reading, place);
  ChatTokens input{.ids = pair.input, .weights = std::vector<float>(pair.input.size(), 0)};
  ChatTokens target{.ids = pair.target, .weights = std::vector<float>(pair.target.size(), 1)};
  return {{place + ", the encoder's text" + (pair.cut ? ", cut" : ""), std::move(input)},
          {place + ", target", std::move(target)}};
}

// reading: of texts with scores.
ShownTexts texts_of(const std::string& task, const Json& record, const std::string& place,
                    const ChatTokenizer& tokenizer, const ScoredReading& reading) {
  const auto scored = [&](std::vector<int32_t> ids) {
    ChatTokens tokens{.ids = std::move(ids), .weights = {}};
    tokens.weights.resize(tokens.ids.size());
    if (const int64_t at = scored_token(tokens.ids, reading.padding, reading.scored); at >= 0)
      tokens.weights[static_cast<size_t>(at)] = 1;
    return tokens;
  };
  if (task == "reward") {
    const TextPair pair = pair_of(record, place);
    return {{place + ", chosen", scored(tokenizer.text_tokens(pair.chosen, true))},
            {place + ", rejected", scored(tokenizer.text_tokens(pair.rejected, true))}};
  }
  if (task == "dpo") {
    const Preference preference = preference_of(record, place);
    ShownTexts texts;
    for (const ChatExample& completion : preference.completions)
      texts.emplace_back(
          fmt::format("{}, {}", place,
                      !preference.is_pair() ? (preference.desirable ? "desirable" : "undesirable")
                                            : (texts.empty() ? "chosen" : "rejected")),
          tokenizer.tokens(completion));
    return texts;
  }
  if (task == "classify") {
    const ScoredText text = labelled_of(record, place);
    LabelledTokens tokens = labelled_tokens(text, tokenizer, reading, place);
    return {{fmt::format("{}, label {}", place, text.label.dump()), scored(std::move(tokens.ids))}};
  }
  return {{place, tokenizer.tokens(example_of(record, place))}};
}

}  // namespace

std::string shown_examples(const settings::DataSettings& settings, const Vocabulary& vocabulary,
                           int64_t count, int64_t seq_length, bool colour,
                           const models::ModelFacts& model, int64_t decoder_length) {
  const ChatSource source(settings, vocabulary);
  const tokenizers::Tokenizer& tokenizer = *vocabulary.tokenizer;
  std::optional<TextPairReading> pairs;
  if (settings.task == "seq2seq")
    pairs = text_pair_reading(settings, vocabulary, seq_length, decoder_length, model.start_token);
  const auto texts = [&](const Json& record, const std::string& place) {
    if (settings.task == "token-classification")
      return shown_words(record, place, tokenizer,
                         word_label_reading(settings, tokenizer, seq_length));
    if (settings.task == "question-answering")
      return shown_windows(record, place, tokenizer,
                           answer_reading(model, tokenizer, seq_length, settings.doc_stride));
    if (settings.task == "seq2seq") return shown_pair(record, place, tokenizer, *pairs);
    return texts_of(settings.task, record, place, source.tokenizer(),
                    {.capacity = seq_length,
                     .keep_start = settings.chat_truncation == "keep_start",
                     .padding = static_cast<int32_t>(vocabulary.pad.value_or(vocabulary.eod)),
                     .scored = model.scored,
                     .token_types = model.token_types});
  };
  std::string text;
  read_records(example_paths(settings), [&](const Json& record, const std::string& place) {
    for (auto& [heading, tokens] : texts(record, place)) {
      const auto whole = std::ssize(tokens.ids);
      if (settings.task == "sft") {
        truncate(tokens, seq_length, settings.chat_truncation == "keep_start");
        text += fmt::format("--- {}: {} tokens{}, {} with loss\n", heading, whole,
                            whole > seq_length ? fmt::format(", {} kept", seq_length) : "",
                            tokens.counted());
      } else {
        text += fmt::format("--- {}: {} tokens\n", heading, whole);
      }
      text += shown_tokens(tokens, *vocabulary.tokenizer, colour);
    }
    return --count > 0;
  });
  return text;
}

}  // namespace megatron::corpus
