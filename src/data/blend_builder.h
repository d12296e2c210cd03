// Builds the train, valid and test sets of a run: one GPT data set each, or a blend of several.
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
  // Either one list, whose data sets are each divided by the configuration's split, or one list per
  // split, with data sets used whole.
  std::optional<BlendList> all;
  std::array<std::optional<BlendList>, 3> per_split;
  // Extra samples, relative to its share, that are built for a weighted part.
  double surplus = 0.005;
  bool several_valid = false;  // keeps the parts of the valid list separate
  // Number of samples that each split serves if more than requested: the first ones are in the same
  // order as without them (extended_dataset.h).
  std::array<int64_t, 3> extended{};
  int64_t threads = 1;  // data sets that are opened and indexed concurrently
};

// Opens the token files of a prefix; called concurrently from several threads, once per prefix.
using OpenSource = std::function<std::shared_ptr<const TokenSource>(const std::string& prefix)>;

struct BlendSets {
  // In the order of Split. Empty: the split has no data, or 0 samples are requested from it. Only
  // valid, with several_valid, has more than one.
  std::array<std::vector<BlendedDataset::Component>, 3> sets;
};

// samples: number requested from each split; nullopt: everything once, 0: nothing. With S samples
// requested:
//   one prefix     without weight (in a list per split, also with one): that GPT data set, of which
//                  S samples are requested
//   weights w      share_of_blend(S, w, surplus) samples are requested from each part, mixed by
//                  weight; the blend has the sum of share_of_blend(S, w, 0) samples. S must be
//                  given
//   no weights     parts of one epoch, mixed by size; min(S, their sum) samples, each at most once
// The blend's index is a pure function of weights and size, computed in less than a microsecond per
// sample (2000 different weights) and not stored. Throws Error naming data set, split and
// suggestion.
BlendSets build_blends(const BlendRequest& request, const GptDatasetConfig& config,
                       const std::array<std::optional<int64_t>, 3>& samples,
                       const OpenSource& open);

// True if `set`, which build_blends made for the split, serves its samples in the same order as if
// `samples` had been requested, as far as both go: each part then shuffles the same epochs
// together, and a blend draws from its parts in its own order.
bool keeps_order(const BlendRequest& request, Split split, const Dataset& set, int64_t samples);

// The checks of build_blends that need no open file. shares: those of the split, for a single list.
void check_blends(const BlendRequest& request, const std::optional<std::string>& shares,
                  const std::array<std::optional<int64_t>, 3>& samples);

}  // namespace megatron::data
