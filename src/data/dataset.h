// A source of a run's samples: a GPT data set, or a blend of several.
#pragma once

#include <cstdint>
#include <vector>

namespace megatron::data {

// The text that the encoder of an encoder-decoder reads, whose length is that of every sample of
// its data set; empty in those of other models. Members are those of Sample.
struct EncoderText {
  std::vector<int64_t> tokens, position_ids;
  std::vector<int32_t> segment_begin;
};

// One sample of S tokens; each vector has S elements, except that segment_begin is empty if
// attention is not confined to segments, targets unless they take the place of labels, sources
// unless the sample consists of examples, and the rest except in data for encoders, label_sets also
// unless a text may have several classes.
struct Sample {
  std::vector<int64_t> tokens, labels, position_ids;
  std::vector<double> targets = {};    // numbers that scores are compared with
  std::vector<float> loss_mask;        // 1 if the token counts
  std::vector<int32_t> segment_begin;  // first position that each position attends to
  std::vector<int32_t> sources = {};   // number of each token's source, -1: padding; or none
  std::vector<int64_t> token_types = {};
  // At the first token of a pair of texts, whether the second follows the first: 0 if it does, 1 if
  // not; -1 elsewhere.
  std::vector<int32_t> pair_labels = {};
  // At the scored token of a text, the numbers of its classes; empty elsewhere.
  std::vector<std::vector<int32_t>> label_sets = {};
  EncoderText encoder = {};
  // The first and the last token of the encoder's text that each token sees.
  std::vector<int32_t> encoder_begin = {}, encoder_end = {};
};

// Const members are thread-safe.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual int64_t size() const = 0;  // at least the number of requested samples
  virtual void read(int64_t k, Sample& sample) const = 0;  // throws Error outside [0, size())
  // Sample 0 without loss, which pads a last batch.
  virtual void read_filler(Sample& sample) const = 0;
};

}  // namespace megatron::data
