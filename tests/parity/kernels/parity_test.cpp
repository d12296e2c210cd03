// Compares the cpu back-end with the reference in every small Case, and its shapes on meta.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "kernels/case.h"

namespace megatron::kernels {
namespace {

std::vector<std::string> kernels_of_cases() {
  std::vector<std::string> names;
  for (const Case& c : cases()) {
    if (std::find(names.begin(), names.end(), c.kernel) == names.end()) names.push_back(c.kernel);
  }
  return names;
}

class Parity : public ::testing::TestWithParam<std::string> {};

TEST_P(Parity, CpuEqualsReference) {
  Runtime runtime({DeviceKind::cpu}, 2);
  int run = 0;
  for (const Case& c : cases()) {
    if (c.kernel != GetParam() || c.real) continue;
    try {
      const CaseResult result = compare_with_reference(c, runtime);
      EXPECT_LE(result.worst, 1) << c.kernel << " " << c.name << ": " << result.output;
      ++run;
    } catch (const Error& error) {
      // A back-end may refuse fp64 with an error.
      EXPECT_EQ(c.dtype, DType::f64) << c.kernel << " " << c.name << ": " << error.what();
    } catch (const std::exception& error) {
      ADD_FAILURE() << c.kernel << " " << c.name << ": " << error.what();
    }
  }
  EXPECT_GT(run, 0);
}

TEST_P(Parity, MetaTakesEveryShape) {
  Runtime runtime({DeviceKind::meta}, 1);
  for (const Case& c : cases()) {
    if (c.kernel != GetParam()) continue;
    EXPECT_NO_THROW(c.make(runtime).run(runtime.stream(), table(DeviceKind::meta)))
        << c.kernel << " " << c.name;
  }
}

TEST_P(Parity, ReferenceRepeatsItself) {
  Runtime runtime({DeviceKind::reference}, 2);
  for (const Case& c : cases()) {
    if (c.kernel != GetParam() || c.real) continue;
    const CaseResult result = compare_with_reference(c, runtime);
    EXPECT_EQ(result.worst, 0) << c.kernel << " " << c.name << ": " << result.output;
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, Parity, ::testing::ValuesIn(kernels_of_cases()),
                         [](const auto& info) { return info.param; });

TEST(Cases, NamesAreUnique) {
  std::set<std::string> seen;
  for (const Case& c : cases())
    EXPECT_TRUE(seen.insert(c.kernel + " " + c.name).second) << c.kernel << " " << c.name;
}

TEST(Cases, HaveATolerance) {
  for (const Case& c : cases()) EXPECT_GT(c.tolerance, 0) << c.kernel << " " << c.name;
}

// tools/check_coverage compares the names.
TEST(Cases, AreOfEveryEntryOfTheTable) {
  EXPECT_EQ(kernels_of_cases().size(), sizeof(Table) / sizeof(Table::gemm));
}

// Checks that the comparison can fail: a Case whose kernel is slightly wrong must not pass.
TEST(Cases, ComparisonSeesAnError) {
  for (Case c : cases()) {
    if (c.kernel != "add" || c.real) continue;
    const auto make = c.make;
    c.make = [make](Runtime& runtime) {
      Case::Call call = make(runtime);
      if (runtime.device().kind != DeviceKind::cpu) return call;
      call.run = [run = call.run, out = call.outputs.front().second](Stream& stream,
                                                                     const Table& table) {
        run(stream, table);
        const Tensor last = out.as_strided({1}, std::array<int64_t, 1>{1}, out.elements() - 1);
        table.fill({.out = last, .value = 100}, stream);
      };
      return call;
    };
    Runtime runtime({DeviceKind::cpu}, 1);
    EXPECT_GT(compare_with_reference(c, runtime).worst, 1) << c.name;
    break;
  }
}

}  // namespace
}  // namespace megatron::kernels
