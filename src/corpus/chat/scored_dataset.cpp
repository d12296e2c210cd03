#include "corpus/chat/scored_dataset.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/error.h"
#include "corpus/chat/record_blocks.h"

namespace megatron::corpus {
namespace {

using Ids = std::vector<int32_t>;

struct ReadExample {
  std::vector<Ids> texts;
  Ids types = {};    // token types, if two texts are read as one
  bool cut = false;  // the texts have been truncated
  int32_t label = 0;
  std::vector<int32_t> classes = {};  // of a text that may have several
  double margin = 0;
  std::string source, place;
};

// Cuts texts, finds their scores' places, and appends them.
class Storing {
 public:
  Storing(const ScoredReading& reading, ScoredStore& store) : reading_(reading), store_(store) {}

  void append(ReadExample& example) {
    const auto are_equal = [&] {
      return example.texts.size() == 2 && example.texts[0] == example.texts[1];
    };
    MG_CHECK(!are_equal(), "{}: 'chosen' and 'rejected' have the same tokens", example.place);
    cut(example.texts);
    if (are_equal()) {
      ++store_.dropped;
      return;
    }
    store_.cut += example.cut ? 1 : 0;
    for (const Ids& text : example.texts) {
      const int64_t scored = scored_token(text, reading_.padding, reading_.scored);
      MG_CHECK(scored >= 0, "{}: a text has no tokens{}", example.place,
               text.empty() ? "" : " but the padding token, which is not scored");
      store_.scored.push_back(std::ssize(store_.ids) + scored);
      store_.ids.insert(store_.ids.end(), text.begin(), text.end());
      if (!example.types.empty() || !store_.types.empty()) {
        store_.types.resize(store_.ids.size());
        std::ranges::copy(example.types, store_.types.end() - std::ssize(example.types));
      }
      store_.ends.push_back(std::ssize(store_.ids));
    }
    store_.sources.add(example.source);
    if (store_.texts_per_example == 2) store_.margins.push_back(example.margin);
    else if (reading_.multi_label) store_.label_sets.push_back(std::move(example.classes));
    else store_.labels.push_back(example.label);
  }

 private:
  void cut(std::vector<Ids>& texts) {
    std::vector<size_t> longest;
    for (const Ids& text : texts) longest.push_back(text.size());
    longest = lengths_within(static_cast<size_t>(reading_.capacity), std::move(longest));
    for (size_t i = 0; i < texts.size(); ++i) {
      Ids& text = texts[i];
      if (text.size() <= longest[i]) continue;
      ++store_.cut;
      tokenizers::cut_text(text, static_cast<int64_t>(longest[i]), reading_.keep_start,
                           reading_.ends);
    }
  }

  const ScoredReading& reading_;
  ScoredStore& store_;
};

ScoredStore read(const std::vector<std::string>& paths, const ScoredReading& reading,
                 int64_t texts_per_example, ThreadPool& pool, const std::string& label,
                 const std::function<ReadExample(const Json&, std::string)>& tokenize) {
  MG_CHECK(reading.capacity >= texts_per_example,
           "--seq-length is {}; a pair of texts needs at least 2 tokens", reading.capacity);
  ScoredStore store{.texts_per_example = texts_per_example};
  Storing storing(reading, store);
  for_each_tokenized<ReadExample>(paths, pool, label, tokenize,
                                  [&](ReadExample& example) { storing.append(example); });
  MG_CHECK(store.dropped == 0 || store.size() > 0,
           "none of the pairs of {} has two different texts when it is cut to {} tokens "
           "(--seq-length): raise it, or use --chat-truncation keep_end",
           paths[0], reading.capacity);
  MG_CHECK(store.size() > 0, "{} has no {}", paths[0],
           texts_per_example == 2 ? "pairs of texts" : "texts");
  return store;
}

}  // namespace

ScoredReading scored_reading(const models::ModelFacts& model,
                             const tokenizers::Tokenizer& tokenizer) {
  return {.padding = static_cast<int32_t>(model.score_padding),
          .scored = model.scored,
          .multi_label = model.multi_label,
          .token_types = model.token_types,
          .ends = model.two_sided ? tokenizers::text_ends(tokenizer) : tokenizers::TextEnds{}};
}

int64_t scored_token(std::span<const int32_t> ids, int64_t padding, models::ScoredTokens scored) {
  if (scored != models::ScoredTokens::last_token) return ids.empty() ? -1 : 0;
  int64_t last = std::ssize(ids) - 1;
  while (last >= 0 && ids[static_cast<size_t>(last)] == padding) --last;
  return last;
}

ScoredStore read_pairs(const std::vector<std::string>& paths, const ChatTokenizer& tokenizer,
                       const ScoredReading& reading, ThreadPool& pool, const std::string& label) {
  return read(paths, reading, 2, pool, label, [&](const Json& record, std::string place) {
    const TextPair pair = pair_of(record, place);
    return ReadExample{.texts = {tokenizer.text_tokens(pair.chosen, true),
                                 tokenizer.text_tokens(pair.rejected, true)},
                       .margin = pair.margin,
                       .source = source_of(record, place),
                       .place = std::move(place)};
  });
}

ScoredStore read_labelled(const std::vector<std::string>& paths, const ChatTokenizer& tokenizer,
                          const ScoredReading& reading, const std::vector<std::string>& names,
                          ThreadPool& pool, const std::string& label) {
  return read(paths, reading, 1, pool, label, [&](const Json& record, std::string place) {
    const ScoredText scored = labelled_of(record, place);
    LabelledTokens tokens = labelled_tokens(scored, tokenizer, reading, place);
    ReadExample example{.texts = {std::move(tokens.ids)},
                        .types = std::move(tokens.types),
                        .cut = tokens.cut,
                        .source = source_of(record, place)};
    if (reading.multi_label) example.classes = classes_of(scored.label, names, place);
    else example.label = class_of(scored.label, names, place);
    example.place = std::move(place);
    return example;
  });
}

LabelledTokens labelled_tokens(const ScoredText& scored, const ChatTokenizer& tokenizer,
                               const ScoredReading& reading, const std::string& place) {
  if (!scored.second) return {.ids = tokenizer.text_tokens(scored.text, false), .types = {}};
  const tokenizers::Tokenizer& of_texts = tokenizer.tokenizer();
  Ids first = of_texts.encode(scored.text.texts->second), second = of_texts.encode(*scored.second);
  const auto around = std::ssize(of_texts.codec().join({}, {}).ids);
  const size_t all = first.size() + second.size();
  MG_CHECK(reading.capacity > around,
           "{}: the tokenizer adds {} tokens to two texts, which leaves them no room in {} tokens "
           "(--seq-length)",
           place, around, reading.capacity);
  tokenizers::cut_pair(first, second, reading.capacity - around, reading.keep_start);
  tokenizers::JoinedTexts joined = of_texts.codec().join(first, second);
  return {.ids = joined.ids,
          .types = joined.types_of_model(reading.token_types),
          .cut = first.size() + second.size() < all};
}

int32_t class_of(const Json& label, const std::vector<std::string>& names,
                 const std::string& place) {
  MG_CHECK(!label.is_array(),
           "{}: the label is a list, {}, but the model gives each text one class: its config.json "
           "does not have problem_type multi_label_classification",
           place, label.dump());
  if (label.is_integer()) {
    MG_CHECK(label.as_integer() >= 0 && label.as_integer() < std::ssize(names),
             "{}: label {} is outside [0, {}), the model's classes", place, label.as_integer(),
             names.size());
    return static_cast<int32_t>(label.as_integer());
  }
  const auto found = std::ranges::find(names, label.as_string());
  MG_CHECK(
      found != names.end(), "{}: label '{}' is none of the model's classes: {}", place,
      label.as_string(),
      fmt::join(names.begin(), names.begin() + std::min<int64_t>(std::ssize(names), 20), ", "));
  return static_cast<int32_t>(found - names.begin());
}

std::vector<int32_t> classes_of(const Json& label, const std::vector<std::string>& names,
                                const std::string& place) {
  MG_CHECK(label.is_array(),
           "{}: the label is {}, but the model gives each text any number of its classes "
           "(problem_type multi_label_classification): write a list, [] for none of them",
           place, label.dump());
  std::set<int32_t> classes;
  for (const Json& one : label.as_array())
    MG_CHECK(classes.insert(class_of(one, names, place)).second,
             "{}: the list of labels {} has {} twice", place, label.dump(), one.dump());
  return {classes.begin(), classes.end()};
}

bool has_label_lists(const std::vector<std::string>& paths) {
  std::optional<bool> lists;
  std::string first;
  read_records(paths, [&](const Json& record, const std::string& place) {
    const bool list = labelled_of(record, place).label.is_array();
    if (!lists) lists = list, first = place;
    MG_CHECK(list == *lists,
             "{} has {}, and {} {}: write a list in every record if a text may have several labels",
             first, *lists ? "a list of labels" : "one label", place, list ? "a list" : "one");
    return true;
  });
  return lists.value_or(false);
}

std::vector<std::string> label_names_in(const std::vector<std::string>& paths) {
  return label_names_in(paths, [](const Json& record, const std::string& place) {
    Json label = labelled_of(record, place).label;
    return label.is_array() ? std::move(label.as_array()) : std::vector<Json>{std::move(label)};
  });
}

std::vector<std::string> label_names_in(
    const std::vector<std::string>& paths,
    const std::function<std::vector<Json>(const Json& record, const std::string& place)>&
        labels_of) {
  std::set<std::string> names;
  std::set<int64_t> indices;
  read_records(paths, [&](const Json& record, const std::string& place) {
    for (const Json& label : labels_of(record, place)) {
      if (label.is_null()) continue;
      if (label.is_integer()) indices.insert(label.as_integer());
      else names.insert(label.as_string());
      MG_CHECK(names.empty() || indices.empty(),
               "{}: label {} is {}, but others are not: use names or indices for all", place,
               label.dump(), label.is_integer() ? "an index" : "a name");
    }
    return true;
  });
  std::vector<std::string> all(names.begin(), names.end());
  const int64_t largest = indices.empty() ? -1 : *indices.rbegin();
  MG_CHECK(largest < 2 * std::ssize(indices),
           "{} has the label {}, but only {} different ones: classes are numbered 0, 1, ...; give "
           "their names with --labels if most have no text",
           paths[0], largest, indices.size());
  for (int64_t i = 0; i <= largest; ++i) all.push_back(fmt::format("LABEL_{}", i));
  MG_CHECK(all.size() > 1, "{} has labels of {} class{}, but a classifier needs at least two",
           paths[0], all.size(), all.size() == 1 ? "" : "es");
  return all;
}

void ScoredDataset::fill(const PackedRow& row, data::Sample& sample) const {
  const bool pairs = store_->texts_per_example == 2;
  if (pairs) sample.targets.assign(sample.tokens.size(), 0);
  if (!store_->label_sets.empty()) sample.label_sets.assign(sample.tokens.size(), {});
  if (!store_->types.empty()) sample.token_types.assign(sample.tokens.size(), 0);
  size_t at = 0;
  for (const PackedPart& part : row) {
    const int64_t example = example_of(part), first = example * store_->texts_per_example;
    for (int64_t text = first; text < first + store_->texts_per_example; ++text) {
      const auto begin = static_cast<size_t>(store_->begin(text)),
                 end = static_cast<size_t>(store_->ends[static_cast<size_t>(text)]),
                 scored =
                     at + static_cast<size_t>(store_->scored[static_cast<size_t>(text)]) - begin;
      sample.loss_mask[scored] = 1;
      const auto index = static_cast<size_t>(example);
      if (!store_->label_sets.empty()) sample.label_sets[scored] = store_->label_sets[index];
      else if (!pairs) sample.labels[scored] = store_->labels[index];
      else if (text == first) sample.targets[scored] = store_->margins[index];
      if (!store_->types.empty())
        std::ranges::copy(std::span(store_->types).subspan(begin, end - begin),
                          sample.token_types.begin() + static_cast<std::ptrdiff_t>(at));
      place(std::span(store_->ids).subspan(begin, end - begin), store_->sources.of(example), at,
            sample);
    }
  }
}

}  // namespace megatron::corpus
