// Divides documents of sentences into samples, with the indices of Megatron-LM's BERT and T5 data
// sets: each sample is a run of whole sentences of one document.
#pragma once

#include <cstdint>
#include <span>
#include <utility>

#include "base/function_ref.h"
#include "data/npy.h"
#include "data/token_source.h"

namespace megatron::data {

// Documents with a longer sentence are left out if they have several sentences.
inline constexpr int64_t kMaxSentenceTokens = 512;

inline constexpr int64_t kMaxSentenceSeed = 2147483646;

// Documents [first_document, first_document + documents) of a source.
struct SentenceDocuments {
  int64_t first_document = 0, documents = 0;
  // Sentences [first, second) of a document, numbered over the whole source.
  FunctionRef<std::pair<int64_t, int64_t>(int64_t document)> sentences;
  Lengths lengths;  // tokens of each sentence
};

struct MappingRequest {
  int64_t samples = 0;                    // fewest samples; whole epochs are built
  int64_t max_epochs = 2147483646;        // stops with fewer samples after as many epochs
  int64_t tokens = 0;                     // most tokens of a sample, at least 2
  int64_t seed = 1234;                    // in [1, kMaxSentenceSeed]
  double short_sequence_probability = 0;  // share of samples with a shorter target length
  int64_t min_sentences = 1;              // of a document and of all samples but its last
};

struct SentenceMapping {
  IntegerArray rows;  // u32 [samples, 3]: first sentence, end of sentences, target length in tokens
  int64_t epochs = 0;
  int64_t before_last_epoch = 0;                          // samples of the other epochs
  int64_t too_few_sentences = 0, too_long_sentences = 0;  // documents left out of each epoch
};

// Fills samples with sentences until they have their target length: `tokens`, or, for one in
// round(1 / short_sequence_probability) samples, a random length in [2, tokens]. The last two
// sentences of a document stay together. Targets are drawn from mt19937(seed) over all epochs, then
// all rows are shuffled by mt19937_64(seed + 1). A sample may exceed its target, by less than a
// sentence. No samples if no document can be used. Throws Error for a request out of range, and if
// the source has 2^32 sentences or more.
SentenceMapping map_sentences(const SentenceDocuments& documents, const MappingRequest& request);

struct BlockRequest {
  int64_t samples = 0, max_epochs = 1;
  int64_t tokens = 0;  // most tokens of a block and its document's title
  int64_t seed = 1234;
  std::span<const int32_t> title_lengths;  // tokens of each document's title
  bool one_sentence_blocks = false;
};

// Blocks for retrieval (ICT, REALM): the same without random lengths; a block's target is the rest
// that its document's title leaves. u32 [blocks, 4]: first sentence, end of sentences, document,
// number of the block in its epoch.
IntegerArray map_blocks(const SentenceDocuments& documents, const BlockRequest& request);

}  // namespace megatron::data
