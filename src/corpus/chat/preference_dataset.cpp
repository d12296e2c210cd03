#include "corpus/chat/preference_dataset.h"

#include <algorithm>

#include "base/error.h"
#include "corpus/chat/record_blocks.h"

namespace megatron::corpus {
namespace {

struct ReadPreference {
  std::vector<ChatTokens> completions;
  bool desirable = true, has_margin = false;
  std::string source, place;
};

// Keeps the first `length` tokens of a document, or the last ones.
void keep(PreferenceDocument& document, int64_t length, bool keep_start) {
  const int64_t cut = document.length() - length;
  if (cut <= 0) return;
  int64_t& first = keep_start ? document.completion_length : document.prompt_length;
  int64_t& second = keep_start ? document.prompt_length : document.completion_length;
  const int64_t of_first = std::min(cut, first), of_second = cut - of_first;
  first -= of_first;
  second -= of_second;
  if (keep_start) return;
  document.prompt_begin += of_first;
  document.completion_begin += of_second;
}

// Where a document begins whose completion stands right after its prompt.
int64_t begin_of(const PreferenceDocument& document) {
  return document.completion_begin - document.prompt_length;
}

// The first token of a document is no label.
int64_t labels_of(const PreferenceDocument& document) {
  return document.completion_length - (document.prompt_length == 0 ? 1 : 0);
}

bool same_tokens(std::span<const int32_t> a, std::span<const int32_t> b) {
  return std::ranges::equal(a, b);
}

// Cuts documents, and appends those that can be compared.
class PreferenceWriter {
 public:
  explicit PreferenceWriter(PreferenceStore& store) : reading_(store.reading), store_(store) {}

  void append(const ReadPreference& example) {
    store_.margins += example.has_margin ? 1 : 0;
    std::vector<PreferenceDocument> documents;
    for (const ChatTokens& tokens : example.completions)
      documents.push_back(document_of(tokens, example.place));
    const bool pair = documents.size() == 2;
    MG_CHECK(!pair || example.completions[0].ids != example.completions[1].ids,
             "{}: the chosen and the rejected completion have the same tokens", example.place);
    MG_CHECK(pair || reading_.use.unpaired,
             "{}: a completion with a label is no pair, which this --preference-loss compares: "
             "give 'chosen' and 'rejected', or --preference-loss kto",
             example.place);
    if (pair) {
      documents[0].role = PreferenceRole::chosen;
      documents[1].role = PreferenceRole::rejected;
    } else {
      documents[0].role = example.desirable ? PreferenceRole::chosen : PreferenceRole::rejected;
    }
    if (reading_.use.unpaired) {
      for (size_t i = 0; i < documents.size(); ++i)
        append_single(example.completions[i], documents[i], example);
    } else {
      append_pair(example, documents);
    }
  }

  // Once all are there.
  void find_mismatched() {
    if (!reading_.use.mismatched) return;
    const int64_t size = store_.size();
    store_.mismatched.resize(static_cast<size_t>(size));
    int64_t other = size - 1;  // the nearest before the first one with another prompt
    while (other > 0 && same_prompt(other, 0)) --other;
    const bool one_prompt = other == 0;
    for (int64_t i = 0; i < size; ++i) {
      if (i > 0 && !same_prompt(i - 1, i)) other = i - 1;
      store_.mismatched[static_cast<size_t>(i)] = one_prompt ? (i + size - 1) % size : other;
    }
  }

 private:
  // The tokens that carry loss are the completion.
  PreferenceDocument document_of(const ChatTokens& tokens, const std::string& place) const {
    const int64_t completion = tokens.counted(), prompt = std::ssize(tokens.ids) - completion;
    const PreferenceDocument document{
        .prompt_length = prompt, .completion_begin = prompt, .completion_length = completion};
    MG_CHECK(labels_of(document) > 0,
             "{}: a completion has {} token{}, and the first token of a text has no "
             "log-probability: give it a prompt or more text",
             place, completion, completion == 1 ? "" : "s");
    MG_CHECK(!reading_.use.mismatched || prompt > 0,
             "{}: the prompt has no tokens: --preference-loss kto compares completions with those "
             "of other prompts",
             place);
    return document;
  }

  void append_pair(const ReadPreference& example, std::vector<PreferenceDocument>& documents) {
    const std::vector<size_t> lengths =
        lengths_within(static_cast<size_t>(reading_.capacity),
                       {example.completions[0].ids.size(), example.completions[1].ids.size()});
    for (size_t i = 0; i < 2; ++i) cut(documents[i], static_cast<int64_t>(lengths[i]));
    const auto kept = [&](size_t i) {
      return std::span(example.completions[i].ids)
          .subspan(static_cast<size_t>(begin_of(documents[i])),
                   static_cast<size_t>(documents[i].length()));
    };
    if (labels_of(documents[0]) <= 0 || labels_of(documents[1]) <= 0 ||
        same_tokens(kept(0), kept(1))) {
      ++store_.dropped;
      return;
    }
    store_.sources.add(example.source);
    for (size_t i = 0; i < 2; ++i) store(example.completions[i], documents[i]);
  }

  void append_single(const ChatTokens& tokens, PreferenceDocument document,
                     const ReadPreference& example) {
    cut(document, reading_.use.mismatched ? reading_.capacity / 2 : reading_.capacity);
    if (labels_of(document) <= 0 || (reading_.use.mismatched && document.prompt_length == 0)) {
      ++store_.dropped;
      return;
    }
    store_.sources.add(example.source);
    store(tokens, document);
  }

  void cut(PreferenceDocument& document, int64_t length) {
    if (document.length() > length) ++store_.cut;
    keep(document, length, reading_.keep_start);
  }

  void store(const ChatTokens& tokens, PreferenceDocument document) {
    const auto begin = tokens.ids.begin() + begin_of(document);
    document.prompt_begin = std::ssize(store_.ids);
    document.completion_begin = document.prompt_begin + document.prompt_length;
    store_.ids.insert(store_.ids.end(), begin, begin + document.length());
    store_.documents.push_back(document);
  }

  bool same_prompt(int64_t a, int64_t b) const {
    const auto prompt = [&](int64_t i) {
      const PreferenceDocument& document = store_.documents[static_cast<size_t>(i)];
      return std::span(store_.ids)
          .subspan(static_cast<size_t>(document.prompt_begin),
                   static_cast<size_t>(document.prompt_length));
    };
    return same_tokens(prompt(a), prompt(b));
  }

  const PreferenceReading& reading_;
  PreferenceStore& store_;
};

}  // namespace

std::array<PreferenceDocument, 2> PreferenceStore::pair(int64_t example) const {
  const auto at = static_cast<size_t>(example);
  if (!reading.use.unpaired) return {documents[2 * at], documents[2 * at + 1]};
  if (mismatched.empty()) return {PreferenceDocument(), documents[at]};
  const PreferenceDocument& other = documents[static_cast<size_t>(mismatched[at])];
  PreferenceDocument first = documents[at];
  first.completion_begin = other.completion_begin;
  first.completion_length = other.completion_length;
  first.role = PreferenceRole::mismatched;
  keep(first, reading.capacity / 2, reading.keep_start);
  return {first, documents[at]};
}

PreferenceStore read_preferences(const std::vector<std::string>& paths,
                                 const ChatTokenizer& tokenizer, const PreferenceReading& reading,
                                 ThreadPool& pool, const std::string& label) {
  MG_CHECK(reading.capacity >= 4,
           "--seq-length is {}; a pair of completions needs at least 4 tokens", reading.capacity);
  PreferenceStore store{.reading = reading};
  PreferenceWriter writer(store);
  for_each_tokenized<ReadPreference>(
      paths, pool, label,
      [&](const Json& record, std::string place) {
        const Preference preference = preference_of(record, place);
        ReadPreference example{.completions = {},
                               .desirable = preference.desirable,
                               .has_margin = preference.has_margin,
                               .source = source_of(record, place),
                               .place = std::move(place)};
        for (const ChatExample& completion : preference.completions)
          example.completions.push_back(tokenizer.tokens(completion));
        return example;
      },
      [&](const ReadPreference& example) { writer.append(example); });
  MG_CHECK(store.size() > 0 || store.dropped > 0, "{} has no preferences", paths[0]);
  MG_CHECK(store.size() > 0,
           "none of the preferences of {} has anything to compare when it is cut to {} tokens "
           "(--seq-length): raise it, or use another --chat-truncation",
           paths[0], reading.capacity);
  MG_CHECK(!reading.use.mismatched || store.size() > 1,
           "{} has one completion, but --preference-loss kto compares each with that of another "
           "prompt: give more",
           paths[0]);
  writer.find_mismatched();
  return store;
}

void PreferenceDataset::fill(const PackedRow& row, data::Sample& sample) const {
  sample.targets.assign(sample.tokens.size(), 0);
  size_t at = 0;
  for (const PackedPart& part : row)
    for (const PreferenceDocument& document : store_->pair(example_of(part)))
      add(document, store_->sources.of(example_of(part)), at, sample);
}

void PreferenceDataset::add(const PreferenceDocument& document, size_t source, size_t& at,
                            data::Sample& sample) const {
  const auto prompt = static_cast<size_t>(document.prompt_length),
             length = static_cast<size_t>(document.length()), begin = at;
  std::vector<int32_t> ids;
  for (const auto& [from, count] :
       {std::pair{document.prompt_begin, document.prompt_length},
        std::pair{document.completion_begin, document.completion_length}})
    ids.insert(ids.end(), store_->ids.begin() + from, store_->ids.begin() + from + count);
  place(ids, source, at, sample);
  const bool reads_prompt = store_->reading.use.prompts && document.role == PreferenceRole::chosen;
  for (size_t i = 1; i < length; ++i) {
    const PreferenceRole role = i >= prompt    ? document.role
                                : reads_prompt ? PreferenceRole::chosen_prompt
                                               : PreferenceRole::none;
    sample.labels[begin + i - 1] = ids[i];
    sample.targets[begin + i - 1] = static_cast<double>(role);
    sample.loss_mask[begin + i - 1] = role == PreferenceRole::none ? 0 : 1;
  }
}

}  // namespace megatron::corpus
