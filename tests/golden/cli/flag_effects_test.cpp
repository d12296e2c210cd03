// Supported means that a flag changes what its row says, and that its default changes nothing.
#include "golden/cli/flag_effects.h"

#include <gtest/gtest.h>

#include <chrono>
#include <set>

#include "cli/flags/table.h"
#include "training/settings.h"

namespace megatron::testing {
namespace {

constexpr size_t kParts = 6;

using Rows = std::vector<FlagRow> (*)();

// Every kParts-th row of a set.
class Flags : public ::testing::TestWithParam<std::tuple<Rows, size_t>> {};

TEST_P(Flags, ChangeWhatTheySay) {
  FlagBench bench;
  const std::vector<FlagRow> rows = std::get<0>(GetParam())();
  for (size_t r = std::get<1>(GetParam()); r < rows.size(); r += kParts) {
    const FlagRow& row = rows[r];
    SCOPED_TRACE("--" + row.flag + ", " + row.observable);
    const bool may_fail = row.observable == "end";
    Observed before = bench.run(row, ""), after = bench.run(row, row.flip);
    EXPECT_TRUE(may_fail || before.error.empty()) << before.error;
    EXPECT_TRUE(may_fail || after.error.empty()) << after.error;
    EXPECT_TRUE(before.error.empty() || after.error.empty()) << before.error << "\n" << after.error;
    EXPECT_TRUE(before.values.contains(row.observable) || after.values.contains(row.observable));
    EXPECT_NE(before.values[row.observable], after.values[row.observable]) << row.flip;
    const std::string usual = bench.usual(row);
    if (usual.empty()) continue;
    Observed same = bench.run(row, usual);
    EXPECT_TRUE(may_fail || same.error.empty()) << same.error;
    EXPECT_EQ(before.values[row.observable], same.values[row.observable]) << usual;
  }
}

std::string part_name(const ::testing::TestParamInfo<std::tuple<Rows, size_t>>& info) {
  return "Part" + std::to_string(std::get<1>(info.param));
}

using ::testing::Combine;
using ::testing::Range;
using ::testing::Values;
INSTANTIATE_TEST_SUITE_P(Model, Flags, Combine(Values(model_flags), Range(size_t{0}, kParts)),
                         part_name);
INSTANTIATE_TEST_SUITE_P(Steps, Flags, Combine(Values(step_flags), Range(size_t{0}, kParts)),
                         part_name);
INSTANTIATE_TEST_SUITE_P(Ranks, Flags, Combine(Values(parallel_flags), Range(size_t{0}, kParts)),
                         part_name);
INSTANTIATE_TEST_SUITE_P(Data, Flags, Combine(Values(data_flags), Range(size_t{0}, kParts)),
                         part_name);
INSTANTIATE_TEST_SUITE_P(Checkpoints, Flags,
                         Combine(Values(checkpoint_flags), Range(size_t{0}, kParts)), part_name);

// Each field has one row, each row a field, and the table of Megatron-LM's flags names the same
// observable.
TEST(FlagRows, AllThatAreSupportedHaveARow) {
  std::map<std::string, std::string> observables;
  for (const auto& rows :
       {model_flags(), step_flags(), parallel_flags(), data_flags(), checkpoint_flags()})
    for (const FlagRow& row : rows)
      EXPECT_TRUE(observables.emplace(row.flag, row.observable).second) << row.flag << " twice";
  training::TrainSettings settings;
  const Fields fields = settings.fields();
  std::set<std::string> names;
  for (const Field& field : fields.all()) {
    names.insert(field.name);
    EXPECT_TRUE(observables.contains(field.name)) << "--" << field.name << " has no row";
  }
  const cli::FlagTable table;
  for (const auto& [flag, observable] : observables) {
    EXPECT_TRUE(names.contains(flag)) << "--" << flag << " has a row and is no flag";
    const cli::FlagRow* row = table.find("--" + flag);
    if (row == nullptr) continue;  // of this program alone
    EXPECT_EQ(row->verdict, cli::Verdict::supported) << flag;
    EXPECT_EQ(row->why, observable) << flag;
  }
}

}  // namespace
}  // namespace megatron::testing
