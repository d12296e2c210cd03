// The train, valid and test sets of a run: one GPT data set each, or a blend of several.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/blend_list.h"
#include "data/blended_dataset.h"
#include "data/gpt_dataset.h"

namespace megatron::data {

struct BlendRequest {
  // Either one list, whose data sets are each divided by the configuration's split, or a list a
  // split, each taken as a whole.
  std::optional<BlendList> all;
  std::array<std::optional<BlendList>, 3> per_split;
  double surplus = 0.005;      // samples built of a weighted part beyond its share
  bool several_valid = false;  // the parts of the valid list stay apart
  // Samples that each split serves when they are more than are asked of it: the first come in the
  // order that it has without them (extended_dataset.h).
  std::array<int64_t, 3> extended{};
  int64_t threads = 1;  // data sets that are opened and indexed at a time
};

// Opens the token files of a prefix; called by many threads at once, once a prefix.
using OpenSource = std::function<std::shared_ptr<const TokenSource>(const std::string& prefix)>;

struct BlendSets {
  // In the order of Split. Empty: the split has no data, or 0 samples are asked of it. Only valid,
  // with several_valid, has more than one.
  std::array<std::vector<BlendedDataset::Component>, 3> sets;
};

// samples: of each split; none means everything once, 0 nothing. With S samples asked of a split:
//   one prefix without weight (of a list a split: also with)  that GPT data set, asked for S
//   weights w      parts asked for share_of_blend(S, w, surplus), mixed by weight; the blend has
//                  the sum of share_of_blend(S, w, 0) samples. S must be given
//   no weights     parts of one epoch, mixed by size; min(S, their sum) samples, each at most once
// The blend's index is a pure function of weights and size, made in less than a microsecond a
// sample (2000 different weights) and not stored. Throws Error naming data set, split and suggestion.
BlendSets build_blends(const BlendRequest& request, const GptDatasetConfig& config,
                       const std::array<std::optional<int64_t>, 3>& samples,
                       const OpenSource& open);

// Whether `set`, which build_blends made of the split, serves its samples in the order in which it
// would with `samples` asked of the split, as far as both go: each part then shuffles the same
// epochs together, and a blend takes from its parts in an order of its own.
bool keeps_order(const BlendRequest& request, Split split, const Dataset& set, int64_t samples);

// What build_blends refuses before it opens anything. shares: the split's, of one list.
void check_blends(const BlendRequest& request, const std::optional<std::string>& shares,
                  const std::array<std::optional<int64_t>, 3>& samples);

}  // namespace megatron::data
