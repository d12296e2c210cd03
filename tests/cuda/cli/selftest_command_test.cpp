// megatron selftest and its flags for a GPU, on the CUDA plugin compiled for the CPU.
#include <gtest/gtest.h>

#include "golden/cli/process.h"

namespace megatron::testing {
namespace {

struct Refused {
  std::vector<std::string> flags;
  std::string words;
};
void PrintTo(const Refused& refused, std::ostream* out) { *out << refused.words; }

class SelftestFlags : public ::testing::TestWithParam<Refused> {};

TEST_P(SelftestFlags, AreRefusedInWords) {
  const Workplace place;
  std::vector<std::string> words = {"selftest"};
  words.insert(words.end(), GetParam().flags.begin(), GetParam().flags.end());
  const Outcome r = place.run(words);
  EXPECT_EQ(r.code, 2) << r.out;
  EXPECT_NE(r.err.find(GetParam().words), std::string::npos) << r.err;
}

INSTANTIATE_TEST_SUITE_P(
    Some, SelftestFlags,
    ::testing::Values(Refused{{"--part", "0/2"}, "--part needs --layouts"},
                      Refused{{"--layouts", "--part", "2/2"}, "--part is '2/2'"},
                      Refused{{"--layouts", "--part", "1"}, "0 <= I < N"},
                      Refused{{"--layouts", "--part", "0/2x"}, "0 <= I < N"},
                      Refused{{"--real"}, "--device cuda"},
                      Refused{{"--device", "cuda", "--fault", "swapped-stages", "--layouts"},
                              "--device cpu"},
                      Refused{{"--device", "cuda", "--filter", "=kernels/"}, "=kernels/"}));

TEST(SelftestCommand, ChecksTheKernelsOfTheGpu) {
  const Workplace place;
  const Outcome r = place.run({"selftest", "--device", "cuda", "--filter", "=kernels/fill"});
  EXPECT_EQ(r.code, 0) << r.out << r.err;
  EXPECT_EQ(r.out.find("CUDA shim on the CPU; CUDA "), 0u) << r.out;
  EXPECT_NE(r.out.find("ok      kernels/fill "), std::string::npos) << r.out;
  EXPECT_NE(r.out.find("1 passed, 0 failed"), std::string::npos) << r.out;
}

}  // namespace
}  // namespace megatron::testing
