#include "parallel/simulate.h"

#include <algorithm>

#include "base/error.h"

namespace megatron::parallel {
namespace {

std::string_view word(Action::Kind kind) {
  switch (kind) {
    case Action::Kind::forward: return "forward";
    case Action::Kind::backward: return "backward";
    case Action::Kind::weight: return "weight gradient";
  }
  return {};
}

// Simulates the lists together.
class SimulatedRun {
 public:
  SimulatedRun(const PipelineShape& shape, const std::vector<Schedule>& stages,
               const ActionTimes& times)
      : shape_(shape), stages_(stages), times_(times), micro_batches_(count_micro_batches(stages)) {
    MG_ASSERT(static_cast<int>(stages.size()) == shape.stages);
    for (auto& ends : ends_)
      ends.assign(static_cast<size_t>(shape.virtual_stages()) * static_cast<size_t>(micro_batches_),
                  -1);
    intervals_.resize(stages.size());
    for (size_t s = 0; s < stages.size(); ++s) {
      intervals_[s].reserve(stages[s].size());
      deferred_.push_back(deferred_weights(shape, stages[s], micro_batches_));
    }
  }

  std::vector<std::vector<Interval>> take() {
    for (bool moved = true; moved;) {
      moved = false;
      for (int s = 0; s < shape_.stages; ++s) {
        while (advance(s)) moved = true;
      }
    }
    for (size_t s = 0; s < stages_.size(); ++s) {
      if (intervals_[s].size() < stages_[s].size()) report(static_cast<int>(s));
    }
    return std::move(intervals_);
  }

 private:
  // Runs the stage's next action if it is ready. Returns false if it is not.
  bool advance(int stage) {
    auto& done = intervals_[static_cast<size_t>(stage)];
    const Schedule& list = stages_[static_cast<size_t>(stage)];
    if (done.size() == list.size()) return false;
    const Action& action = list[done.size()];
    const int virtual_stage = shape_.virtual_stage(stage, action.chunk);
    double ready = done.empty() ? 0 : done.back().end;
    if (!can_begin(action, virtual_stage, ready)) return false;
    const double end = ready + duration(stage, action) / action.parts;
    if (action.ends()) end_of(action.kind, virtual_stage, action.micro_batch) = end;
    done.push_back({ready, end});
    return true;
  }

  // Sets `ready` to the time when all inputs of the action are available; returns false while some
  // are not.
  bool can_begin(const Action& action, int virtual_stage, double& ready) {
    if (!action.begins()) return true;
    const int m = action.micro_batch;
    switch (action.kind) {
      case Action::Kind::forward:
        return virtual_stage == 0 ||
               wait_for(Action::Kind::forward, virtual_stage - 1, m, virtual_stage, ready);
      case Action::Kind::backward:
        return wait_for(Action::Kind::forward, virtual_stage, m, virtual_stage, ready) &&
               (virtual_stage + 1 == shape_.virtual_stages() ||
                wait_for(Action::Kind::backward, virtual_stage + 1, m, virtual_stage, ready));
      case Action::Kind::weight:
        return wait_for(Action::Kind::backward, virtual_stage, m, virtual_stage, ready);
    }
    return false;
  }

  bool wait_for(Action::Kind kind, int made_by, int micro_batch, int needed_by, double& ready) {
    const double end = end_of(kind, made_by, micro_batch);
    if (end < 0) return false;
    const bool travels = shape_.stage_of(made_by) != shape_.stage_of(needed_by);
    ready = std::max(ready, end + (travels ? times_.transfer : 0));
    return true;
  }

  double duration(int stage, const Action& action) const {
    switch (action.kind) {
      case Action::Kind::forward: return times_.forward;
      case Action::Kind::weight: return times_.weight;
      case Action::Kind::backward: break;
    }
    const auto at = static_cast<size_t>(action.chunk * micro_batches_ + action.micro_batch);
    const bool deferred = deferred_[static_cast<size_t>(stage)][at];
    return times_.input + (deferred ? 0 : times_.weight);
  }

  double& end_of(Action::Kind kind, int virtual_stage, int micro_batch) {
    return ends_[static_cast<int>(kind)]
                [static_cast<size_t>(virtual_stage * micro_batches_ + micro_batch)];
  }

  [[noreturn]] void report(int stage) const {
    const size_t at = intervals_[static_cast<size_t>(stage)].size();
    const Action& action = stages_[static_cast<size_t>(stage)][at];
    fail(
        "the pipeline stages deadlock: stage {} of {} cannot start its action {}, {} of "
        "micro-batch {}, chunk {}",
        stage, shape_.stages, at, word(action.kind), action.micro_batch, action.chunk);
  }

  const PipelineShape& shape_;
  const std::vector<Schedule>& stages_;
  const ActionTimes& times_;
  const int micro_batches_;
  // End times by kind, then by virtual stage and micro-batch; -1: not finished.
  std::vector<double> ends_[3];
  std::vector<std::vector<bool>> deferred_;
  std::vector<std::vector<Interval>> intervals_;
};

}  // namespace

int count_micro_batches(const std::vector<Schedule>& stages) {
  int count = 0;
  for (const Schedule& schedule : stages) {
    for (const Action& action : schedule) {
      MG_ASSERT(action.micro_batch >= 0);
      count = std::max(count, action.micro_batch + 1);
    }
  }
  return count;
}

std::vector<bool> deferred_weights(const PipelineShape& shape, const Schedule& schedule,
                                   int micro_batches) {
  std::vector<bool> deferred(static_cast<size_t>(shape.chunks * micro_batches));
  for (const Action& action : schedule) {
    MG_ASSERT(action.chunk >= 0 && action.chunk < shape.chunks);
    if (action.kind == Action::Kind::weight)
      deferred[static_cast<size_t>(action.chunk * micro_batches + action.micro_batch)] = true;
  }
  return deferred;
}

std::vector<std::vector<Interval>> timeline(const PipelineShape& shape,
                                            const std::vector<Schedule>& stages,
                                            const ActionTimes& times) {
  return SimulatedRun(shape, stages, times).take();
}

Simulated simulate(const PipelineShape& shape, const std::vector<Schedule>& stages,
                   const ActionTimes& times) {
  Simulated result;
  const auto intervals = timeline(shape, stages, times);
  for (const auto& of_stage : intervals) {
    double busy = 0;
    for (const Interval& interval : of_stage) busy += interval.end - interval.begin;
    if (!of_stage.empty()) result.seconds = std::max(result.seconds, of_stage.back().end);
    result.idle.push_back(-busy);
  }
  for (double& idle : result.idle) idle += result.seconds;
  return result;
}

Simulated simulate(const PipelineShape& shape, int micro_batches, const ActionTimes& times) {
  std::vector<Schedule> stages;
  for (int s = 0; s < shape.stages; ++s) stages.push_back(shape.schedule(s, micro_batches));
  return simulate(shape, stages, times);
}

}  // namespace megatron::parallel
