// Deliberate layout faults, in every row of the layout matrix that reaches them.
#include <gtest/gtest.h>

#include <algorithm>

#include "selftest/layout_matrix.h"

namespace megatron::selftest {
namespace {

class EachFault : public ::testing::TestWithParam<std::string> {};

TEST_P(EachFault, IsCaughtByEveryRowThatComesToItAndByNoOther) {
  const Fault& fault = fault_named(GetParam());
  const LayoutMatrix matrix(2);
  const Environment environment = fault.environment();
  MatrixRun faulty(environment, Precisions::fp64);
  int caught = 0;
  for (const MatrixRow& row : matrix.rows()) {
    if (row.task != fault.task) continue;
    const Report report = faulty.run(row);
    EXPECT_NE(report.passed(), fault.in_row(row)) << row.str() << "\n" << report.text();
    caught += !report.passed();
  }
  EXPECT_GE(caught, 2);
}

// Faults of kernels alone are the same in every layout and are left out.
std::vector<std::string> faults_of_layouts() {
  std::vector<std::string> names;
  for (const Fault& fault : faults())
    if (fault.in_row) names.push_back(fault.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Matrix, EachFault, ::testing::ValuesIn(faults_of_layouts()),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace megatron::selftest
