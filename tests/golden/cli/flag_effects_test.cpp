// For each supported flag: it changes what its row says, and its default changes nothing.
#include "golden/cli/flag_effects.h"

#include <gtest/gtest.h>

#include <chrono>
#include <set>

#include "cli/flags/table.h"
#include "settings/settings.h"

namespace megatron::testing {
namespace {

constexpr size_t kParts = 3;

using Rows = std::vector<FlagRow> (*)();

// Every kParts-th row of a set.
class Flags : public ::testing::TestWithParam<std::tuple<Rows, size_t>> {};

std::string value(const Observed& seen, const std::string& observable) {
  const auto found = seen.values.find(observable);
  return found == seen.values.end() ? "" : found->second;
}

void expect_usual(FlagBench& bench, const FlagRow& row, const Observed& before) {
  const std::string usual = bench.usual(row);
  if (usual.empty()) return;
  Observed same = bench.run(row, usual);
  EXPECT_EQ(same.error.empty(), before.error.empty()) << same.error;
  EXPECT_EQ(value(before, row.observable), same.values[row.observable]) << usual;
}

// If the mode that a flag depends on is off, the flag changes nothing and the run says so.
void expect_idle(FlagBench& bench, FlagRow row) {
  row.base = row.idle;
  const Observed &without = bench.without(row), with = bench.run(row, row.flip);
  EXPECT_EQ(without.error + with.error, "");
  EXPECT_NE(with.idle, "") << row.idle;
  EXPECT_EQ(value(without, row.observable), value(with, row.observable)) << row.idle;
}

TEST_P(Flags, ChangeWhatTheySay) {
  FlagBench bench;
  const std::vector<FlagRow> rows = std::get<0>(GetParam())();
  for (size_t r = std::get<1>(GetParam()); r < rows.size(); r += kParts) {
    const FlagRow& row = rows[r];
    SCOPED_TRACE("--" + row.flag + ", " + row.observable);
    const Observed &before = bench.without(row), after = bench.run(row, row.flip);
    EXPECT_TRUE(before.error.empty() || row.observable == "end") << before.error;
    EXPECT_EQ(after.error.empty(), row.observable != "error") << after.error;
    if (row.observable == "gpu") {
      EXPECT_EQ(value(before, "loss"), value(after, "loss"));
      FlagRow here = row;
      here.observable = "loss";
      expect_usual(bench, here, before);
      if (bench.has_mode(row)) expect_idle(bench, here);
      continue;
    }
    if (row.observable == "error") {
      EXPECT_NE(after.error.find("--" + row.flag), std::string::npos) << after.error;
    }
    EXPECT_TRUE(before.values.contains(row.observable) || after.values.contains(row.observable));
    EXPECT_NE(value(before, row.observable), value(after, row.observable)) << row.flip;
    EXPECT_EQ(after.idle, "") << "it does something";
    expect_usual(bench, row, before);
    if (bench.has_mode(row)) expect_idle(bench, row);
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
INSTANTIATE_TEST_SUITE_P(Adapters, Flags, Combine(Values(adapter_flags), Range(size_t{0}, kParts)),
                         part_name);
INSTANTIATE_TEST_SUITE_P(Ranks, Flags, Combine(Values(parallel_flags), Range(size_t{0}, kParts)),
                         part_name);
INSTANTIATE_TEST_SUITE_P(Data, Flags, Combine(Values(data_flags), Range(size_t{0}, kParts)),
                         part_name);
INSTANTIATE_TEST_SUITE_P(Checkpoints, Flags,
                         Combine(Values(checkpoint_flags), Range(size_t{0}, kParts)), part_name);

// Each field has one row, each row has a field, and the table of Megatron-LM's flags names the same
// observable.
TEST(FlagRows, AllThatAreSupportedHaveARow) {
  std::map<std::string, std::string> observables;
  for (const auto& rows : {model_flags(), step_flags(), adapter_flags(), parallel_flags(),
                           data_flags(), checkpoint_flags()})
    for (const FlagRow& row : rows)
      EXPECT_TRUE(observables.emplace(row.flag, row.observable).second) << row.flag << " twice";
  settings::TrainSettings settings;
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
    if (row == nullptr) continue;  // a flag of this program only
    EXPECT_EQ(row->verdict, cli::Verdict::supported) << flag;
    EXPECT_EQ(row->why, observable) << flag;
  }
}

}  // namespace
}  // namespace megatron::testing
