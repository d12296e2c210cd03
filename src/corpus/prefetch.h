// Training micro-batches, prefetched by one thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "corpus/corpus.h"
#include "data/dataset.h"
#include "data/sampler.h"

namespace megatron::corpus {

class Prefetcher {
 public:
  // Reads `count` micro-batches of the layout that the sampler names, at most `capacity` of them
  // ahead of next(). two_sided: see BatchReader. The set is borrowed.
  Prefetcher(const data::Dataset& set, std::unique_ptr<data::Sampler> sampler,
             parallel::TokenLayout layout, int64_t count, int64_t capacity, bool two_sided = false);
  ~Prefetcher();  // stops the thread, wherever it is
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  // Exchanges `batch` for the next micro-batch, in the sampler's order; the memory of the old one
  // is reused for a later one, so a run always reads into the same memory. Rethrows errors of
  // reading it, and throws Error if the sampler was at its end.
  void next(HostBatch& batch);
  double waited() const { return waited_; }  // total seconds that next() waited

 private:
  void read_all(BatchReader reader, int64_t count);

  std::unique_ptr<data::Sampler> sampler_;
  size_t capacity_;
  double waited_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<HostBatch> ready_;  // under the mutex, as are the three below
  std::vector<HostBatch> spare_;
  std::exception_ptr failure_;  // thrown after the last of ready_
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace megatron::corpus
