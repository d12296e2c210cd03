// Pipeline schedules as pure functions: the list of actions of one stage. The pipeline executes it
// (parallel/pipeline.h), the planner simulates it, and tests check it without a model.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace megatron::parallel {

// backward computes the input's gradient and, unless the schedule has an action `weight` for the
// same chunk and micro-batch, the weights' gradients.
struct Action {
  enum class Kind { forward, backward, weight } kind = Kind::forward;
  int chunk = 0;  // index among the stage's chunks
  int micro_batch = 0;
  // The range of the chunk's segments: forward and backward may be cut where calls to other ranks
  // are in flight, and continue in a later action. Parts of a chunk with fewer such places are
  // empty.
  int part = 0, parts = 1;

  bool begins() const { return part == 0; }
  bool ends() const { return part + 1 == parts; }
  bool operator==(const Action&) const = default;
};
using Schedule = std::vector<Action>;

// 1F1B (Narayanan et al. 2019, PipeDream-Flush): min(stages - stage - 1, micro_batches) warm-up
// forwards, then alternately one forward and one backward, then the remaining backwards. With one
// stage: F0 B0 F1 B1 ...
Schedule one_f_one_b(int stage, int stages, int micro_batches);

// Interleaved 1F1B (Narayanan et al. 2021, section 2.2): each stage holds `chunks` chunks, which
// process groups of `group` micro-batches in turn, in Megatron-LM's order. Throws Error, naming the
// numbers and flags, unless stages <= group <= micro_batches and the size of an incomplete last
// group is 0 or at least `stages`.
Schedule interleaved(int stage, int stages, int micro_batches, int chunks, int group);
// Number of forwards before the first backward's forward: 2 (stages - stage - 1) + (chunks - 1)
// group, at most all of them.
int interleaved_warm_up(int stage, int stages, int micro_batches, int chunks, int group);

// 1F1B and interleaved 1F1B in which each forward of the steady state alternates, part by part,
// with the backward of another micro-batch, so that the calls of one are in flight while the other
// computes (DeepSeek-AI 2024, section 3.2.1, for one direction). warm_up: number of forwards
// before, one more than interleaved_warm_up() (chunks 1: than 1F1B's, too), since the two must not
// be of the same micro-batch; group: of interleaved.
Schedule overlapped(int stage, int stages, int micro_batches, int chunks, int group, int parts);

// Maximum number of parts of a chunk with this many layers: a layer of experts may be cut in two
// places.
int most_parts(int64_t layers);

// ZB-H1 (Qi et al. 2024, section 2.2): 1F1B's memory, with its idle time cut to a third by
// deferring weight gradients.
Schedule zero_bubble_h1(int stage, int stages, int micro_batches);

// ZB-V (Qi et al. 2024, section 6): two chunks per stage in the form of a V (chunk 0 goes down the
// stages, chunk 1 back up), 1F1B's memory, and no idle time if forward, input and weight gradients
// take equally long.
Schedule zero_bubble_v(int stage, int stages, int micro_batches);

// Schedules of PipelineShape, as named by --pipeline-schedule.
enum class ScheduleKind { one_f_one_b, interleaved, zero_bubble_h1, zero_bubble_v };
std::string_view name(ScheduleKind kind);  // "1f1b", "interleaved", "zb-h1", "zb-v"

// Stages, chunks and their order along the model.
struct PipelineShape {
  ScheduleKind kind = ScheduleKind::one_f_one_b;
  int stages = 1, chunks = 1;  // chunks: per stage
  int group = 0;               // for interleaved; 0: stages
  int parts = 1;  // above 1: overlapped() of 1f1b and interleaved with this many parts per chunk

  // Position of a chunk along the model, 0 .. stages * chunks - 1, and the reverse mapping.
  // Interleaved: chunk c of stage s is virtual stage c * stages + s; zb-v: chunk 0 of stage s is
  // virtual stage s, chunk 1 is 2 stages - 1 - s.
  int virtual_stages() const { return stages * chunks; }
  int virtual_stage(int stage, int chunk) const;
  int stage_of(int virtual_stage) const;
  int chunk_of(int virtual_stage) const;

  Schedule schedule(int stage, int micro_batches) const;
  // Only the forwards of all micro-batches through all chunks, in the order of the kind, for
  // evaluation.
  Schedule forward_only(int stage, int micro_batches) const;
};

// Maximum number of micro-batches of one chunk that are between forward and the end of backward at
// once (including weight if there is such an action).
int live_micro_batches(const Schedule& schedule, int chunk);
// The same over all chunks.
int live_micro_batches(const Schedule& schedule);

// Time of a step in simulated time: each action takes the given time (backward: input gradients,
// and weights' too if the stage's list has no action for them), a message takes `transfer`,
// overlapped with compute. Throws Error, naming stage and action, if the stages wait for one
// another forever.
struct ActionTimes {
  double forward = 1, input = 1, weight = 1, transfer = 0;
};
struct Simulated {
  double seconds = 0;        // of the whole step
  std::vector<double> idle;  // per stage
};
Simulated simulate(const PipelineShape& shape, int micro_batches, const ActionTimes& times = {});
// Simulates arbitrary action lists, one per stage.
Simulated simulate(const PipelineShape& shape, const std::vector<Schedule>& stages,
                   const ActionTimes& times = {});

}  // namespace megatron::parallel
