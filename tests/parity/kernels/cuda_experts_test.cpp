// Routing, expert rows and grouped products on CUDA, beyond their Cases.
#include <gtest/gtest.h>

#include "base/error.h"
#include "kernels/cases/inputs.h"

namespace megatron::kernels {
namespace {

TEST(CudaExperts, RowsOfSegmentsOfManySlots) {
  Runtime runtime({DeviceKind::cuda, 0}, 1);
  for (const KeptRows kept : {KeptRows::first, KeptRows::largest}) {
    for (const bool padded : {false, true}) {
      const Case c{.kernel = "expert_rows", .tolerance = 1e-12, .make = [&](Runtime& on) {
                     Inputs inputs(on);
                     ExpertRowsArgs args{
                         .experts = inputs.integers("experts", {1200, 2}, DType::i32, -1, 40),
                         .weights = inputs.normal("weights", {1200, 2}, DType::f32),
                         .first = 2,
                         .capacity = 13,
                         .segment = 400,
                         .kept = kept,
                         .padded = padded};
                     args.offsets = inputs.output("offsets", {36}, DType::i32);
                     args.slots = inputs.output("slots", {35 * 13 * 3}, DType::i32);
                     args.rows = inputs.output("rows", {1200, 2}, DType::i32);
                     return inputs.call([args](Stream& stream, const Table& table) {
                       table.expert_rows(args, stream);
                     });
                   }};
      const CaseResult result = compare_with_reference(c, runtime);
      EXPECT_LE(result.worst, 1) << result.output << (padded ? " padded" : "");
    }
  }
}

TEST(CudaExperts, PlansKnowTheScratch) {
  const auto taken = [](const Case& c, Runtime& runtime) {
    const Case::Call call = c.make(runtime);
    call.run(runtime.stream(), table(runtime.stream()));
    runtime.stream().synchronize();
    return runtime.stream().scratch().high_water();
  };
  int64_t most = 0;
  for (const Case& c : cases()) {
    if (c.real || (c.kernel != "expert_rows" && c.kernel != "router_sums" &&
                   c.kernel != "sinkhorn" && c.kernel != "expert_thresholds"))
      continue;
    Runtime cuda({DeviceKind::cuda, 0}, 1), planned({DeviceKind::meta}, 1, DeviceKind::cuda);
    const int64_t bytes = taken(c, cuda);
    EXPECT_EQ(bytes, taken(c, planned)) << c.kernel << " " << c.name;
    most = std::max(most, bytes);
  }
  EXPECT_GT(most, 0);
}

TEST(CudaExperts, RefusesMoreThanSharedMemoryHolds) {
  Runtime runtime({DeviceKind::cuda, 0}, 1);
  Inputs inputs(runtime);
  const RouteArgs args{.logits = inputs.normal("logits", {1, 20000}, DType::f32),
                       .experts = inputs.output("experts", {1, 1}, DType::i32),
                       .weights = inputs.output("weights", {1, 1}, DType::f32)};
  try {
    table(DeviceKind::cuda).route(args, runtime.stream());
    FAIL() << "not refused";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("20000 experts"), std::string::npos) << error.what();
  }
}

// 40 groups of 69 to 71 rows, compared with a few rows of one group alone.
class GroupedRows : public ::testing::TestWithParam<std::tuple<DType, bool>> {
 protected:
  static constexpr int64_t kGroups = 40, kOfGroup = 70, kDepth = 72, kColumns = 48;

  GroupedRows() {
    const auto [type, transposed] = GetParam();
    args_ = {
        .a = inputs_.normal("a", {kGroups * kOfGroup, kDepth}, type),
        .b = inputs_.normal(
            "b", transposed ? Shape{kGroups, kColumns, kDepth} : Shape{kGroups, kDepth, kColumns},
            type),
        .transpose_b = transposed};
  }
  // Product of rows [first, first + count) of a, all in this group; or of all groups.
  std::vector<double> product(int64_t group, int64_t first, int64_t count) {
    std::vector<double> offsets;
    for (int64_t g = 0; g <= kGroups; ++g)
      offsets.push_back(static_cast<double>(group < 0   ? g * kOfGroup - (g % 3 == 2)
                                            : g > group ? count
                                                        : 0));
    GroupedGemmArgs args = args_;
    args.a = args.a.slice(0, first, count);
    args.offsets = inputs_.values("offsets", {kGroups + 1}, DType::i32, offsets);
    args.out = inputs_.output("out", {count, kColumns}, args.a.dtype());
    table(DeviceKind::cuda).grouped_gemm(args, runtime_.stream());
    return to_doubles(args.out);
  }

  Runtime runtime_{{DeviceKind::cuda, 0}, 1};
  Inputs inputs_{runtime_};
  GroupedGemmArgs args_;
};

TEST_P(GroupedRows, HaveTheirBitsInAnyCompany) {
  const std::vector<double> all = product(-1, 0, kGroups * kOfGroup);
  const auto expect_rows = [&](int64_t group, int64_t row, int64_t count) {
    const int64_t first = group * kOfGroup + row;
    const auto begin = all.begin() + first * kColumns;
    EXPECT_TRUE(product(group, first, count) == std::vector(begin, begin + count * kColumns))
        << group << ": " << row << "+" << count;
  };
  expect_rows(0, 0, 1);
  expect_rows(2, 65, 1);
  expect_rows(33, 3, 60);
  expect_rows(39, 7, 63);
}

INSTANTIATE_TEST_SUITE_P(CudaExperts, GroupedRows,
                         ::testing::Combine(::testing::Values(DType::f32, DType::bf16, DType::f16),
                                            ::testing::Bool()));

}  // namespace
}  // namespace megatron::kernels
