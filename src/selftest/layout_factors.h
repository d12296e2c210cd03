// The layouts of the layout matrix, as factors of a covering array.
#pragma once

#include "selftest/covering.h"
#include "settings/offload_settings.h"
#include "settings/parallel_settings.h"
#include "settings/recompute_settings.h"

namespace megatron::selftest {

// Limits of the layouts in the matrix.
struct LayoutLimits {
  int ranks = 16;                           // maximum
  int64_t num_layers = 4, heads = 8;        // of the model
  int64_t seq_length = 32, sequences = 24;  // per step, over all data-parallel ranks
};

// The settings of a run that correspond to a row.
struct LayoutSettings {
  settings::ParallelSettings parallel;
  settings::RecomputeSettings recompute;
  settings::OffloadSettings offload;
  int64_t data_parallel = 1, micro_batch = 1;
  size_t model = 0;     // index in the matrix: llama, gpt2, experts, latent, bert, hybrid, t5
  bool packed = false;  // true if sequences have several documents

  int64_t ranks() const { return parallel.model_ranks() * data_parallel; }
};

// Overlap of experts' calls and all-to-all go with "overlap", as far as other values allow.
// tp, sequence, cp, exchange, pp, schedule, dp, sharding, instances, recompute, overlap, offload,
// model, ep, etp, micro-batch and packed, each with its simplest value first.
const std::vector<Factor>& layout_factors();

// Open values become the first value of their factor. Layers that cannot be divided evenly among
// the pipeline's virtual stages are placed by --pipeline-model-parallel-layout, as evenly as
// possible.
LayoutSettings layout_settings(const Row& row, const LayoutLimits& limits);

// Returns the objection of the settings' own checks to a row: the text of the error, or that a flag
// would have no effect; also refuses too many ranks, and sequences of a step that cannot be divided
// into micro-batches.
Refusal layout_refusal(const LayoutLimits& limits);

}  // namespace megatron::selftest
