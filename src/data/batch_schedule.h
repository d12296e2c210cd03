// Number of sequences of each optimizer step: a pure function of the samples consumed before it.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace megatron::data {

class BatchSchedule {
 public:
  BatchSchedule() = default;  // unusable until assigned

  static BatchSchedule constant(int64_t batch);

  // --step-batch-size-schedule "0:768 250B:1536": each batch size applies from its threshold on.
  // Entries are separated by spaces or commas, in any order; K, M, B and T (either case) multiply a
  // threshold by 10^3 to 10^12, and fractions of the result are dropped. Thresholds are tokens,
  // divided by seq_length (rounded down), or samples without it. Throws Error unless the first is
  // 0, all differ, and every batch is positive.
  static BatchSchedule steps(std::string_view text, std::optional<int64_t> seq_length);

  // --rampup-batch-size START INCREMENT SAMPLES: the batch size grows from start to `batch` in
  // equal steps of `increment` over `samples` samples:
  //   n > samples: batch; else start + increment floor(n / (samples / ((batch - start) /
  //   increment)))
  // Throws Error unless 0 < start <= batch, increment > 0 divides batch - start, and samples >= 0.
  static BatchSchedule ramp(int64_t start, int64_t increment, int64_t samples, int64_t batch);

  struct Stage {
    int64_t begin = 0;  // samples
    int64_t batch = 0;
    bool operator==(const Stage&) const = default;
  };
  // Begins ascend, and the first is 0.
  const std::vector<Stage>& stages() const { return stages_; }
  int64_t last() const { return stages_.back().batch; }

  // Splits batches into micro-batches of `size` sequences on `ranks` ranks. A batch that is not a
  // multiple of size x ranks is rounded down with `decrease`; otherwise throws Error naming it, as
  // for a batch below size x ranks.
  void divide(int64_t micro_batch_size, int64_t ranks, bool decrease);

  int64_t target(int64_t consumed) const;  // scheduled batch size
  int64_t batch(int64_t consumed) const;   // batch size of the run: rounded down by divide()
  int64_t micro_batches(int64_t consumed) const { return batch(consumed) / together_; }  // per rank

  // Counts whole steps only, the first of them after `consumed` samples. Throws Error above 2^62
  // samples.
  int64_t samples_after(int64_t iterations, int64_t consumed = 0) const;
  int64_t iterations_within(int64_t samples) const;  // number of whole iterations within `samples`

 private:
  BatchSchedule(const char* source, std::vector<Stage> stages)
      : source_(source), stages_(std::move(stages)) {}
  // Calls f(batch, steps) for each stage in turn, from `consumed` on to the stage's end, with the
  // number of steps that begin in it.
  template <class F>
  void walk(int64_t consumed, F&& f) const;

  // For messages: the source of the batch sizes, and an alternative if they cannot be divided.
  const char* source_ = "";
  const char* suggestion_ = ", or give --decrease-batch-size-if-needed";
  std::vector<Stage> stages_;
  int64_t together_ = 1;  // micro-batch size x ranks
};

}  // namespace megatron::data
