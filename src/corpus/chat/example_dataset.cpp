#include "corpus/chat/example_dataset.h"

#include <algorithm>
#include <numeric>

namespace megatron::corpus {

void ExampleDataset::read_row(int64_t row, data::Sample& sample) const {
  const auto length = static_cast<size_t>(length_);
  sample.tokens.assign(length, padding_);
  sample.labels.assign(length, 0);
  sample.targets.clear();
  sample.label_sets.clear();
  sample.token_types.clear();
  sample.position_ids.assign(length, 0);
  sample.loss_mask.assign(length, 0);
  sample.segment_begin.resize(length);
  std::iota(sample.segment_begin.begin(), sample.segment_begin.end(), 0);
  sample.sources.assign(length, -1);
  fill(rows_.row(row), sample);
}

void ExampleDataset::read_filler(data::Sample& sample) const {
  read(0, sample);
  std::ranges::fill(sample.loss_mask, 0.0f);
}

void ExampleDataset::place(std::span<const int32_t> ids, size_t source, size_t& at,
                           data::Sample& sample) {
  const size_t begin = at;
  for (const int32_t id : ids) {
    sample.tokens[at] = id;
    sample.sources[at] = static_cast<int32_t>(source);
    sample.position_ids[at] = static_cast<int64_t>(at - begin);
    sample.segment_begin[at++] = static_cast<int32_t>(begin);
  }
}

}  // namespace megatron::corpus
