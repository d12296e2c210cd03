// The checks pass on the unmodified machine, and each deliberate fault is caught by its check.
#include "selftest/selftest.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"

namespace megatron::selftest {
namespace {

Summary quiet_run(const SelftestOptions& options) {
  std::string text;
  Summary summary = run(options, [&](std::string_view line) { text += line; });
  SCOPED_TRACE(text);
  EXPECT_NE(text.find(fmt::format("{} passed, {} failed\n", summary.passed.size(),
                                  summary.failed.size())),
            std::string::npos);
  return summary;
}

class Passing : public ::testing::TestWithParam<std::string> {};

TEST_P(Passing, OnThisMachine) {
  std::string text;
  const Summary summary =
      run({.filter = GetParam(), .threads = 2}, [&](std::string_view line) { text += line; });
  EXPECT_TRUE(summary.failed.empty()) << text;
  EXPECT_GE(summary.passed.size(), 1u);
}

// Runs the checks of ranks one at a time, so that each test is short. The parity tests compare all
// kernels.
std::vector<std::string> filters() {
  std::vector<std::string> all = {"kernels/add", "gradients/", "model/", "bits/"};
  for (const Check& check : checks(1))
    if (check.name.starts_with("layouts/")) all.push_back(check.name);
  EXPECT_EQ(all.size(), 4u + 9);
  return all;
}

INSTANTIATE_TEST_SUITE_P(Checks, Passing, ::testing::ValuesIn(filters()), [](const auto& info) {
  std::string name = info.param;
  if (name.ends_with('/')) name.pop_back();
  for (char& c : name)
    if (c == '/' || c == ' ') c = '_';
  return name;
});

struct Caught {
  const char *fault, *check;
};
class CheckFault : public ::testing::TestWithParam<Caught> {};

TEST_P(CheckFault, IsCaughtAndNamed) {
  const auto [fault, check] = GetParam();
  for (const std::string kind : {"fp64", "fp32"}) {
    const std::string name = std::string(check) + " " + kind;
    const Summary faulty = quiet_run({.fault = fault, .filter = name});
    EXPECT_EQ(faulty.failed, std::vector<std::string>{name});
  }
}

INSTANTIATE_TEST_SUITE_P(
    Faults, CheckFault,
    ::testing::Values(
        Caught{"dropped-all-reduce", "layouts/llama tied"},
        Caught{"gradient-averaged-twice", "layouts/gpt2"}, Caught{"doubled-gradient", "model/gpt2"},
        Caught{"shifted-rope-pairing", "model/llama"}, Caught{"off-by-one-label", "model/llama"},
        Caught{"prediction-past-documents", "model/llama tied, multi-token prediction"},
        Caught{"visible-padding", "model/bert"}, Caught{"pooler-of-second-token", "model/bert"},
        Caught{"global-rotary-base", "model/modernbert"},
        Caught{"visible-encoder-padding", "model/t5"},
        Caught{"relative-bucket-off-by-one", "model/t5"},
        Caught{"state-across-documents", "model/hybrid"},
        Caught{"gate-behind-norm", "model/hybrid"}, Caught{"decay-of-neighbour", "model/hybrid"}),
    [](const auto& info) {
      std::string name = info.param.fault;
      std::ranges::replace(name, '-', '_');
      return name;
    });

TEST(Bf16Layouts, NoticeAReductionThatDoesNothing) {
  const std::string name = "layouts/llama bf16";
  EXPECT_EQ(quiet_run({.fault = "dropped-all-reduce", .filter = name}).failed,
            std::vector<std::string>{name});
}

TEST(FaultNames, OfEachCheckHasATestAndOthersAreRefused) {
  EXPECT_EQ(std::ranges::count_if(faults(), &Fault::in_checks), 14);
  try {
    fault_named("dropped-allreduce");
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("did you mean 'dropped-all-reduce'"), std::string::npos)
        << e.what();
  }
  EXPECT_THROW(quiet_run({.filter = "no such check"}), Error);
}

}  // namespace
}  // namespace megatron::selftest
