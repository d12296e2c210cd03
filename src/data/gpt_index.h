// The indices that map samples to tokens: the three indices of Megatron-LM's GPT data set, with the
// same contents.
//
// The documents of a split are repeated for as many epochs as the requested samples need and
// shuffled (document index); samples of S + 1 tokens, the last of which is the first of the next
// one, are cut from that chain (sample index); samples are shuffled (shuffle index). If fewer than
// 80% of the last epoch's samples are needed, that epoch is shuffled separately, so that its
// documents are not seen early.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/function_ref.h"
#include "data/npy.h"
#include "data/random_state.h"
#include "data/token_source.h"

namespace megatron::data {

struct IndexRequest {
  // The split is [first, first + sequences) of its source.
  int64_t first_sequence = 0, sequences = 0;
  int64_t tokens_per_epoch = 0;    // sum of their lengths
  std::optional<int64_t> samples;  // none: those of one epoch
  int64_t sequence_length = 0;     // S
  int64_t extra_tokens = 1;        // 1: samples have one more token, for the last label; or 0
  bool drop_last_partial = true;   // false: keeps a short last sample (and pads it)
};

struct IndexPlan {
  int64_t epochs = 1;
  bool separate_final_epoch = false;
  int64_t samples_without_final_epoch = 0;
  int64_t documents = 0;  // entries of the document index: epochs * sequences
  int64_t samples = 0;    // samples built; at least those requested
};

// Throws Error for a split without tokens, a sequence length or a request out of range.
IndexPlan plan_index(const IndexRequest& request);

// Memory in bytes of the three indices of a plan.
int64_t index_bytes(const IndexPlan& plan);

struct GptIndices {
  IntegerArray document, sample, shuffle;
};

// The generator is used first for the document index, then for the shuffle index.
IntegerArray build_document_index(const IndexRequest& request, const IndexPlan& plan,
                                  RandomState& random);
IntegerArray build_shuffle_index(const IndexPlan& plan, RandomState& random);
// Advances the generator to its state after build_document_index().
void skip_document_index(const IndexRequest& request, const IndexPlan& plan, RandomState& random);

// Rows (position in the document index, token offset) at which each sample starts, and one more row
// for the end: row k > 0 is at the last token of sample k - 1, which both share, or after it (extra
// 0); at the chain's end if there is none. meanwhile: work done concurrently by one of the threads.
IntegerArray build_sample_index(
    const IndexRequest& request, const IndexPlan& plan, const IntegerArray& document_index,
    const Lengths& lengths, ThreadPool& pool, FunctionRef<void()> meanwhile = [] {});

// Builds all three; the result does not depend on the number of threads. ready: called with each
// index as soon as it is built, by any thread, while others are still being built.
using IndexReady = FunctionRef<void(std::string_view name, const IntegerArray& index)>;
GptIndices build_indices(const IndexRequest& request, const IndexPlan& plan, int64_t seed,
                         const Lengths& lengths, ThreadPool& pool, IndexReady ready);

}  // namespace megatron::data
