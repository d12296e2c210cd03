#include "plan/measured_calls.h"

#include <gtest/gtest.h>

#include "plan/step_time.h"

namespace megatron::plan {
namespace {

WorkItem call(std::string_view kernel, int64_t rows) {
  WorkItem item{.kernel = kernel, .calls = 1};
  item.operands.push_back({.name = "x", .shape = {rows, 4}, .strides = {4, 1}});
  return item;
}

TEST(MeasuredCalls, AreThoseOfTheSameForms) {
  StepWork work{.kernels = {call("add", 8), call("grouped_gemm", 8), call("add", 16)},
                .collectives = {{"all_reduce", "gradients", 2, 64, 1}}};
  MeasuredCalls measured;
  measured.add(work, {.kernels = {0.5, 0.25, -1}, .collectives = {0.125}});
  EXPECT_EQ(measured.seconds(call("add", 8)), 0.5);
  EXPECT_FALSE(measured.seconds(call("add", 9)).has_value());
  EXPECT_FALSE(measured.seconds(call("scale", 8)).has_value());
  EXPECT_FALSE(measured.seconds(call("add", 16)).has_value()) << "it was not made";
  EXPECT_FALSE(measured.seconds(call("grouped_gemm", 8)).has_value()) << "its rows may be others";
  EXPECT_EQ(measured.seconds(CollectiveItem{"all_reduce", "gradients", 2, 64, 3}), 0.125);
  EXPECT_FALSE(measured.seconds(CollectiveItem{"all_reduce", "gradients", 4, 64, 3}).has_value());
  measured.add(work, {.kernels = {9, 9, 2}, .collectives = {9}});
  EXPECT_EQ(measured.seconds(call("add", 8)), 0.5);
  EXPECT_EQ(measured.seconds(call("add", 16)), 2);
}

}  // namespace
}  // namespace megatron::plan
