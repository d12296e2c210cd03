#include "data/batch_schedule.h"

#include <algorithm>
#include <cmath>

#include "base/divide.h"
#include "base/error.h"
#include "base/text_parts.h"

namespace megatron::data {
namespace {

constexpr int64_t kForever = int64_t{1} << 62;

// Returns the factor that a suffix stands for, or 0 for any other character.
double multiplier(char suffix) {
  constexpr std::string_view kSuffixes = "kKmMbBtT";
  constexpr double kMultipliers[] = {1e3, 1e6, 1e9, 1e12};
  const size_t at = kSuffixes.find(suffix);
  return at == kSuffixes.npos ? 0 : kMultipliers[at / 2];
}

// Parses one entry, "250B:1536".
BatchSchedule::Stage parse_entry(std::string_view entry) {
  const auto bad = [&] {
    fail(
        "--step-batch-size-schedule: '{}' is not THRESHOLD:BATCH, such as 0:768 or 250B:1536 "
        "(thresholds in tokens)",
        entry);
  };
  const size_t colon = entry.find(':');
  if (colon == entry.npos) bad();
  std::string_view threshold = entry.substr(0, colon), size = entry.substr(colon + 1);
  double scale = 1;
  if (!threshold.empty() && multiplier(threshold.back()) > 0) {
    scale = multiplier(threshold.back());
    threshold.remove_suffix(1);
  }
  const auto tokens = parse_number<double>(threshold);
  const auto batch = parse_number<int64_t>(size);
  if (!tokens || !batch) bad();
  MG_CHECK(*tokens >= 0 && *tokens * scale < 1e18,
           "--step-batch-size-schedule: the threshold of '{}' must lie in [0, 1e18)", entry);
  MG_CHECK(*batch > 0 && *batch < (int64_t{1} << 31),
           "--step-batch-size-schedule: the batch of '{}' must lie in [1, 2^31)", entry);
  return {.begin = static_cast<int64_t>(*tokens * scale), .batch = *batch};
}

}  // namespace

BatchSchedule BatchSchedule::constant(int64_t batch) {
  MG_CHECK(batch > 0, "--global-batch-size is {}; it must be at least 1", batch);
  return BatchSchedule("--global-batch-size", {{0, batch}});
}

BatchSchedule BatchSchedule::steps(std::string_view text, std::optional<int64_t> seq_length) {
  constexpr std::string_view kBetween = ", \t\n";
  std::vector<Stage> stages;
  for (size_t at = text.find_first_not_of(kBetween); at != text.npos;) {
    const size_t end = std::min(text.find_first_of(kBetween, at), text.size());
    stages.push_back(parse_entry(text.substr(at, end - at)));
    if (seq_length) stages.back().begin /= *seq_length;
    at = text.find_first_not_of(kBetween, end);
  }
  MG_CHECK(!stages.empty(),
           "--step-batch-size-schedule '{}' has no THRESHOLD:BATCH entry, such as 0:768", text);
  std::ranges::stable_sort(stages, {}, &Stage::begin);
  MG_CHECK(stages[0].begin == 0,
           "--step-batch-size-schedule '{}': an entry with threshold 0 is needed, for the first "
           "step",
           text);
  for (size_t i = 1; i < stages.size(); ++i) {
    MG_CHECK(stages[i - 1].begin < stages[i].begin,
             "--step-batch-size-schedule '{}': the batches {} and {} both begin at sample {} "
             "(thresholds are tokens, divided by --seq-length and rounded down)",
             text, stages[i - 1].batch, stages[i].batch, stages[i].begin);
  }
  BatchSchedule schedule("the batch size in --step-batch-size-schedule", std::move(stages));
  schedule.suggestion_ = "";  // as in Megatron-LM, the flag excludes a schedule
  return schedule;
}

BatchSchedule BatchSchedule::ramp(int64_t start, int64_t increment, int64_t samples,
                                  int64_t batch) {
  MG_CHECK(start > 0 && start <= batch,
           "--rampup-batch-size starts at {}; it must lie in [1, --global-batch-size {}]", start,
           batch);
  MG_CHECK(increment > 0, "--rampup-batch-size has increment {}; it must be positive", increment);
  MG_CHECK((batch - start) % increment == 0,
           "--rampup-batch-size: the difference between {} and --global-batch-size {} is {}, "
           "which is not a multiple of the increment {}",
           start, batch, batch - start, increment);
  MG_CHECK(samples >= 0 && samples < (int64_t{1} << 53),
           "--rampup-batch-size spans {} samples; the number must lie in [0, 2^53)", samples);
  const int64_t increments = (batch - start) / increment;
  constexpr int64_t kMaxStages = 1 << 20;
  MG_CHECK(increments < kMaxStages,
           "--rampup-batch-size has {} increments; at most {} are possible", increments,
           kMaxStages - 1);
  if (increments == 0 || samples == 0) return constant(batch);
  const double each = static_cast<double>(samples) / static_cast<double>(increments);
  std::vector<Stage> stages{{0, start}};
  for (int64_t k = 1; k <= increments; ++k) {
    // The smallest n with floor(n / each) >= k.
    auto begin = static_cast<int64_t>(std::ceil(each * static_cast<double>(k)));
    while (static_cast<double>(begin) / each < static_cast<double>(k)) ++begin;
    while (begin > 0 && static_cast<double>(begin - 1) / each >= static_cast<double>(k)) --begin;
    begin = std::min(begin, samples + 1);
    if (begin == stages.back().begin) stages.pop_back();
    stages.push_back({begin, start + k * increment});
  }
  return BatchSchedule("the batch size in --rampup-batch-size", std::move(stages));
}

void BatchSchedule::divide(int64_t micro_batch_size, int64_t ranks, bool decrease) {
  MG_CHECK(micro_batch_size > 0 && ranks > 0, "micro-batch size {} on {} ranks", micro_batch_size,
           ranks);
  together_ = micro_batch_size * ranks;
  for (const Stage& stage : stages_) {
    MG_CHECK(decrease ? stage.batch >= together_ : stage.batch % together_ == 0,
             "{} {} is {} --micro-batch-size {} x {} data-parallel ranks = {}; "
             "change one of them{}",
             source_, stage.batch, decrease ? "below" : "not a multiple of", micro_batch_size,
             ranks, together_, decrease ? "" : suggestion_);
  }
}

int64_t BatchSchedule::target(int64_t consumed) const {
  MG_ASSERT(!stages_.empty() && consumed >= 0);
  const auto after = std::ranges::upper_bound(stages_, consumed, {}, &Stage::begin);
  return std::prev(after)->batch;
}

int64_t BatchSchedule::batch(int64_t consumed) const {
  const int64_t wanted = target(consumed);
  return wanted - wanted % together_;
}

template <class F>
void BatchSchedule::walk(int64_t consumed, F&& f) const {
  for (size_t i = 0; i < stages_.size(); ++i) {
    const int64_t size = stages_[i].batch - stages_[i].batch % together_;
    const int64_t end = i + 1 < stages_.size() ? stages_[i + 1].begin : kForever;
    if (consumed >= end) continue;
    const int64_t steps = ceil_div(end - consumed, size);
    if (!f(size, steps)) return;
    consumed += steps * size;
  }
}

int64_t BatchSchedule::samples_after(int64_t iterations, int64_t consumed) const {
  int64_t samples = consumed;
  walk(consumed, [&](int64_t size, int64_t steps) {
    const int64_t now = std::min(steps, iterations);
    int64_t added = 0;
    MG_CHECK(!__builtin_mul_overflow(now, size, &added) && added <= kForever - samples,
             "{} iterations of {} samples overflow a 64-bit count (--train-iters, "
             "--global-batch-size)",
             iterations, size);
    samples += added;
    iterations -= now;
    return iterations > 0;
  });
  MG_CHECK(iterations == 0,
           "{} more iterations overflow a 64-bit count (--train-iters, --global-batch-size)",
           iterations);
  return samples;
}

int64_t BatchSchedule::iterations_within(int64_t samples) const {
  int64_t iterations = 0;
  walk(0, [&](int64_t size, int64_t steps) {
    const int64_t now = std::min(steps, samples / size);
    iterations += now;
    samples -= now * size;
    return now == steps;
  });
  return iterations;
}

}  // namespace megatron::data
