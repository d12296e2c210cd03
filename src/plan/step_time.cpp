#include "plan/step_time.h"

#include <algorithm>
#include <numeric>

#include "base/clock.h"
#include "base/machine_limits.h"
#include "base/median.h"
#include "comm/threads.h"
#include "plan/call_clock.h"
#include "plan/replay_memory.h"

namespace megatron::plan {
namespace {

// Bytes between two uses of an operand that make it cold: more than a last-level cache.
constexpr int64_t kColdest = int64_t{96} << 20;
constexpr double kShort = 1e-3;  // seconds; shorter calls are timed in groups

struct Rates {
  double peak, bandwidth;
};

double by_rates(const kernels::Cost& cost, const Rates& rates) {
  return std::max(cost.flops / rates.peak, cost.bytes / rates.bandwidth);
}

// Largest number of bytes that one rank holds.
int64_t most_bytes(const TimedRun& run) {
  return kLargestOperand * (run.device.kind == DeviceKind::cuda ? 16 : 1) / run.ranks;
}

int64_t largest_operand(const WorkItem& item) {
  int64_t largest = 0;
  for (const OperandForm& form : item.operands) largest = std::max(largest, form.end());
  return largest;
}

// State that the ranks of a replay share. Rank 0 chooses the next call while the others wait.
class Replay {
 public:
  Replay(const StepWork& work, const TimedRun& run, const Rates& rates)
      : work_(work),
        run_(run),
        begin_(now_seconds()),
        kernels_(work.kernels.size()),
        collectives_(work.collectives.size()) {
    for (const WorkItem& item : work.kernels)
      expected_.push_back(run.ranks * by_rates(item.cost, rates));
    if (run.measured != nullptr) take_measured(*run.measured);
    for (const std::vector<double>& samples : collectives_)
      known_collectives_.push_back(!samples.empty());
    order_.resize(work.kernels.size());
    std::iota(order_.begin(), order_.end(), size_t{0});
    std::erase_if(order_, [&](size_t i) { return !can_be_made(i); });
    // Calls that matter most come first.
    std::ranges::stable_sort(order_, std::greater(), [&](size_t i) {
      return expected_[i] * static_cast<double>(work.kernels[i].calls);
    });
  }

  void run(comm::Group& world) {
    Runtime runtime(run_.device, run_.threads);
    ReplayMemory memory(runtime, std::min(run_.touched, kColdest) / run_.ranks, run_.experts);
    CallClock clock(runtime);
    for (int round = 0; goes_on(world, round); ++round) {
      for (const size_t index : order_) {
        if (!goes_on(world, round)) break;
        const double seconds = time_call(index, memory, runtime, clock, world);
        if (world.rank() == 0) kernels_[index].push_back(seconds);
      }
      if (round < 2) time_collectives(world, runtime);
    }
  }

  // Seconds of one call; negative: not measured.
  std::vector<double> kernel_seconds() const { return medians(kernels_); }
  std::vector<double> collective_seconds() const { return medians(collectives_); }

 private:
  static std::vector<double> medians(const std::vector<std::vector<double>>& samples) {
    std::vector<double> seconds;
    for (std::vector<double> of_item : samples) {
      // Drops the first of several measurements, which also touched memory for the first time.
      if (of_item.size() > 1) of_item.erase(of_item.begin());
      seconds.push_back(of_item.empty() ? -1 : median(of_item));
    }
    return seconds;
  }

  void take_measured(const MeasuredCalls& measured) {
    const auto take = [&](const auto& items, std::vector<std::vector<double>>& samples) {
      for (size_t i = 0; i < items.size(); ++i)
        if (const auto seconds = measured.seconds(items[i])) samples[i] = {*seconds};
    };
    take(work_.kernels, kernels_);
    take(work_.collectives, collectives_);
  }

  bool can_be_made(size_t index) const {
    const WorkItem& item = work_.kernels[index];
    return kernels_[index].empty() && item.calls > 0 && largest_operand(item) <= most_bytes(run_) &&
           expected_[index] <= kLongestCall;
  }

  bool goes_on(comm::Group& world, int round) {
    if (world.rank() == 0) {
      const double spent = now_seconds() - begin_;
      goes_on_ = !order_.empty() && round < 7 && spent < (round == 0 ? kMaxSeconds : kBudget);
    }
    world.barrier("replay.next");
    const bool decided = goes_on_;
    world.barrier("replay.decided");
    return decided;
  }

  // Mean over all ranks, which make the call at the same time.
  double time_call(size_t index, ReplayMemory& memory, Runtime& runtime, CallClock& clock,
                   comm::Group& world) {
    const WorkItem& item = work_.kernels[index];
    const bool is_short = expected_[index] < kShort;
    const int count = is_short ? 4 : 1;
    std::vector<std::vector<Tensor>> operands;
    for (int i = 0; i < count; ++i) operands.push_back(memory.operands(item));
    if (is_short)
      item.again(operands[0], runtime.stream());  // creates what a thread caches for a shape
    world.barrier("replay.call");
    const double seconds = clock.seconds([&] {
      for (const auto& tensors : operands) item.again(tensors, runtime.stream());
    });
    return seconds / count;
  }

  void time_collectives(comm::Group& world, Runtime& runtime) {
    for (size_t i = 0; i < work_.collectives.size(); ++i) {
      const CollectiveItem& item = work_.collectives[i];
      if (item.calls == 0 || item.collective != "all_reduce" || item.ranks != world.size() ||
          known_collectives_[i])
        continue;
      const int64_t bytes = std::min(item.bytes, most_bytes(run_));
      const Tensor t = Tensor::empty(runtime.arena(MemoryClass::communication),
                                     {std::max<int64_t>(bytes / 4, 1)}, DType::f32, "replay.sum");
      kernels::table(runtime.stream()).fill({.out = t, .value = 0.01}, runtime.stream());
      world.barrier("replay.call");
      const double begin = now_seconds();
      world.all_reduce(t, comm::Reduce::sum, runtime.stream(), "replay").wait(runtime.stream());
      const double share = static_cast<double>(item.bytes) / static_cast<double>(t.bytes());
      if (world.rank() == 0)
        collectives_[i].push_back((now_seconds() - begin) * std::max(share, 1.0));
    }
  }

  const StepWork& work_;
  const TimedRun& run_;
  double begin_;
  std::vector<double> expected_;  // seconds per call, by item
  std::vector<size_t> order_;
  std::vector<std::vector<double>> kernels_, collectives_;  // samples of rank 0
  std::vector<bool> known_collectives_;
  bool goes_on_ = true;
};

// Estimates the calls that were not made.
void scale(const StepWork& work, const Rates& rates, int ranks, std::vector<double>& seconds) {
  const std::vector<double> made = seconds;
  const auto amount = [](const kernels::Cost& c) { return c.flops > 0 ? c.flops : c.bytes; };
  const auto type = [](const WorkItem& item) {
    return item.operands.empty() ? DType::f32 : item.operands[0].type;
  };
  for (size_t i = 0; i < seconds.size(); ++i) {
    const WorkItem& item = work.kernels[i];
    if (made[i] >= 0 || item.calls == 0) continue;
    size_t like = made.size();
    for (size_t j = 0; j < made.size(); ++j) {
      const WorkItem& other = work.kernels[j];
      if (made[j] < 0 || other.kernel != item.kernel || type(other) != type(item)) continue;
      if (like == made.size() || amount(other.cost) > amount(work.kernels[like].cost)) like = j;
    }
    const double floor = ranks * by_rates(item.cost, rates);
    const bool found = like < made.size() && amount(work.kernels[like].cost) > 0;
    seconds[i] =
        found ? std::max(floor, made[like] * amount(item.cost) / amount(work.kernels[like].cost))
              : floor;
  }
}

template <class Items>
double sum(const Items& items, const std::vector<double>& seconds) {
  double total = 0;
  for (size_t i = 0; i < items.size(); ++i)
    if (items[i].calls > 0)
      total += static_cast<double>(items[i].calls) * std::max(seconds[i], 0.0);
  return total;
}

}  // namespace

std::optional<StepTime> estimate_step_time(const StepWork& work, const TimedRun& run) {
  const auto cores = available_processors();
  if (run.ranks * run.threads > 4 * cores) return std::nullopt;
  const int threads = run.ranks * run.threads;
  const Rate peak = gemm_peak(run.device, threads, run.type, run.rates);
  const Rate bandwidth = copy_rate(run.device, threads, run.rates);
  const Rates rates{peak.value, bandwidth.value};
  Replay replay(work, run, rates);
  comm::run_ranks(run.ranks, [&](comm::Group& world) { replay.run(world); });
  StepTime time{.kernels = replay.kernel_seconds(),
                .collectives = replay.collective_seconds(),
                .peak = peak,
                .bandwidth = bandwidth};
  scale(work, rates, run.ranks, time.kernels);
  if (run.measured != nullptr) run.measured->add(work, time);
  const double kernels = sum(work.kernels, time.kernels);
  time.seconds = sum(work.collectives, time.collectives) +
                 (run.device.kind == DeviceKind::cuda ? std::max(run.host_seconds, kernels)
                                                      : run.host_seconds + kernels);
  return time;
}

}  // namespace megatron::plan
