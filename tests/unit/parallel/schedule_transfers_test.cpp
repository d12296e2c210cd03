// A model checker for the steps of all stages, with synchronous and with buffered messages.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <string>

#include "base/error.h"
#include "parallel/pipeline.h"
#include "parallel/simulate.h"

namespace megatron::parallel {
namespace {

using Kind = Action::Kind;
using Steps = std::vector<std::vector<Step>>;

enum class Sends { end_when_received, end_at_once };

struct Message {
  bool gradient = false;
  int from_piece = 0, micro_batch = 0;
  bool operator==(const Message&) const = default;
};

bool is_send(const Transfer& transfer) {
  return transfer.kind == Transfer::Kind::send_activation ||
         transfer.kind == Transfer::Kind::send_gradient;
}

Message message_of(const PipelineShape& shape, int stage, const Transfer& transfer) {
  const bool gradient = transfer.kind == Transfer::Kind::send_gradient ||
                        transfer.kind == Transfer::Kind::receive_gradient;
  int virtual_stage = shape.virtual_stage(stage, transfer.chunk);
  if (!is_send(transfer)) virtual_stage += gradient ? 1 : -1;
  return {gradient, virtual_stage, transfer.micro_batch};
}

// Runs the stages by their steps alone, in an order of arrival that `random` chooses. The text
// describes what is wrong, and is empty if all stages end. (Stages make no choices of their own, so
// whether they end does not depend on the order, and the checks hold for every order.)
class Checker {
 public:
  Checker(const PipelineShape& shape, const Steps& steps, Sends sends, std::mt19937& random,
          int first_trained = 0)
      : shape_(shape),
        steps_(steps),
        sends_(sends),
        first_trained_(first_trained),
        random_(random),
        at_(steps.size()) {}

  std::string run() {
    while (wrong_.empty() && move()) {
    }
    for (size_t s = 0; wrong_.empty() && s < steps_.size(); ++s) {
      if (at_[s] < steps_[s].size()) wrong_ = fmt::format("stage {} waits at step {}", s, at_[s]);
    }
    for (const auto& [channel, messages] : channels_) {
      if (wrong_.empty() && !messages.empty()) wrong_ = "a message is never received";
    }
    return wrong_;
  }

 private:
  // Makes one step of a stage that can proceed.
  bool move() {
    const size_t first = random_() % steps_.size();
    for (size_t i = 0; i < steps_.size(); ++i) {
      if (advance((first + i) % steps_.size())) return true;
    }
    return false;
  }

  bool advance(size_t s) {
    if (at_[s] == steps_[s].size()) return false;
    const Step& step = steps_[s][at_[s]];
    const int stage = static_cast<int>(s);
    if (!step.is_transfer) {
      act(stage, step.action);
      ++at_[s];
      return true;
    }
    const Message message = message_of(shape_, stage, step.transfer);
    const auto peer = static_cast<size_t>(step.transfer.peer);
    if (!is_send(step.transfer)) {
      auto& channel = channels_[{step.transfer.peer, stage}];
      if (channel.empty()) return false;
      if (!(channel.front() == message)) wrong_ = "messages come in another order than awaited";
      channel.pop_front();
      arrived(stage, message);
      ++at_[s];
      return true;
    }
    if (made_.count({message.gradient, message.from_piece, message.micro_batch}) == 0)
      wrong_ = "sent before it was made";
    if (sends_ == Sends::end_at_once) {
      channels_[{stage, step.transfer.peer}].push_back(message);
      ++at_[s];
      return true;
    }
    if (at_[peer] == steps_[peer].size()) return false;
    const Step& theirs = steps_[peer][at_[peer]];
    if (!theirs.is_transfer || is_send(theirs.transfer) || theirs.transfer.peer != stage)
      return false;
    if (!(message_of(shape_, step.transfer.peer, theirs.transfer) == message))
      wrong_ = "messages come in another order than awaited";
    arrived(step.transfer.peer, message);
    ++at_[s];
    ++at_[peer];
    return true;
  }

  void arrived(int stage, const Message& message) {
    there_.insert({stage, message.gradient, message.from_piece, message.micro_batch});
  }

  // Inputs that an action needs and outputs that it makes. The inputs must be present.
  void act(int stage, const Action& action) {
    const int virtual_stage = shape_.virtual_stage(stage, action.chunk);
    if (action.kind == Kind::forward && action.begins())
      need(stage, false, virtual_stage - 1, action.micro_batch);
    if (action.kind == Kind::backward && action.begins() && virtual_stage >= first_trained_)
      need(stage, true, virtual_stage + 1, action.micro_batch);
    if (action.kind != Kind::weight && action.ends())
      made_.insert({action.kind == Kind::backward, virtual_stage, action.micro_batch});
  }

  void need(int stage, bool gradient, int from_piece, int micro_batch) {
    if (from_piece < 0 || from_piece == shape_.virtual_stages()) return;
    const bool here = shape_.stage_of(from_piece) == stage
                          ? made_.count({gradient, from_piece, micro_batch}) > 0
                          : there_.count({stage, gradient, from_piece, micro_batch}) > 0;
    if (!here) wrong_ = "an action runs before what it needs is there";
  }

  const PipelineShape& shape_;
  const Steps& steps_;
  const Sends sends_;
  const int first_trained_;
  std::mt19937& random_;
  std::vector<size_t> at_;
  std::map<std::pair<int, int>, std::deque<Message>> channels_;
  std::set<std::tuple<bool, int, int>> made_;
  std::set<std::tuple<int, bool, int, int>> there_;
  std::string wrong_;
};

std::string check(const PipelineShape& shape, const Steps& steps, std::mt19937& random,
                  int first_trained = 0) {
  for (const Sends sends : {Sends::end_when_received, Sends::end_at_once}) {
    const std::string wrong = Checker(shape, steps, sends, random, first_trained).run();
    if (!wrong.empty()) return wrong;
  }
  return "";
}

// A send follows the action that made its message, with only messages between them. A receive comes
// no later than the action that needs it. It could not come before the action above it, which
// begins (or ends, if receives are posted ahead) before the message is made.
void check_places(const PipelineShape& shape, const std::vector<Schedule>& stages,
                  const Steps& steps, Receives receives) {
  const auto intervals = timeline(shape, stages, kPlacingTimes);
  std::map<std::tuple<bool, int, int>, double> made;
  for (int s = 0; s < shape.stages; ++s) {
    const auto at = static_cast<size_t>(s);
    for (size_t i = 0; i < stages[at].size(); ++i) {
      const Action& action = stages[at][i];
      if (action.kind == Kind::weight) continue;
      made[{action.kind == Kind::backward, shape.virtual_stage(s, action.chunk),
            action.micro_batch}] = intervals[at][i].end;
    }
  }
  for (int s = 0; s < shape.stages; ++s) {
    const auto at = static_cast<size_t>(s);
    size_t action = 0;
    for (const Step& step : steps[at]) {
      if (!step.is_transfer) {
        EXPECT_EQ(step.action, stages[at][action]);
        ++action;
        continue;
      }
      const Message message = message_of(shape, s, step.transfer);
      const double when = made.at({message.gradient, message.from_piece, message.micro_batch});
      if (is_send(step.transfer)) {
        const Action& above = stages[at][action - 1];
        EXPECT_EQ(shape.virtual_stage(s, above.chunk), message.from_piece);
        EXPECT_EQ(above.micro_batch, message.micro_batch);
      } else if (action > 0) {
        if (receives == Receives::begun_ahead) {
          EXPECT_LE(intervals[at][action - 1].end, when);
        } else {
          EXPECT_LT(intervals[at][action - 1].begin, when);
        }
      }
    }
    EXPECT_EQ(action, stages[at].size());
  }
}

std::vector<Schedule> lists(const PipelineShape& shape, int micro_batches) {
  std::vector<Schedule> stages;
  for (int s = 0; s < shape.stages; ++s) stages.push_back(shape.schedule(s, micro_batches));
  return stages;
}

// All actions of a step, in a random order among those in which they can run.
std::vector<Schedule> random_lists(const PipelineShape& shape, int micro_batches,
                                   std::mt19937& random) {
  const bool deferred = random() % 2 == 0;
  std::vector<std::pair<int, Action>> ready;  // virtual stage
  const auto add = [&](int virtual_stage, Kind kind, int m) {
    ready.push_back({virtual_stage, {kind, shape.chunk_of(virtual_stage), m}});
  };
  for (int m = 0; m < micro_batches; ++m) add(0, Kind::forward, m);
  std::vector<Schedule> stages(static_cast<size_t>(shape.stages));
  while (!ready.empty()) {
    std::swap(ready[random() % ready.size()], ready.back());
    const auto [virtual_stage, action] = ready.back();
    ready.pop_back();
    stages[static_cast<size_t>(shape.stage_of(virtual_stage))].push_back(action);
    if (action.kind == Kind::forward) {
      const bool last = virtual_stage + 1 == shape.virtual_stages();
      add(last ? virtual_stage : virtual_stage + 1, last ? Kind::backward : Kind::forward,
          action.micro_batch);
    } else if (action.kind == Kind::backward) {
      if (deferred) add(virtual_stage, Kind::weight, action.micro_batch);
      if (virtual_stage > 0) add(virtual_stage - 1, Kind::backward, action.micro_batch);
    }
  }
  return stages;
}

TEST(Transfers, AThousandRandomSchedulesNeverDeadlock) {
  std::mt19937 random(7);
  for (int i = 0; i < 1000; ++i) {
    const bool v = random() % 3 == 0;
    const PipelineShape shape{v ? ScheduleKind::zero_bubble_v : ScheduleKind::interleaved,
                              static_cast<int>(1 + random() % 8),
                              v ? 2 : static_cast<int>(1 + random() % 4), 0};
    const auto stages = random_lists(shape, static_cast<int>(1 + random() % 12), random);
    for (const Receives receives : {Receives::waited_for, Receives::begun_ahead}) {
      const Steps steps = with_transfers(shape, stages, receives);
      ASSERT_EQ(check(shape, steps, random), "") << i;
      check_places(shape, stages, steps, receives);
      const int first = static_cast<int>(random() % 32) % shape.virtual_stages();
      const Steps fewer = with_transfers(shape, stages, receives, first);
      ASSERT_EQ(check(shape, fewer, random, first), "") << i;
      check_places(shape, stages, fewer, receives);
      for (int s = 0; s < shape.stages; ++s)
        for (const Step& step : fewer[static_cast<size_t>(s)])
          EXPECT_TRUE(!step.is_transfer || step.transfer.kind != Transfer::Kind::send_gradient ||
                      shape.virtual_stage(s, step.transfer.chunk) > first);
    }
  }
}

void check_kind(ScheduleKind kind, int chunks, std::mt19937& random, int parts = 1) {
  for (int stages = 1; stages <= 8; ++stages) {
    const PipelineShape shape{kind, stages, chunks, 0, parts};
    for (const int micro_batches : {1, 2, 3, 4, 6, 7, 8, 9, 13, 16, 20}) {
      const int rest = micro_batches % stages;
      if (kind == ScheduleKind::interleaved && (rest != 0 || micro_batches < stages)) continue;
      const auto all = lists(shape, micro_batches);
      for (const Receives receives : {Receives::waited_for, Receives::begun_ahead}) {
        const Steps steps = with_transfers(shape, all, receives);
        ASSERT_EQ(check(shape, steps, random), "")
            << name(kind) << " " << stages << " " << micro_batches;
        check_places(shape, all, steps, receives);
      }
      std::vector<Schedule> forwards;
      for (int s = 0; s < stages; ++s) forwards.push_back(shape.forward_only(s, micro_batches));
      ASSERT_EQ(check(shape, with_transfers(shape, forwards), random), "");
    }
  }
}

TEST(Transfers, NoBuiltInScheduleDeadlocks) {
  std::mt19937 random(11);
  check_kind(ScheduleKind::one_f_one_b, 1, random);
  check_kind(ScheduleKind::zero_bubble_h1, 1, random);
  check_kind(ScheduleKind::zero_bubble_v, 2, random);
  for (int chunks = 1; chunks <= 4; ++chunks) check_kind(ScheduleKind::interleaved, chunks, random);
  check_kind(ScheduleKind::one_f_one_b, 1, random, 3);
  for (int chunks = 2; chunks <= 4; ++chunks)
    check_kind(ScheduleKind::interleaved, chunks, random, 3);
}

// With two stages, the previous and the next stage are the same: activations and gradients share
// one channel in each direction, and both ends see the same order.
TEST(Transfers, TwoStagesSeeOneOrderOfMessages) {
  const PipelineShape shape{ScheduleKind::interleaved, 2, 3, 0};
  const Steps steps = with_transfers(shape, lists(shape, 8));
  for (const int from : {0, 1}) {
    std::vector<Message> sent, received;
    for (const Step& step : steps[static_cast<size_t>(from)]) {
      if (step.is_transfer && is_send(step.transfer))
        sent.push_back(message_of(shape, from, step.transfer));
    }
    for (const Step& step : steps[static_cast<size_t>(1 - from)]) {
      if (step.is_transfer && !is_send(step.transfer))
        received.push_back(message_of(shape, 1 - from, step.transfer));
    }
    EXPECT_EQ(sent.size(), from == 0 ? 8u * 3 + 8 * 2 : 8u * 2 + 8 * 3);
    EXPECT_TRUE(sent == received);
  }
}

TEST(Transfers, AStageThatHoldsBothPiecesSendsNothing) {
  const PipelineShape v{ScheduleKind::zero_bubble_v, 3, 2, 0};
  const auto of_turn = with_transfers(v, lists(v, 4), 2);
  const auto transfers = std::count_if(of_turn.begin(), of_turn.end(),
                                       [](const Step& step) { return step.is_transfer; });
  EXPECT_EQ(transfers, 4 * 4);  // in and out, forward and backward
  const PipelineShape alone{ScheduleKind::interleaved, 1, 3, 0};
  for (const Step& step : with_transfers(alone, lists(alone, 4), 0)) EXPECT_FALSE(step.is_transfer);
}

// Tests the checker itself: it finds wrong orders.
TEST(Transfers, PlantedBadOrdersAreFound) {
  std::mt19937 random(3);
  const PipelineShape shape{ScheduleKind::interleaved, 2, 2, 0};
  const Steps good = with_transfers(shape, lists(shape, 4));
  ASSERT_EQ(check(shape, good, random), "");

  const auto nth = [&](Steps& steps, size_t stage, bool send, int n) -> Step& {
    for (Step& step : steps[stage]) {
      if (step.is_transfer && is_send(step.transfer) == send && n-- == 0) return step;
    }
    throw InternalError("no such step");
  };
  Steps crossed = good;  // two receives are exchanged
  std::swap(nth(crossed, 1, false, 2), nth(crossed, 1, false, 3));
  EXPECT_NE(check(shape, crossed, random), "");

  Steps lost = good;
  std::erase_if(lost[1], [n = 0](const Step& step) mutable {
    return step.is_transfer && is_send(step.transfer) && n++ == 0;
  });
  EXPECT_NE(check(shape, lost, random), "");

  Steps late = good;  // a receive after the action that needs it
  for (size_t i = 0; i + 1 < late[1].size(); ++i) {
    if (!late[1][i].is_transfer || late[1][i + 1].is_transfer) continue;
    std::swap(late[1][i], late[1][i + 1]);
    break;
  }
  EXPECT_NE(check(shape, late, random), "");

  // Each receive comes right before the action that needs it: stages that send to each other at the
  // same time only finish if sends do not block.
  const PipelineShape pair{ScheduleKind::one_f_one_b, 2, 1, 0};
  const auto moved = [](Transfer::Kind kind, int peer, int m) {
    return Step{.is_transfer = true, .action = {}, .transfer = {kind, peer, 0, m}};
  };
  Steps late_receives(2);
  for (const Action& action : pair.schedule(0, 2)) {
    const bool forward = action.kind == Kind::forward;
    if (!forward)
      late_receives[0].push_back(moved(Transfer::Kind::receive_gradient, 1, action.micro_batch));
    late_receives[0].push_back({.is_transfer = false, .action = action, .transfer = {}});
    if (forward)
      late_receives[0].push_back(moved(Transfer::Kind::send_activation, 1, action.micro_batch));
  }
  for (const Action& action : pair.schedule(1, 2)) {
    const bool forward = action.kind == Kind::forward;
    if (forward)
      late_receives[1].push_back(moved(Transfer::Kind::receive_activation, 0, action.micro_batch));
    late_receives[1].push_back({.is_transfer = false, .action = action, .transfer = {}});
    if (!forward)
      late_receives[1].push_back(moved(Transfer::Kind::send_gradient, 0, action.micro_batch));
  }
  EXPECT_NE(Checker(pair, late_receives, Sends::end_when_received, random).run(), "");
  EXPECT_EQ(Checker(pair, late_receives, Sends::end_at_once, random).run(), "");
}

}  // namespace
}  // namespace megatron::parallel
