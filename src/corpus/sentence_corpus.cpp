#include "corpus/sentence_corpus.h"

#include "base/error.h"
#include "corpus/data_sources.h"

namespace megatron::corpus {

Corpus open_sentences(const ExampleFiles& files, const SentenceTask& task) {
  const DataSources sources = find_sources(files.settings);
  MG_CHECK(sources.mock || files.vocabulary.tokenizer != nullptr,
           "--task {} needs the tokenizer of its data: give --tokenizer-model, or --vocab-file",
           task.name);
  const bool shared = sources.blend.all.has_value();
  const std::optional<std::string> shares =
      shared ? std::optional(split_of(files.settings)) : std::nullopt;
  const auto samples = files.samples(0);
  Corpus corpus;
  for (size_t i = 0; i < corpus.sets.size(); ++i) {
    const auto split = static_cast<data::Split>(i);
    if (!files.wanted[i]) continue;
    if (sources.mock) {
      corpus.sets[i] = task.mock(split, samples[i].value_or(1));
      continue;
    }
    const auto& list = shared ? sources.blend.all : sources.blend.per_split[i];
    if (!list || (shares && !data::parse_split(*shares)[i])) continue;
    MG_CHECK(samples[i].has_value(),
             "--task {} reads a number of samples of the {} set, and --full-validation all of "
             "them once; leave it out",
             task.name, data::name(split));
    const int64_t ordered = files.ordered[i] > 0 ? files.ordered[i] : *samples[i];
    corpus.sets[i] = task.open({*list, split, shares, ordered, *samples[i]});
  }
  const auto& valid = corpus.sets[static_cast<size_t>(data::Split::valid)];
  if (valid != nullptr) corpus.validation.push_back({"", valid});
  return corpus;
}

}  // namespace megatron::corpus
