// Chooses the sequences that run, and the tokens that the next forward pass reads.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "inference/block_cache.h"
#include "inference/sequence.h"

namespace megatron::inference {

struct SchedulerOptions {
  int64_t max_requests = 8;  // that run at once; each beam counts
  int64_t max_tokens = 512;  // per pass
  // Passes read texts from their beginning to their end: those of an encoder, which keeps nothing
  // between passes. A text of more than max_tokens has a pass for itself.
  bool whole_texts = false;
  // Texts whose lengths have the same class have the same rotary angles
  // (ModelDefinition::context_class).
  std::function<int64_t(int64_t length)> context_class;
};

struct ScheduledRow {
  Sequence* sequence = nullptr;
  int64_t count = 0;  // number of unread tokens to process
};

// The root of cached texts (SequenceBlocks): they have the same rotary angles and the same adapter
// (Adapter::number(); 0: none).
uint64_t cache_root(int64_t context_class, uint64_t adapter);

// Sequences are served in the order of their `due`. Each pass takes the next token of every
// sequence whose prompt has been read, and fills its remaining tokens with pieces of prompts. When
// pages run out, the sequences that are due last release theirs and wait to be read again; the
// first one always continues, so that all of them finish. The beams of a request are scheduled like
// sequences of their own, but admitted and preempted together.
//
// An encoder reads its text whole, in one pass with the first of the decoder's tokens. A text that
// leaves no room for the next tokens of all other sequences has a pass for itself; such passes
// alternate with others.
class Scheduler {
 public:
  // texts: of the encoder of an encoder-decoder; null: the model has none. Borrowed.
  Scheduler(SchedulerOptions options, BlockCache& cache, EncoderTexts* texts = nullptr);

  // The sequence's tokens, with those of its beams, must fit the cache when it runs alone.
  void add(std::unique_ptr<Sequence> sequence);
  // Removes a sequence and releases its pages. Returns null if no sequence has the id.
  std::unique_ptr<Sequence> remove(RequestId id);

  // Returns the rows of the next pass, all of one context class and with pages allocated; rows with
  // equal counts are adjacent, and among them those with one adapter. Empty if there is nothing to
  // do.
  std::vector<ScheduledRow> next();
  // Copies of pages to make, in this order, before the pass over those rows.
  std::vector<PageCopy> take_copies();
  // Records, after the pass, that the rows have been read.
  void advance(const std::vector<ScheduledRow>& rows);
  // Schedules all tokens to be read again, since the weights have changed.
  void read_anew();

  int64_t running() const { return static_cast<int64_t>(running_.size()); }
  int64_t waiting() const { return static_cast<int64_t>(waiting_.size()); }
  int64_t preemptions() const { return preemptions_; }
  // Prompt tokens that were cached when their request began.
  int64_t cached_tokens() const { return cached_tokens_; }

 private:
  using Rows = std::vector<ScheduledRow>;
  using Sequences = std::map<Due, std::unique_ptr<Sequence>>;

  // Calls f for each running sequence that reads tokens: the beams of a request, or itself.
  template <class F>
  void for_each_reader(const F& f) const;
  int64_t width() const;
  void follow_searches();
  void follow_search(Sequence& sequence);
  bool fork_beams(Sequence& sequence);
  ForkedTexts room_for_beams(const Sequence& sequence) const;
  void admit();
  void begin(Sequence& sequence);
  void forget_other_angles();
  int64_t next_class() const;
  bool reserve(Sequence& sequence, int64_t count, Rows& rows);
  bool extend(Sequence& sequence, int64_t length);
  void preempt(Sequence& sequence, Rows& rows);
  Sequence* next_long_text(int64_t of_class, int64_t decoding) const;
  Rows rows_of(int64_t of_class);
  void forget(Sequence& sequence);

  SchedulerOptions options_;
  BlockCache& cache_;
  EncoderTexts* texts_;
  bool read_long_text_ = false;  // the last pass was that of a single encoder's text
  Sequences waiting_, running_;
  std::vector<std::pair<RequestId, PageCopy>> copies_;
  uint64_t turn_ = 0;
  int64_t preemptions_ = 0, cached_tokens_ = 0;
};

}  // namespace megatron::inference
