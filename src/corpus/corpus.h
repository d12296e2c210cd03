// The samples a run trains on: its data sets, and their samples as micro-batches.
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
  std::vector<NamedSet> validation;  // the valid set; or several, sets[valid] being the first
  // Throws Error naming the flags when there is none.
  const data::Dataset& set(data::Split split) const;
};

bool names_data(const settings::DataSettings& settings);    // whether a flag does
void require_data(const settings::DataSettings& settings);  // throws Error where none does

// What can be said against these flags without opening a file: more than one source of data,
// weights or shares that are none, samples that cannot be counted. Where no flag names data,
// nothing is wrong. names: of validation sets. Throws Error as open_corpus does.
void check_data(const settings::DataSettings& settings,
                const std::array<std::optional<int64_t>, 3>& samples, bool several_valid,
                const std::vector<std::string>& names);
void check_names(const std::vector<std::string>& names, size_t sets);
void check_masks(const settings::DataSettings& settings, const Vocabulary& vocabulary);

// The data that the settings name: mock data, one prefix or a blend, for all splits or each.
// samples: how many each set is asked for; none: one pass; 0: the set is not opened. extended: as in
// data::BlendRequest. several_valid: the data sets of a validation list of its own stay apart. Throws Error for more than one source
// of data, token ids beyond the vocabulary, and more files than this machine maps.
Corpus open_corpus(const settings::DataSettings& settings, const Vocabulary& vocabulary,
                   int64_t seq_length, int64_t seed,
                   const std::array<std::optional<int64_t>, 3>& samples, bool several_valid = false,
                   const std::array<int64_t, 3>& extended = {});

// Whether the training samples come in the order that they would have with `samples` asked for.
bool keeps_train_order(const settings::DataSettings& settings, const Corpus& corpus,
                       int64_t samples);

// Token files, and which of their sequences serve a split.
struct SplitTokens {
  std::shared_ptr<const data::IndexedDataset> tokens;
  int64_t begin = 0, end = 0;
};

// What the samples of a split are cut from, in the order the data sets are named, whatever their
// weights. Throws Error as open_corpus does, and for mock data and damaged indices, which are read
// whole.
std::vector<SplitTokens> open_split(const settings::DataSettings& settings,
                                    const Vocabulary& vocabulary, data::Split split,
                                    ThreadPool& pool);

// Samples of a set as micro-batches of sequences of one length.
class BatchReader {
 public:
  BatchReader(const data::Dataset& set, int64_t seq_length) : set_(set), length_(seq_length) {}
  // Fills `batch` with samples `indices`; an index is also the number of its sample in the run. A
  // batch that held as many before asks for no memory.
  void read(std::span<const int64_t> indices, HostBatch& batch);

 private:
  const data::Dataset& set_;
  int64_t length_;
  data::Sample sample_;
};

}  // namespace megatron::corpus
