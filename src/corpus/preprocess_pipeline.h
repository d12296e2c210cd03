// Pipeline that reads blocks in order, tokenizes them on several threads and writes them in order:
// the output does not depend on the number of threads, and memory holds a few blocks per thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "corpus/preprocess_blocks.h"
#include "data/indexed_dataset.h"

namespace megatron::corpus {

struct PipelineOptions {
  int workers = 1;
  int64_t block_bytes = 1 << 19;
  std::optional<int64_t> log_interval;  // documents between printed lines, when not on a terminal
};

// Totals of the result, including bad lines.
struct PipelineTotals {
  int64_t documents = 0, bad_count = 0, text_bytes = 0, file_bytes = 0;
  std::vector<std::string> bad;  // the first few: place and reason
};

class PreprocessPipeline {
 public:
  // outputs: one per key. All references must outlive it.
  PreprocessPipeline(const DocumentRules& rules, const Vocabulary& vocabulary,
                     data::TextBlocks& blocks,
                     std::span<data::IndexedDatasetBuilder* const> outputs,
                     PipelineOptions options);
  ~PreprocessPipeline();

  // Runs until the inputs end. Throws the first error in the order of the inputs: an input that
  // cannot be read, a bad line unless bad lines are skipped, an output that cannot be written.
  // Callable once.
  PipelineTotals run();

 private:
  struct Partition;
  struct Display;
  void work();
  bool read(data::TextBlock& block, int64_t& index);
  TokenizedBlock process(BlockTokenizer& tokenizer, const data::TextBlock& block) const;
  void deliver(int64_t index, TokenizedBlock block);
  void write(TokenizedBlock& block);
  void stop(std::exception_ptr error);
  void show(Display& display) const;

  const DocumentRules& rules_;
  const Vocabulary& vocabulary_;
  data::TextBlocks& blocks_;
  std::vector<data::IndexedDatasetBuilder*> outputs_;
  std::vector<Partition> partitions_;  // for each key, all but the first, which goes to the output
  PipelineOptions options_;

  std::mutex reading_;  // held while a block is read and numbered
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int64_t, TokenizedBlock> pending_;
  int64_t next_read_ = 0, next_written_ = 0, bytes_read_ = 0, in_flight_ = 0;
  int64_t tokens_ = 0;
  int running_ = 0;
  bool writing_ = false, ended_ = false, stopping_ = false;
  std::exception_ptr failure_;
  PipelineTotals totals_;
};

}  // namespace megatron::corpus
