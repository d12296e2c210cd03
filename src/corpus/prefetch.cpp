#include "corpus/prefetch.h"

#include <algorithm>
#include <vector>

#include "base/clock.h"
#include "base/error.h"

namespace megatron::corpus {

Prefetcher::Prefetcher(const data::Dataset& set, std::unique_ptr<data::Sampler> sampler,
                       parallel::TokenLayout layout, int64_t count, int64_t capacity,
                       bool two_sided)
    : sampler_(std::move(sampler)), capacity_(static_cast<size_t>(std::max<int64_t>(1, capacity))) {
  thread_ = std::thread([this, reader = BatchReader(set, std::move(layout), two_sided), count] {
    read_all(reader, count);
  });
}

Prefetcher::~Prefetcher() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Prefetcher::read_all(BatchReader reader, int64_t count) {
  std::vector<int64_t> indices;
  try {
    for (int64_t i = 0; i < count; ++i) {
      MG_CHECK(sampler_->next(indices),
               "the training data ends after {} samples, but the run needs more",
               sampler_->consumed());
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stop_ || ready_.size() < capacity_; });
      if (stop_) return;
      HostBatch batch;
      if (!spare_.empty()) {
        batch = std::move(spare_.back());
        spare_.pop_back();
      }
      lock.unlock();
      reader.read(indices, batch);
      lock.lock();
      ready_.push_back(std::move(batch));
      lock.unlock();
      changed_.notify_all();
    }
    fail("all {} micro-batches of the run have been read", count);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
  }
  changed_.notify_all();
}

void Prefetcher::next(HostBatch& batch) {
  std::unique_lock lock(mutex_);
  if (ready_.empty() && !failure_) {
    const double begin = now_seconds();
    changed_.wait(lock, [&] { return !ready_.empty() || failure_; });
    waited_ += now_seconds() - begin;
  }
  if (ready_.empty()) std::rethrow_exception(failure_);
  std::swap(batch, ready_.front());
  if (!ready_.front().tokens.empty()) spare_.push_back(std::move(ready_.front()));
  ready_.pop_front();
  lock.unlock();
  changed_.notify_all();
}

}  // namespace megatron::corpus
