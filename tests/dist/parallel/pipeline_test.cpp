#include "parallel/pipeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <map>
#include <new>
#include <string>
#include <thread>
#include <tuple>

#include "base/clock.h"
#include "base/error.h"
#include "comm/async.h"
#include "comm/delaying.h"
#include "comm/traffic.h"
#include "dist/ranks.h"

namespace {

// Heap requests of more than 4 KB.
std::atomic<int> large_requests = 0;

}  // namespace

// Both forms are replaced, because the address sanitizer has its own nothrow form, which does not
// call malloc.
[[gnu::noinline]] void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  if (bytes > 4096) ++large_requests;
  return std::malloc(bytes);
}
[[gnu::noinline]] void* operator new(size_t bytes) {
  if (void* memory = ::operator new(bytes, std::nothrow)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace megatron::parallel {
namespace {

constexpr int64_t kHidden = 3;

// A model of virtual stages y = scale x + shift. The loss is the sum of the last virtual stage's
// output.
double scale_of(int virtual_stage) { return 0.5 + 0.25 * virtual_stage; }
double shift_of(int virtual_stage) { return 0.125 * virtual_stage - 0.3; }
double input_of(int micro_batch, size_t element) {
  return std::sin(1 + 3 * micro_batch + static_cast<double>(element));
}

struct Gradients {
  double scale = 0, shift = 0;
  bool operator==(const Gradients&) const = default;
};

// Rows of micro-batch m.
struct Rows {
  bool differ = false;
  int64_t of(int micro_batch) const { return differ ? 1 + micro_batch % 3 : 2; }
};

// The one tensor of a message, or none.
Tensor only(const Payload& payload) {
  EXPECT_LE(payload.size(), 1u);
  return payload.empty() ? Tensor() : payload[0];
}
Payload payload(Tensor tensor) { return tensor.defined() ? Payload{std::move(tensor)} : Payload(); }

class ToyWork : public StageWork {
 public:
  ToyWork(const PipelineShape& shape, int stage, Runtime& runtime, Rows rows)
      : shape_(shape),
        stage_(stage),
        runtime_(runtime),
        rows_(rows),
        gradients(static_cast<size_t>(shape.chunks)) {}

  // All work is in the first part, and the last part returns the result.
  Payload forward(const Action& action, const Payload& input) override {
    if (action.begins())
      made_[action.kind] = forward_of(action.chunk, action.micro_batch, only(input));
    return action.ends() ? payload(std::exchange(made_[action.kind], {})) : Payload();
  }
  Payload backward(const Action& action, const Payload& gradient, bool weights) override {
    if (action.begins())
      made_[action.kind] = backward_of(action.chunk, action.micro_batch, only(gradient), weights);
    return action.ends() ? payload(std::exchange(made_[action.kind], {})) : Payload();
  }

  Tensor forward_of(int chunk, int micro_batch, const Tensor& input) {
    const int virtual_stage = shape_.virtual_stage(stage_, chunk);
    EXPECT_EQ(input.defined(), virtual_stage != 0);
    std::vector<double> x(static_cast<size_t>(rows_.of(micro_batch) * kHidden));
    if (input.defined()) {
      EXPECT_EQ(input.shape(), (Shape{rows_.of(micro_batch), kHidden}));
      x = to_doubles(input);
    } else {
      for (size_t i = 0; i < x.size(); ++i) x[i] = input_of(micro_batch, i);
    }
    inputs_[{chunk, micro_batch}] = x;
    for (double& value : x) value = scale_of(virtual_stage) * value + shift_of(virtual_stage);
    if (virtual_stage + 1 < shape_.virtual_stages()) return tensor_of(micro_batch, x);
    for (const double value : x) loss += value;
    return {};
  }

  Tensor backward_of(int chunk, int micro_batch, const Tensor& gradient, bool weights) {
    const int virtual_stage = shape_.virtual_stage(stage_, chunk);
    EXPECT_EQ(gradient.defined(), virtual_stage + 1 < shape_.virtual_stages());
    std::vector<double> dy(inputs_.at({chunk, micro_batch}).size(), 1.0);
    if (gradient.defined()) dy = to_doubles(gradient);
    output_gradients_[{chunk, micro_batch}] = dy;
    if (weights) weight(chunk, micro_batch);
    for (double& value : dy) value *= scale_of(virtual_stage);
    return virtual_stage == 0 ? Tensor() : tensor_of(micro_batch, dy);
  }

  void weight(int chunk, int micro_batch) override {
    const std::vector<double>&x = inputs_.at({chunk, micro_batch}),
          &dy = output_gradients_.at({chunk, micro_batch});
    Gradients& sum = gradients[static_cast<size_t>(chunk)];
    for (size_t i = 0; i < x.size(); ++i) {
      sum.scale += x[i] * dy[i];
      sum.shift += dy[i];
    }
    inputs_.erase({chunk, micro_batch});
    output_gradients_.erase({chunk, micro_batch});
  }

  Payload receive_into(int, int micro_batch, bool) override {
    return {testing::make(runtime_, {rows_.of(micro_batch), kHidden}, DType::f64)};
  }

  bool has_left() const { return !inputs_.empty() || !output_gradients_.empty(); }

 private:
  Tensor tensor_of(int micro_batch, const std::vector<double>& values) {
    return testing::make(runtime_, {rows_.of(micro_batch), kHidden}, DType::f64, values);
  }

  const PipelineShape shape_;
  const int stage_;
  Runtime& runtime_;
  const Rows rows_;
  std::map<std::pair<int, int>, std::vector<double>> inputs_, output_gradients_;
  std::map<Action::Kind, Tensor> made_;

 public:
  std::vector<Gradients> gradients;  // one per chunk
  double loss = 0;
};

// Results of one rank that runs all virtual stages, one micro-batch after another. The bits must
// match.
struct Expected {
  std::vector<Gradients> of_piece;
  double loss = 0;
};
Expected expected(int virtual_stages, int micro_batches, Rows rows) {
  Expected result;
  result.of_piece.resize(static_cast<size_t>(virtual_stages));
  for (int m = 0; m < micro_batches; ++m) {
    std::vector<std::vector<double>> x(static_cast<size_t>(virtual_stages + 1));
    x[0].resize(static_cast<size_t>(rows.of(m) * kHidden));
    for (size_t i = 0; i < x[0].size(); ++i) x[0][i] = input_of(m, i);
    for (int p = 0; p < virtual_stages; ++p) {
      const auto at = static_cast<size_t>(p);
      for (const double value : x[at]) x[at + 1].push_back(scale_of(p) * value + shift_of(p));
    }
    for (const double value : x.back()) result.loss += value;
    std::vector<double> dy(x[0].size(), 1.0);
    for (int p = virtual_stages - 1; p >= 0; --p) {
      const auto at = static_cast<size_t>(p);
      for (size_t i = 0; i < dy.size(); ++i) {
        result.of_piece[at].scale += x[at][i] * dy[i];
        result.of_piece[at].shift += dy[i];
        dy[i] *= scale_of(p);
      }
    }
  }
  return result;
}

// Builds the groups of a pipeline and the pipeline on all ranks.
struct OnStage {
  OnStage(comm::Group& world, Runtime& runtime, const PipelineShape& shape,
          const PipelineOptions& options)
      : async(options.overlap && world.size() > 1
                  ? comm::async(world.split(0, world.rank(), world.size()))
                  : nullptr),
        pipeline(shape, world.size() > 1 ? &world : nullptr, async.get(), runtime, options) {}

  std::unique_ptr<comm::Group> async;
  Pipeline pipeline;
};

void check_run(const PipelineShape& shape, const std::vector<int>& micro_batch_counts,
               const PipelineOptions& options, Rows rows) {
  testing::each_rank(shape.stages, [&](comm::Group& world, Runtime& runtime) {
    OnStage on(world, runtime, shape, options);
    EXPECT_EQ(on.pipeline.stage(), world.rank());
    for (const int micro_batches : micro_batch_counts) {
      EXPECT_LE(runtime.arena(MemoryClass::activations).in_use(), 128);  // at most the last call's
      const Expected wanted = expected(shape.virtual_stages(), micro_batches, rows);
      ToyWork work(shape, world.rank(), runtime, rows);
      Schedule executed;
      on.pipeline.run(micro_batches, work, [&](const Action& a) { executed.push_back(a); });
      EXPECT_EQ(executed, shape.schedule(world.rank(), micro_batches));
      EXPECT_FALSE(work.has_left());
      for (int chunk = 0; chunk < shape.chunks; ++chunk) {
        const auto virtual_stage = static_cast<size_t>(shape.virtual_stage(world.rank(), chunk));
        EXPECT_EQ(work.gradients[static_cast<size_t>(chunk)], wanted.of_piece[virtual_stage]);
      }
      const int last = shape.stage_of(shape.virtual_stages() - 1);
      if (world.rank() == last) {
        EXPECT_EQ(work.loss, wanted.loss);
      }

      ToyWork evaluation(shape, world.rank(), runtime, rows);
      on.pipeline.run_forward(micro_batches, evaluation);
      if (world.rank() == last) {
        EXPECT_EQ(evaluation.loss, wanted.loss);
      }
    }
  });
}

void check_all(const PipelineOptions& options, Rows rows = {}) {
  for (int stages = 1; stages <= 4; ++stages) {
    check_run({ScheduleKind::one_f_one_b, stages, 1, 0}, {1, 2, 7, 2}, options, rows);
    check_run({ScheduleKind::one_f_one_b, stages, 1, 0, 3}, {1, 2, 7, 2}, options, rows);
    check_run({ScheduleKind::interleaved, stages, 2, 0, 3}, {stages, 3 * stages}, options, rows);
    check_run({ScheduleKind::zero_bubble_h1, stages, 1, 0}, {1, 5, 8, 5}, options, rows);
    check_run({ScheduleKind::zero_bubble_v, stages, 2, 0}, {1, 4, 9, 4}, options, rows);
    for (int chunks = 1; chunks <= 4; ++chunks) {
      check_run({ScheduleKind::interleaved, stages, chunks, 0}, {stages, 3 * stages, stages},
                options, rows);
      check_run({ScheduleKind::interleaved, stages, chunks, stages + 1},
                {stages + 1, 2 * stages + 1 + stages % 2}, options, rows);
    }
  }
}

TEST(Pipeline, EverySchedulesGradientsAreOneRanksBitForBit) { check_all({.overlap = false}); }

TEST(Pipeline, BesideTheCompute) { check_all({.overlap = true}); }

TEST(Pipeline, MicroBatchesOfOtherShapes) {
  check_all({.overlap = false}, {.differ = true});
  check_all({.overlap = true}, {.differ = true});
}

// A stage whose work fails in some action.
class FailingWork final : public ToyWork {
 public:
  using ToyWork::ToyWork;
  Payload backward(const Action& action, const Payload& gradient, bool weights) override {
    MG_CHECK(action.micro_batch != 2, "micro-batch 2 fails");
    return ToyWork::backward(action, gradient, weights);
  }
};

TEST(Pipeline, AStageThatFailsEndsAll) {
  for (const bool overlap : {false, true}) {
    const PipelineShape shape{ScheduleKind::zero_bubble_v, 4, 2, 0};
    try {
      testing::each_rank(4, [&](comm::Group& world, Runtime& runtime) {
        OnStage on(world, runtime, shape, {overlap});
        FailingWork failing(shape, world.rank(), runtime, {});
        ToyWork fine(shape, world.rank(), runtime, {});
        on.pipeline.run(8, world.rank() == 1 ? failing : fine);
      });
      FAIL() << "no rank failed";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("micro-batch 2 fails"), std::string::npos)
          << error.what();
    }
  }
}

TEST(Pipeline, StagesOfDifferentTypesAreToldApart) {
  class Wide final : public ToyWork {
   public:
    Wide(const PipelineShape& shape, int stage, Runtime& runtime)
        : ToyWork(shape, stage, runtime, {}), of(runtime) {}
    Payload receive_into(int, int, bool) override {
      return {testing::make(of, {2, kHidden}, DType::f32)};
    }
    Runtime& of;
  };
  const PipelineShape shape{ScheduleKind::one_f_one_b, 2, 1, 0};
  EXPECT_THROW(testing::each_rank(2,
                                  [&](comm::Group& world, Runtime& runtime) {
                                    OnStage on(world, runtime, shape, {false});
                                    Wide work(shape, world.rank(), runtime);
                                    on.pipeline.run(2, work);
                                  }),
               Error);
}

class Calls final : public comm::TrafficListener {
 public:
  void communicated(const comm::Traffic& traffic) override {
    made.push_back(fmt::format("{} {}", traffic.collective, traffic.call));
  }
  std::vector<std::string> made;
};

// Both ends name a message by the chunk that made it.
TEST(Pipeline, MessagesHaveNames) {
  const PipelineShape shape{ScheduleKind::interleaved, 2, 2, 0};
  testing::each_rank(2, [&](comm::Group& world, Runtime& runtime) {
    Calls calls;
    const auto group = comm::observed(world, calls);
    Pipeline pipeline(shape, group.get(), nullptr, runtime, {false});
    ToyWork work(shape, world.rank(), runtime, {});
    pipeline.run(2, work);
    EXPECT_EQ(calls.made.size(), 2u * 6);
    const std::string mine = world.rank() == 0 ? "send" : "recv",
                      theirs = world.rank() == 0 ? "recv" : "send";
    for (const std::string& call :
         // Pieces 0 .. 3 are on stages 0, 1, 0, 1.
         {mine + " activation, micro-batch 1, chunk 0",
          theirs + " activation, micro-batch 0, chunk 0",
          mine + " activation, micro-batch 0, chunk 1",
          theirs + " gradient, micro-batch 1, chunk 1", mine + " gradient, micro-batch 1, chunk 1",
          theirs + " gradient, micro-batch 0, chunk 0"}) {
      EXPECT_EQ(std::count(calls.made.begin(), calls.made.end(), call), 1) << call;
    }
  });
}

// Spends time in each action without using its core.
class SlowWork final : public ToyWork {
 public:
  using ToyWork::ToyWork;
  static constexpr std::chrono::milliseconds kAction{4};
  Payload forward(const Action& action, const Payload& input) override {
    std::this_thread::sleep_for(kAction);
    return ToyWork::forward(action, input);
  }
  Payload backward(const Action& action, const Payload& gradient, bool weights) override {
    std::this_thread::sleep_for(kAction);
    return ToyWork::backward(action, gradient, weights);
  }
  void weight(int chunk, int micro_batch) override {
    std::this_thread::sleep_for(kAction);
    ToyWork::weight(chunk, micro_batch);
  }
};

double seconds_of_step(const PipelineShape& shape, bool overlap, bool forward_only) {
  double seconds = 0;
  testing::each_rank(shape.stages, [&](comm::Group& world, Runtime& runtime) {
    comm::Delaying delaying(world, std::chrono::milliseconds(3));
    OnStage on(delaying, runtime, shape, {overlap});
    SlowWork work(shape, world.rank(), runtime, {});
    world.barrier("begin");
    const double begin = now_seconds();
    if (forward_only) on.pipeline.run_forward(12, work);
    else on.pipeline.run(12, work);
    world.barrier("end");
    if (world.rank() == 0) seconds = now_seconds() - begin;
  });
  return seconds;
}

// Every call takes three quarters of an action's time. An attempt disturbed by other work on the
// machine proves nothing, so there are many attempts.
TEST(Pipeline, MessagesBesideTheComputeCostLittle) {
  const PipelineShape zero_bubble{ScheduleKind::zero_bubble_v, 4, 2, 0},
      plain{ScheduleKind::one_f_one_b, 2, 1, 0};
  for (const auto& [shape, forward_only, share] :
       {std::tuple{plain, true, 0.75}, std::tuple{zero_bubble, false, 0.75}}) {
    double best = 1;
    for (int attempt = 0; attempt < 12 && best >= share; ++attempt) {
      const double async = seconds_of_step(shape, true, forward_only),
                   waited = seconds_of_step(shape, false, forward_only);
      best = std::min(best, async / waited);
      fmt::print("{}: {:.1f} ms overlapped with compute, {:.1f} ms without\n", name(shape.kind),
                 1e3 * async, 1e3 * waited);
    }
    EXPECT_LT(best, share);
  }
}

// A later step of the same size makes no large heap request.
TEST(Pipeline, StepsAfterTheFirstUseItsMemory) {
  const PipelineShape shape{ScheduleKind::interleaved, 2, 4, 0};
  testing::each_rank(2, [&](comm::Group& world, Runtime& runtime) {
    OnStage on(world, runtime, shape, {});
    ToyWork work(shape, world.rank(), runtime, {});
    on.pipeline.run(32, work);
    world.barrier("first step");
    if (world.rank() == 0) large_requests = 0;
    world.barrier("counting");
    on.pipeline.run(32, work);
    world.barrier("second step");
    EXPECT_EQ(large_requests.load(), 0);
  });
}

}  // namespace
}  // namespace megatron::parallel
