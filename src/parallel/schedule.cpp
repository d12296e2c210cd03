#include "parallel/schedule.h"

#include <algorithm>
#include <iterator>
#include <set>

#include "base/error.h"

namespace megatron::parallel {
namespace {

// Forwards of micro-batches in groups that pass through the chunks in turn.
Schedule forwards_in_groups(int micro_batches, int chunks, int group) {
  Schedule forwards;
  forwards.reserve(static_cast<size_t>(micro_batches) * static_cast<size_t>(chunks));
  for (int begin = 0; begin < micro_batches; begin += group) {
    const int end = std::min(begin + group, micro_batches);
    for (int chunk = 0; chunk < chunks; ++chunk) {
      for (int m = begin; m < end; ++m) forwards.push_back({Action::Kind::forward, chunk, m});
    }
  }
  return forwards;
}

void check_groups(int stages, int micro_batches, int group) {
  MG_CHECK(group >= stages && group <= micro_batches,
           "--microbatch-group-size-per-virtual-pipeline-stage is {}, but there are {} pipeline "
           "stages and {} micro-batches per step: a group of the interleaved schedule needs at "
           "least as many micro-batches as there are stages, and at most as many as there are in a "
           "step. Change the group size, raise --global-batch-size, or leave out "
           "--num-layers-per-virtual-pipeline-stage and --num-virtual-stages-per-pipeline-rank",
           group, stages, micro_batches);
  const int rest = micro_batches % group;
  MG_CHECK(rest == 0 || rest >= stages,
           "{} micro-batches per step in groups of {} "
           "(--microbatch-group-size-per-virtual-pipeline-stage) leave a last group of {}, fewer "
           "than the {} pipeline stages: stages would wait for each other. Change the group size "
           "or --global-batch-size so that none or at least {} micro-batches are left, or leave "
           "out --num-layers-per-virtual-pipeline-stage and --num-virtual-stages-per-pipeline-rank",
           micro_batches, group, rest, stages, stages);
}

// `warm_up` forwards, then alternately a forward and a backward, then the remaining backwards.
Schedule alternating(const Schedule& forwards, const Schedule& backwards, size_t warm_up,
                     int parts) {
  Schedule schedule;
  schedule.reserve(2 * forwards.size() * static_cast<size_t>(parts));
  for (size_t k = 0; k < forwards.size() + warm_up; ++k) {
    const bool forward = k < forwards.size(), backward = k >= warm_up;
    if (!forward || !backward) {
      schedule.push_back(forward ? forwards[k] : backwards[k - warm_up]);
      continue;
    }
    for (int part = 0; part < parts; ++part) {
      for (Action action : {forwards[k], backwards[k - warm_up]}) {
        action.part = part;
        action.parts = parts;
        schedule.push_back(action);
      }
    }
  }
  return schedule;
}

// Backward passes through the chunks in reverse order.
Schedule backwards_of(Schedule forwards, int chunks) {
  for (Action& action : forwards)
    action = {Action::Kind::backward, chunks - 1 - action.chunk, action.micro_batch};
  return forwards;
}

}  // namespace

Schedule one_f_one_b(int stage, int stages, int micro_batches) {
  MG_ASSERT(stages >= 1 && stage >= 0 && stage < stages && micro_batches >= 0);
  const Schedule forwards = forwards_in_groups(micro_batches, 1, stages);
  return alternating(forwards, backwards_of(forwards, 1),
                     static_cast<size_t>(std::min(stages - stage - 1, micro_batches)), 1);
}

int interleaved_warm_up(int stage, int stages, int micro_batches, int chunks, int group) {
  return std::min(2 * (stages - stage - 1) + (chunks - 1) * group, micro_batches * chunks);
}

Schedule interleaved(int stage, int stages, int micro_batches, int chunks, int group) {
  MG_ASSERT(stages >= 1 && stage >= 0 && stage < stages && chunks >= 1 && micro_batches >= 0);
  if (micro_batches == 0) return {};
  check_groups(stages, micro_batches, group);

  const Schedule forwards = forwards_in_groups(micro_batches, chunks, group);
  return alternating(
      forwards, backwards_of(forwards, chunks),
      static_cast<size_t>(interleaved_warm_up(stage, stages, micro_batches, chunks, group)), 1);
}

Schedule overlapped(int stage, int stages, int micro_batches, int chunks, int group, int parts) {
  MG_ASSERT(stages >= 1 && stage >= 0 && stage < stages && chunks >= 1 && micro_batches >= 0);
  if (micro_batches == 0) return {};
  if (chunks > 1) check_groups(stages, micro_batches, group);
  const Schedule forwards = forwards_in_groups(micro_batches, chunks, group);
  const int warm_up = interleaved_warm_up(stage, stages, micro_batches, chunks, group) + 1;
  return alternating(forwards, backwards_of(forwards, chunks),
                     std::min(static_cast<size_t>(warm_up), forwards.size()), parts);
}

int most_parts(int64_t layers) { return static_cast<int>(1 + 2 * layers); }

std::string_view name(ScheduleKind kind) {
  switch (kind) {
    case ScheduleKind::one_f_one_b: return "1f1b";
    case ScheduleKind::interleaved: return "interleaved";
    case ScheduleKind::zero_bubble_h1: return "zb-h1";
    case ScheduleKind::zero_bubble_v: return "zb-v";
  }
  MG_ASSERT(false);
  return {};
}

int PipelineShape::virtual_stage(int stage, int chunk) const {
  MG_ASSERT(stage >= 0 && stage < stages && chunk >= 0 && chunk < chunks);
  if (kind == ScheduleKind::zero_bubble_v && chunk % 2 == 1)
    return (chunk + 1) * stages - 1 - stage;
  return chunk * stages + stage;
}

int PipelineShape::stage_of(int virtual_stage) const {
  MG_ASSERT(virtual_stage >= 0 && virtual_stage < virtual_stages());
  const bool upwards = kind == ScheduleKind::zero_bubble_v && chunk_of(virtual_stage) % 2 == 1;
  return upwards ? stages - 1 - virtual_stage % stages : virtual_stage % stages;
}

int PipelineShape::chunk_of(int virtual_stage) const {
  MG_ASSERT(virtual_stage >= 0 && virtual_stage < virtual_stages());
  return virtual_stage / stages;
}

Schedule PipelineShape::schedule(int stage, int micro_batches) const {
  if (parts > 1) {
    MG_ASSERT(kind == ScheduleKind::one_f_one_b || kind == ScheduleKind::interleaved);
    return overlapped(stage, stages, micro_batches, chunks, group == 0 ? stages : group, parts);
  }
  switch (kind) {
    case ScheduleKind::one_f_one_b:
      MG_ASSERT(chunks == 1);
      return one_f_one_b(stage, stages, micro_batches);
    case ScheduleKind::interleaved:
      return interleaved(stage, stages, micro_batches, chunks, group == 0 ? stages : group);
    case ScheduleKind::zero_bubble_h1:
      MG_ASSERT(chunks == 1);
      return zero_bubble_h1(stage, stages, micro_batches);
    case ScheduleKind::zero_bubble_v:
      MG_ASSERT(chunks == 2);
      return zero_bubble_v(stage, stages, micro_batches);
  }
  MG_ASSERT(false);
  return {};
}

Schedule PipelineShape::forward_only(int stage, int micro_batches) const {
  MG_ASSERT(stage >= 0 && stage < stages && micro_batches >= 0);
  if (kind != ScheduleKind::zero_bubble_v)
    return forwards_in_groups(micro_batches, chunks, group == 0 ? stages : group);
  Schedule forwards = schedule(stage, micro_batches);
  std::erase_if(forwards,
                [](const Action& action) { return action.kind != Action::Kind::forward; });
  return forwards;
}

int live_micro_batches(const Schedule& schedule, int chunk) {
  Schedule own;
  std::copy_if(schedule.begin(), schedule.end(), std::back_inserter(own),
               [chunk](const Action& action) { return action.chunk == chunk; });
  return live_micro_batches(own);
}

int live_micro_batches(const Schedule& schedule) {
  std::set<int> split;  // chunks
  for (const Action& action : schedule)
    if (action.kind == Action::Kind::weight) split.insert(action.chunk);
  int live = 0, most = 0;
  for (const Action& action : schedule) {
    const auto ends = split.contains(action.chunk) ? Action::Kind::weight : Action::Kind::backward;
    if (action.kind == Action::Kind::forward && action.begins()) most = std::max(most, ++live);
    if (action.kind == ends && action.ends()) --live;
  }
  return most;
}

}  // namespace megatron::parallel
