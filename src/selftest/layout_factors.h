// The layouts that the layout matrix is made of, as factors of a covering array.
#pragma once

#include "selftest/covering.h"
#include "settings/offload_settings.h"
#include "settings/parallel_settings.h"
#include "settings/recompute_settings.h"

namespace megatron::selftest {

// What the matrix is made for.
struct LayoutLimits {
  int ranks = 16;                           // at most
  int64_t num_layers = 4;                   // of the model
  int64_t seq_length = 32, sequences = 48;  // of a step, over all data-parallel ranks
};

// A row as the settings of a run.
struct LayoutSettings {
  settings::ParallelSettings parallel;
  settings::RecomputeSettings recompute;
  settings::OffloadSettings offload;
  int64_t data_parallel = 1, micro_batch = 1;
  size_t model = 0;  // of the matrix: llama, gpt2, experts

  int64_t ranks() const { return parallel.model_ranks() * data_parallel; }
};

// Overlap of experts' calls and all-to-all go with "overlap", as far as other values allow.
// tp, sequence, pp, schedule, dp, sharding, instances, recompute, overlap, offload, model, ep, etp
// and micro-batch, each with its simplest value first.
const std::vector<Factor>& layout_factors();

// Open values become their factor's first. Layers that the virtual stages of the pipeline cannot share
// evenly are placed by --pipeline-model-parallel-layout, as evenly as can be.
LayoutSettings layout_settings(const Row& row, const LayoutLimits& limits);

// What the settings' own checks say against a row: text of the error, or that a flag would have no
// effect; besides, that there are too many ranks, or that a step's sequences cannot be divided
// into micro-batches.
Refusal layout_refusal(const LayoutLimits& limits);

}  // namespace megatron::selftest
