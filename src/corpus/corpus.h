// The samples that a run trains on: its data sets, and their samples as micro-batches.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "corpus/batch.h"
#include "corpus/vocabulary.h"
#include "data/dataset.h"
#include "data/indexed_dataset.h"
#include "data/split.h"
#include "settings/settings.h"

namespace megatron::corpus {

struct NamedSet {
  std::string name;
  std::shared_ptr<const data::Dataset> set;
};

struct Corpus {
  std::array<std::shared_ptr<const data::Dataset>, 3> sets;  // train, valid, test; null: no data
  // Names of the sources of the training set's examples, by their number in samples, if losses are
  // logged by source.
  std::vector<std::string> sources;
  std::vector<NamedSet> validation;  // the valid set; or several, of which the first is sets[valid]
  // Throws Error naming the flags if there is none.
  const data::Dataset& set(data::Split split) const;
};

bool names_data(const settings::DataSettings& settings);    // whether a flag names a data set
void require_data(const settings::DataSettings& settings);  // throws Error if none does

// Checks these flags without opening a file: more than one source of data, invalid weights or
// shares, samples that cannot be counted. Flags that name no data are valid. names: of validation
// sets. Throws Error like open_corpus.
void check_data(const settings::DataSettings& settings,
                const std::array<std::optional<int64_t>, 3>& samples, bool several_valid,
                const std::vector<std::string>& names);
void check_names(const std::vector<std::string>& names, size_t sets);
void check_masks(const settings::DataSettings& settings, const Vocabulary& vocabulary);

// Opens the data that the settings name: mock data, one prefix or a blend, for all splits or each.
// samples: number requested from each set; none: one pass; 0: the set is not opened. extended: as
// in data::BlendRequest. several_valid: the data sets of a separate validation list are not
// blended. Throws Error for more than one source of data, token ids beyond the vocabulary, and more
// files than this machine can map.
Corpus open_corpus(const settings::DataSettings& settings, const Vocabulary& vocabulary,
                   int64_t seq_length, int64_t seed,
                   const std::array<std::optional<int64_t>, 3>& samples, bool several_valid = false,
                   const std::array<int64_t, 3>& extended = {});

// True if the training samples come in the same order as if `samples` had been requested.
bool keeps_train_order(const settings::DataSettings& settings, const Corpus& corpus,
                       int64_t samples);

// Token files, and the range of their sequences that belongs to a split.
struct SplitTokens {
  std::shared_ptr<const data::IndexedDataset> tokens;
  int64_t begin = 0, end = 0;
};

// Token files of a split's samples, in the order in which the data sets are named, independent of
// their weights. Throws Error like open_corpus, and for mock data and damaged indices, which are
// read completely.
std::vector<SplitTokens> open_split(const settings::DataSettings& settings,
                                    const Vocabulary& vocabulary, data::Split split,
                                    ThreadPool& pool);

// Reads samples of a set as micro-batches of sequences of one length.
class BatchReader {
 public:
  // layout: of every batch, except for its number of sequences; an encoder's texts have the length
  // of the set's. two_sided: batches with documents get segment_ends, which a model with two-sided
  // attention needs.
  BatchReader(const data::Dataset& set, parallel::TokenLayout layout, bool two_sided = false)
      : set_(set), layout_(std::move(layout)), two_sided_(two_sided) {}
  // Fills `batch` with samples `indices`; an index is also the number of its sample in the run.
  // Allocates no memory if the batch held as many before.
  void read(std::span<const int64_t> indices, HostBatch& batch);

 private:
  const data::Dataset& set_;
  parallel::TokenLayout layout_;
  bool two_sided_;
  data::Sample sample_;
};

}  // namespace megatron::corpus
