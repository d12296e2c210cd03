// megatron selftest device on the CUDA plugin compiled for the CPU: checks that pass, fail, hang or
// are missing.
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/json.h"
#include "golden/cli/process.h"
#include "text.h"

namespace megatron::testing {
namespace {

// Runs the command with environment variables of the stand-in.
Outcome check_device(const std::string& variables, const std::string& flags) {
  const Workplace place;
  const std::string command = "cd " + place.path() + " && " + variables + " " + MEGATRON_BINARY +
                              " selftest device --threads 1 " + flags + " >said 2>errors";
  const int status = std::system(command.c_str());
  return {WEXITSTATUS(status), read_file(place / "said"), read_file(place / "errors")};
}

const Json& check_of(const Json& findings, const std::string& name) {
  for (const Json& check : findings["checks"].as_array())
    if (check["name"].as_string() == name) return check;
  fail("no check {}", name);
}

TEST(SelftestDevice, SaysWhatThereIsAndThatItComputes) {
  const Outcome r = check_device("", "--device cuda --json");
  ASSERT_EQ(r.code, 0) << r.out << r.err;
  const Json found = Json::parse(r.out);
  EXPECT_EQ(found["device"].as_string(), "CUDA shim on the CPU");
  EXPECT_GT(found["memory"].as_integer(), 0);
  for (const char* version : {"compute_capability", "driver", "cuda"})
    EXPECT_NE(found[version].as_string().find('.'), std::string::npos) << version;
  EXPECT_EQ(found["checks"].as_array().size(), 4u);
  for (const char* name : {"fill", "matrix product", "attention forward", "attention backward"}) {
    EXPECT_TRUE(check_of(found, name)["passed"].as_bool()) << r.out;
    EXPECT_TRUE(has(check_of(found, name)["result"].as_string(), "of the tolerance"));
  }
  EXPECT_TRUE(has(check_of(found, "matrix product")["result"].as_string(), "cuBLASLt"));
  EXPECT_TRUE(found["passed"].as_bool());
  EXPECT_EQ(found["what_to_do"].as_string(), "");
  const Outcome text = check_device("", "--device cuda");
  EXPECT_EQ(text.code, 0);
  expect_contains(text.out, {"CUDA shim on the CPU, ", "\nok       fill ",
                             "this program's own kernels (", "\nThe device can be used.\n"});
}

TEST(SelftestDevice, WhatFailsCostsNoOtherCheck) {
  const Outcome r = check_device("CUDA_SHIM_REFUSE_ALGORITHMS=1000", "--device cuda --json");
  ASSERT_EQ(r.code, 1) << r.out << r.err;
  const Json found = Json::parse(r.out);
  const Json& product = check_of(found, "matrix product");
  EXPECT_FALSE(product["passed"].as_bool());
  EXPECT_TRUE(has(product["why_not"].as_string(), "cuBLASLt")) << product.dump();
  EXPECT_TRUE(check_of(found, "attention backward")["passed"].as_bool()) << r.out;
  EXPECT_FALSE(found["passed"].as_bool());
  EXPECT_TRUE(has(found["what_to_do"].as_string(), "the check of the matrix product failed"));
}

TEST(SelftestDevice, WhatHangsEndsItAndIsNamed) {
  const Outcome r = check_device("CUDA_SHIM_HANG=sum_rows", "--device cuda --seconds 15 --json");
  ASSERT_EQ(r.code, 1) << r.out << r.err;
  const Json found = Json::parse(r.out);
  EXPECT_TRUE(check_of(found, "attention forward")["passed"].as_bool()) << r.out;
  const Json& last = found["checks"].as_array().back();
  EXPECT_EQ(last["name"].as_string(), "attention backward");
  EXPECT_TRUE(has(last["why_not"].as_string(), "it did not finish")) << last.dump();
  EXPECT_TRUE(has(found["what_to_do"].as_string(), "nvidia-smi")) << r.out;
}

TEST(SelftestDevice, WithoutAGpuItSaysWhyAndWhatToDo) {
  for (const auto& [variable, why] :
       {std::pair{"CUDA_SHIM_DRIVER=0", "no NVIDIA driver is loaded"},
        std::pair{"CUDA_SHIM_DEVICES=0", "check that nvidia-smi lists one"}}) {
    const Outcome r = check_device(variable, "--device cuda --json");
    ASSERT_EQ(r.code, 2) << r.out << r.err;
    const Json found = Json::parse(r.out);
    EXPECT_EQ(found["device"].as_string(), "");
    EXPECT_TRUE(found["checks"].as_array().empty());
    EXPECT_TRUE(has(found["what_to_do"].as_string(), why)) << r.out;
    EXPECT_TRUE(has(check_device(variable, "--device cuda").out, why));
    const Outcome cpu = check_device(variable, "");
    EXPECT_EQ(cpu.code, 0) << cpu.out << cpu.err;
    expect_contains(cpu.out, {"\nok       attention backward", "The device can be used."});
  }
}

TEST(SelftestDevice, ItsFlagsAreChecked) {
  expect_contains(check_device("", "--seconds 0").err, {"--seconds is 0"});
}

}  // namespace
}  // namespace megatron::testing
