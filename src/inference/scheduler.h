// Which sequences run, and what the next forward pass reads of them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "inference/block_cache.h"
#include "inference/sequence.h"

namespace megatron::inference {

struct SchedulerOptions {
  int64_t max_requests = 8;  // that run at once
  int64_t max_tokens = 512;  // of a pass
  // Texts of two lengths with equal numbers have equal rotary angles (ModelDefinition::context_class).
  std::function<int64_t(int64_t length)> context_class;
};

struct ScheduledRow {
  Sequence* sequence = nullptr;
  int64_t count = 0;  // of its unread tokens
};

// Sequences are served in the order of their `due`. Each pass takes the next token of every sequence whose prompt is
// read, and pieces of prompts with what is left of the tokens of a pass. When pages end, the sequences that are due
// last give theirs back and wait again, to be read anew: the first one always goes on, so that all end.
class Scheduler {
 public:
  Scheduler(SchedulerOptions options, BlockCache& cache);

  // Its tokens have to fit the cache when it is alone there.
  void add(std::unique_ptr<Sequence> sequence);
  // The sequence leaves with its pages. False: there is none of that id.
  bool remove(RequestId id);

  // The rows of the next pass, all of one context class, with pages for them; those of one count side by side. Empty
  // when there is nothing to do.
  std::vector<ScheduledRow> next();
  // After the pass: the rows are read.
  void advance(const std::vector<ScheduledRow>& rows);
  // All that was read is read again: the weights are others.
  void read_anew();

  int64_t running() const { return static_cast<int64_t>(running_.size()); }
  int64_t waiting() const { return static_cast<int64_t>(waiting_.size()); }
  int64_t preemptions() const { return preemptions_; }
  // Of prompts, that were there when they began.
  int64_t cached_tokens() const { return cached_tokens_; }

 private:
  using Rows = std::vector<ScheduledRow>;
  using Sequences = std::map<Due, std::unique_ptr<Sequence>>;

  void admit();
  void begin(Sequence& sequence);
  void forget_other_angles();
  int64_t next_class() const;
  bool reserve(Sequence& sequence, int64_t count, Rows& rows);
  void preempt(Sequence& sequence, Rows& rows);
  Rows rows_of(int64_t of_class);
  void forget(Sequence& sequence);

  SchedulerOptions options_;
  BlockCache& cache_;
  Sequences waiting_, running_;
  uint64_t turn_ = 0;
  int64_t preemptions_ = 0, cached_tokens_ = 0;
};

}  // namespace megatron::inference
