// Samples for language-model training, cut from token files: the same samples in the same order as
// Megatron-LM.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/dataset.h"
#include "data/index_cache.h"
#include "data/infilling.h"
#include "data/split.h"
#include "data/token_source.h"

namespace megatron::data {

struct GptDatasetConfig {
  int64_t sequence_length = 0;  // S
  int64_t seed = 1234;
  std::optional<std::string> split;  // none: the source is a single split
  bool add_extra_token = true;       // false: the last label is padding
  bool drop_last_partial_validation_sequence = true;
  bool reset_position_ids = false;      // positions start at 0 after each end-of-document token
  bool reset_attention_mask = false;    // and tokens do not attend across it
  bool inter_document_masking = false;  // both, but at the boundaries of stored sequences
  bool eod_mask_loss = false;           // no loss where the input is the end-of-document token

  int64_t eod = -1;
  std::optional<int64_t> pad;
  std::vector<int64_t> special;  // ids that must not be used for padding (eod, eos, bos ...)
  bool allow_ambiguous_pad_tokens = false;  // allows padding to be one of them
  int64_t vocabulary_size = 0;              // 0: token ids are unchecked

  // Rearranges the documents of samples, by draws that depend on the seed and the sample's number;
  // with its megatron_data_order, by draws that go on from each call of read() to the next. Null:
  // documents stay as they are.
  std::shared_ptr<const Infilling> infilling;

  bool cache = true;
  std::optional<std::string> cache_path;  // none: index_cache/ next to the data
  std::optional<int64_t> memory;          // bytes; none: the machine's
  int threads = 0;                        // threads that build large indices; 0: all cores
};

class GptDataset final : public Dataset {
 public:
  // samples: none means one epoch. Loads the indices from the cache or builds and stores them;
  // other threads and processes may do the same concurrently. Throws Error naming the split if it
  // has no sequences, for a damaged source, and, before building, if the indices would take more
  // than half of config.memory.
  GptDataset(std::shared_ptr<const TokenSource> source, GptDatasetConfig config, Split split,
             std::optional<int64_t> samples);

  int64_t size() const override { return plan_.samples; }
  void read(int64_t k, Sample& sample) const override;
  void read_filler(Sample& sample) const override;

  const IndexPlan& plan() const { return plan_; }
  const IndexRequest& request() const { return request_; }
  const GptIndices& indices() const { return *indices_; }
  bool from_cache() const { return from_cache_; }
  // Path of a file in the cache; empty without a cache. suffix: "json", "document_index.npy" ...
  std::string cache_file(std::string_view suffix) const;

 private:
  void prepare(std::optional<int64_t> samples);
  void check_build() const;
  void build();
  // Fills `text` (S + extra tokens) from the source; returns the number of tokens read. borders:
  // ends of the stored sequences.
  int64_t gather(int64_t k, std::vector<int64_t>& text, std::vector<int64_t>& borders) const;
  // Rearranges the documents in the first `filled` tokens of `text`, and moves their borders;
  // returns the number of tokens now.
  int64_t rearrange(int64_t k, int64_t filled, std::vector<int64_t>& text,
                    std::vector<int64_t>& borders) const;
  void mask(Sample& sample, const std::vector<int64_t>& borders) const;

  std::shared_ptr<const TokenSource> source_;
  GptDatasetConfig config_;
  Split split_;
  int64_t pad_;
  IndexRequest request_;
  IndexPlan plan_;
  std::optional<IndexCache> cache_;
  std::optional<GptIndices> indices_;
  bool from_cache_ = false;
  // Draws in the order of access.
  mutable std::mutex draws_mutex_;
  mutable std::optional<RandomState> draws_;
};

}  // namespace megatron::data
