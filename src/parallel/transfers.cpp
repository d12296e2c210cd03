#include <algorithm>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "parallel/pipeline.h"
#include "parallel/simulate.h"

namespace megatron::parallel {
namespace {

using Kind = Action::Kind;

// A message from one stage to another.
struct Message {
  double made = 0;  // simulated time of its creation
  bool gradient = false;
  int from_piece = 0, to_piece = 0, micro_batch = 0;

  auto order() const { return std::tie(made, gradient, from_piece, micro_batch); }
};

// Returns the messages in the one order in which all stages take part in them.
std::vector<Message> messages_of(const PipelineShape& shape, const std::vector<Schedule>& stages,
                                 const std::vector<std::vector<Interval>>& intervals,
                                 int first_trained) {
  std::vector<Message> messages;
  for (int s = 0; s < shape.stages; ++s) {
    const Schedule& list = stages[static_cast<size_t>(s)];
    for (size_t i = 0; i < list.size(); ++i) {
      if (list[i].kind == Kind::weight || !list[i].ends()) continue;
      const bool gradient = list[i].kind == Kind::backward;
      const int from = shape.virtual_stage(s, list[i].chunk);
      const int to = gradient ? from - 1 : from + 1;
      if (gradient && to < first_trained) continue;
      if (to == shape.virtual_stages() || shape.stage_of(to) == s) continue;
      const double made = intervals[static_cast<size_t>(s)][i].end;
      messages.push_back({made, gradient, from, to, list[i].micro_batch});
    }
  }
  std::sort(messages.begin(), messages.end(),
            [](const Message& a, const Message& b) { return a.order() < b.order(); });
  return messages;
}

Step as_step(const PipelineShape& shape, const Message& message, int stage) {
  const int from = shape.stage_of(message.from_piece), to = shape.stage_of(message.to_piece);
  const bool sends = from == stage;
  Step step;
  step.is_transfer = true;
  if (message.gradient) {
    step.transfer.kind = sends ? Transfer::Kind::send_gradient : Transfer::Kind::receive_gradient;
  } else {
    step.transfer.kind =
        sends ? Transfer::Kind::send_activation : Transfer::Kind::receive_activation;
  }
  step.transfer.peer = sends ? to : from;
  step.transfer.chunk = shape.chunk_of(sends ? message.from_piece : message.to_piece);
  step.transfer.micro_batch = message.micro_batch;
  return step;
}

std::vector<Step> steps_of(const PipelineShape& shape, const Schedule& list,
                           const std::vector<Interval>& intervals,
                           const std::vector<Message>& messages, int stage, Receives receives) {
  std::vector<Step> steps;
  size_t action = 0;
  const auto precedes = [&](const Interval& interval, double made) {
    return receives == Receives::begun_ahead ? interval.end <= made : interval.begin < made;
  };
  for (const Message& message : messages) {
    if (shape.stage_of(message.from_piece) != stage && shape.stage_of(message.to_piece) != stage)
      continue;
    for (; action < list.size() && precedes(intervals[action], message.made); ++action)
      steps.push_back({.is_transfer = false, .action = list[action], .transfer = {}});
    steps.push_back(as_step(shape, message, stage));
  }
  for (; action < list.size(); ++action)
    steps.push_back({.is_transfer = false, .action = list[action], .transfer = {}});
  return steps;
}

}  // namespace

// Actions and messages of all stages are put in one order: messages by the time when they are made,
// actions by the time when they begin (or, if receives are begun ahead, end), in simulated time.
// Each stage's steps are the ones that concern it, in that order. So the first step that has not
// been made can always be made, and two stages see the messages between them in the same order.
std::vector<std::vector<Step>> with_transfers(const PipelineShape& shape,
                                              const std::vector<Schedule>& stages,
                                              Receives receives, int first_trained) {
  const auto intervals = timeline(shape, stages, kPlacingTimes);
  const std::vector<Message> messages = messages_of(shape, stages, intervals, first_trained);
  std::vector<std::vector<Step>> steps;
  for (int s = 0; s < shape.stages; ++s) {
    const auto at = static_cast<size_t>(s);
    steps.push_back(steps_of(shape, stages[at], intervals[at], messages, s, receives));
  }
  return steps;
}

std::vector<Step> with_transfers(const PipelineShape& shape, const std::vector<Schedule>& stages,
                                 int stage, Receives receives, int first_trained) {
  MG_ASSERT(stage >= 0 && stage < shape.stages);
  return std::move(
      with_transfers(shape, stages, receives, first_trained)[static_cast<size_t>(stage)]);
}

}  // namespace megatron::parallel
