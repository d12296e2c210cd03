#include "parallel/gradient_buffer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "dist/ranks.h"
#include "kernels/table.h"

namespace megatron::parallel {
namespace {

using comm::Group;
using testing::each_rank;
using testing::make;

const std::vector<Shape> kShapes = {{7, 5}, {3}, {16, 4}, {1}, {33}, {2, 3, 4}};
constexpr size_t kTied = 0, kFrozen = 3, kUnused = 4;

// The gradient of one use of one parameter in one micro-batch of one rank: sums of these round.
double gradient(int rank, size_t parameter, size_t use, int micro_batch, int64_t i) {
  return std::sin(static_cast<double>(i) + 3.1 * rank +
                  0.7 * static_cast<double>(parameter * 2 + use) + 11.0 * micro_batch) *
         std::pow(10.0, static_cast<double>(i % 5));
}

std::vector<double> gradients(int rank, size_t parameter, size_t use, int micro_batch) {
  std::vector<double> values;
  for (int64_t i = 0; i < kShapes[parameter].elements(); ++i) {
    values.push_back(gradient(rank, parameter, use, micro_batch, i));
  }
  return values;
}

// As the header tells: micro-batches, then uses, then ranks, each in order.
template <class T>
std::vector<double> serial_sum(int ranks, size_t parameter, int micro_batches) {
  std::vector<double> sums;
  if (parameter == kUnused)
    return std::vector<double>(static_cast<size_t>(kShapes[parameter].elements()));
  for (int64_t i = 0; i < kShapes[parameter].elements(); ++i) {
    T total = 0;
    for (int r = 0; r < ranks; ++r) {
      T of_rank = 0;
      for (size_t use = 0; use < (parameter == kTied ? 2 : 1); ++use) {
        T of_use = static_cast<T>(gradient(r, parameter, use, 0, i));
        for (int m = 1; m < micro_batches; ++m)
          of_use += static_cast<T>(gradient(r, parameter, use, m, i));
        of_rank = use == 0 ? of_use : of_rank + of_use;
      }
      total = r == 0 ? of_rank : total + of_rank;
    }
    sums.push_back(total);
  }
  return sums;
}

struct Model {
  std::vector<Parameter> parameters{kShapes.size()};
  std::vector<Parameter*> pointers;

  Model(Runtime& runtime, DType type) {
    for (size_t p = 0; p < kShapes.size(); ++p) {
      parameters[p].name = fmt::format("p{}", p);
      parameters[p].value = make(runtime, kShapes[p], type);
      pointers.push_back(&parameters[p]);
    }
    parameters[kTied].uses.resize(2);
    parameters[kFrozen].trainable = false;
  }

  // What the tape does when a use has its gradient.
  void give(Runtime& runtime, GradientListener& listener, int rank, size_t p, size_t use,
            int micro_batch) {
    Parameter& parameter = parameters[p];
    Parameter::Use& u = parameter.uses[use];
    Tensor g = make(runtime, kShapes[p], u.grad.dtype(), gradients(rank, p, use, micro_batch));
    if (u.started) {
      kernels::table(runtime.stream()).add({u.grad, g, u.grad}, runtime.stream());
    } else {
      copy_from(u.grad, to_doubles(g));
    }
    u.started = true;
    const int before = parameter.micro_batches_final();
    ++u.micro_batches;
    if (parameter.micro_batches_final() > before) listener.gradient_final(parameter, before);
  }

  // Use 1 of the tied weight is the head: its gradient comes first, use 0's last.
  void backward(Runtime& runtime, GradientListener& listener, int rank, int micro_batch) {
    give(runtime, listener, rank, kTied, 1, micro_batch);
    for (size_t p = kShapes.size(); p-- > 0;) {
      if (p != kFrozen && p != kUnused) give(runtime, listener, rank, p, 0, micro_batch);
    }
  }
};

void check_against_serial(DeviceKind device, DType type, int ranks, int micro_batches,
                          int64_t bucket_bytes) {
  each_rank(ranks, device, [&](Group& world, Runtime& runtime) {
    Model model(runtime, type);
    GradientBuffer buffer(model.pointers, world, runtime, {bucket_bytes});
    for (int step = 0; step < 2; ++step) {  // the second starts from old contents
      buffer.begin_step(micro_batches);
      for (int m = 0; m < micro_batches; ++m) model.backward(runtime, buffer, world.rank(), m);
      buffer.finish();
      for (size_t p = 0; p < kShapes.size(); ++p) {
        if (p == kFrozen) continue;
        const Tensor& grad = model.parameters[p].uses[0].grad;
        EXPECT_EQ(grad.shape(), kShapes[p]);
        EXPECT_EQ(grad.dtype(), kernels::accumulator(type));
        EXPECT_EQ(to_doubles(grad), type == DType::f64 ? serial_sum<double>(ranks, p, micro_batches)
                                                       : serial_sum<float>(ranks, p, micro_batches))
            << "parameter " << p << " of " << ranks << " ranks, buckets of " << bucket_bytes
            << " bytes";
      }
    }
    EXPECT_FALSE(model.parameters[kFrozen].uses[0].grad.defined());
  });
}

TEST(GradientBuffer, IsTheSerialSumBitForBit) {
  for (const int ranks : {1, 2, 4}) {
    for (const int micro_batches : {1, 3}) {
      for (const int64_t bucket_bytes : {1, 64, 200, 300, 1000, 1 << 20}) {
        check_against_serial(DeviceKind::reference, DType::bf16, ranks, micro_batches,
                             bucket_bytes);
      }
    }
  }
}

TEST(GradientBuffer, OtherTypesAndDevices) {
  check_against_serial(DeviceKind::reference, DType::f64, 2, 2, 300);
  check_against_serial(DeviceKind::reference, DType::f32, 3, 2, 300);
}

TEST(GradientBuffer, LiesInReverseOrderInBuckets) {
  Runtime runtime({DeviceKind::reference, 0}, 1);
  const auto group = comm::single();
  Model model(runtime, DType::bf16);
  GradientBuffer buffer(model.pointers, *group, runtime, {200});
  // 24, 33, 64, 3, 35 elements, each padded to 16: 32, 48, 64, 16, 48.
  EXPECT_EQ(buffer.buffer().elements(), 208);
  EXPECT_EQ(buffer.buckets(), 3);  // 128 + 192, 256, 64 + 192 bytes
  const float* begin = buffer.buffer().data<float>();
  const std::vector<int64_t> expected = {160, 144, 80, -1, 32, 0};
  for (size_t p = 0; p < kShapes.size(); ++p) {
    if (p == kFrozen) continue;
    EXPECT_EQ(model.parameters[p].uses[0].grad.data<float>() - begin, expected[p]);
  }
  EXPECT_FALSE(model.parameters[kTied].uses[1].grad.same_storage(buffer.buffer()));

  buffer.begin_step(1);
  model.backward(runtime, buffer, 0, 0);
  buffer.finish();
  const std::vector<double> all = to_doubles(buffer.buffer());
  for (const int64_t pad : {24, 31, 65, 79, 147, 159, 195, 207})
    EXPECT_EQ(all[static_cast<size_t>(pad)], 0.0);
}

// Writes down the calls of a group of one.
class Recorder final : public Group {
 public:
  std::vector<std::string> calls;
  int rank() const override { return 0; }
  int size() const override { return 1; }
  comm::Work all_reduce(Tensor t, comm::Reduce, Stream&, std::string_view call) override {
    calls.emplace_back(call);
    return {Event(), {t}};
  }
  comm::Work all_gather(Tensor, Tensor, Stream&, std::string_view) override { return {}; }
  comm::Work reduce_scatter(Tensor, Tensor, comm::Reduce, Stream&, std::string_view) override {
    return {};
  }
  comm::Work all_to_all(Tensor, Tensor, std::span<const int64_t>, std::span<const int64_t>, Stream&,
                        std::string_view) override {
    return {};
  }
  comm::Work broadcast(Tensor, int, Stream&, std::string_view) override { return {}; }
  comm::Work send(Tensor, int, Stream&, std::string_view) override { return {}; }
  comm::Work recv(Tensor, int, Stream&, std::string_view) override { return {}; }
  void barrier(std::string_view) override {}
  std::unique_ptr<Group> split(int, int, int) override { return comm::single(); }
};

TEST(GradientBuffer, ReducesABucketWhenItIsFinalAndInOrder) {
  Runtime runtime({DeviceKind::reference, 0}, 1);
  Recorder group;
  Model model(runtime, DType::f32);
  GradientBuffer buffer(model.pointers, group, runtime,
                        {1});  // a bucket a parameter: 5, 4, 2, 1, 0
  buffer.begin_step(2);
  model.backward(runtime, buffer, 0, 0);
  EXPECT_TRUE(group.calls.empty());  // not before the last micro-batch
  const auto give = [&](size_t p, size_t use) { model.give(runtime, buffer, 0, p, use, 1); };
  const auto calls = [](std::initializer_list<int> buckets) {
    std::vector<std::string> names;
    for (const int b : buckets) names.push_back(fmt::format("gradients, bucket {}", b));
    return names;
  };
  give(2, 0);
  EXPECT_EQ(group.calls, calls({}));  // bucket 0 comes first
  give(5, 0);
  EXPECT_EQ(group.calls, calls({0}));  // bucket 1, the unused parameter's, is not final
  give(1, 0);
  give(kTied, 1);
  give(kTied, 0);
  EXPECT_EQ(group.calls, calls({0}));
  buffer.finish();
  EXPECT_EQ(group.calls, calls({0, 1, 2, 3, 4}));

  // With all parameters used, everything starts in the hooks; a tied weight when both uses have
  // come.
  group.calls.clear();
  buffer.begin_step(1);
  for (const size_t p : {5, 4, 2, 1, 0}) model.give(runtime, buffer, 0, p, 0, 0);
  EXPECT_EQ(group.calls, calls({0, 1, 2, 3}));
  model.give(runtime, buffer, 0, kTied, 1, 0);
  EXPECT_EQ(group.calls, calls({0, 1, 2, 3, 4}));
  buffer.finish();
  EXPECT_EQ(group.calls.size(), 5u);
}

TEST(GradientBuffer, WhatGotNoGradientInThisStepIsZero) {
  each_rank(2, [](Group& world, Runtime& runtime) {
    Model model(runtime, DType::bf16);
    GradientBuffer buffer(model.pointers, world, runtime, {128});
    for (const bool all : {true, false}) {
      buffer.begin_step(1);
      if (all) model.backward(runtime, buffer, world.rank(), 0);
      // On one rank only, and only the second use of the tied weight.
      if (!all && world.rank() == 1) model.give(runtime, buffer, 1, kTied, 1, 0);
      buffer.finish();
    }
    for (const double x : to_doubles(model.parameters[2].uses[0].grad)) EXPECT_EQ(x, 0.0);
    const std::vector<double> tied = to_doubles(model.parameters[kTied].uses[0].grad);
    for (size_t i = 0; i < tied.size(); ++i) {
      EXPECT_EQ(tied[i], static_cast<float>(gradient(1, kTied, 1, 0, static_cast<int64_t>(i))));
    }
  });
}

TEST(GradientBuffer, OrderOfTheParametersDoesNotChangeTheBits) {
  each_rank(2, [](Group& world, Runtime& runtime) {
    Model model(runtime, DType::bf16);
    std::vector<Parameter*> order = model.pointers;
    std::swap(order[0], order[4]);
    std::swap(order[1], order[5]);
    GradientBuffer buffer(order, world, runtime, {128});
    buffer.begin_step(2);
    for (int m = 0; m < 2; ++m) model.backward(runtime, buffer, world.rank(), m);
    buffer.finish();
    for (const size_t p : {0, 1, 2, 5}) {
      EXPECT_EQ(to_doubles(model.parameters[p].uses[0].grad), serial_sum<float>(2, p, 2));
    }
  });
}

TEST(GradientBuffer, EmptyAndWrong) {
  Runtime runtime({DeviceKind::reference, 0}, 1);
  const auto group = comm::single();
  GradientBuffer empty({}, *group, runtime);
  empty.begin_step(1);
  empty.finish();
  EXPECT_EQ(empty.buckets(), 0);
  EXPECT_EQ(empty.buffer().elements(), 0);
  EXPECT_THROW(GradientBuffer({}, *group, runtime, {0}), Error);
}

TEST(GradientBuffer, OnMetaItOnlyTakesMemory) {
  each_rank(2, DeviceKind::meta, [](Group& world, Runtime& runtime) {
    Model model(runtime, DType::bf16);
    GradientBuffer buffer(model.pointers, world, runtime, {200});
    buffer.begin_step(1);
    buffer.finish();
    EXPECT_EQ(runtime.arena(MemoryClass::gradients).in_use(), 208 * 4 + 192);
  });
}

}  // namespace
}  // namespace megatron::parallel
