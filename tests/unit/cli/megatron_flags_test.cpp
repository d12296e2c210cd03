#include "cli/megatron_flags.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "cli/options.h"

namespace megatron::cli {
namespace {

std::string error_of(const Arguments& arguments) {
  Fields fields;
  int64_t hidden = 0;
  fields.add("hidden-size", &hidden, "width");
  try {
    parse("megatron x", "x", fields, {}, arguments);
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

TEST(MegatronFlags, AreToldFromMisspellings) {
  EXPECT_TRUE(is_megatron_flag("fp16"));
  EXPECT_FALSE(is_megatron_flag("hiden-size"));
  EXPECT_NE(error_of({"--fp16"}).find("--fp16 is a flag of Megatron-LM"), std::string::npos);
  EXPECT_NE(error_of({"--hiden-size", "3"}).find("did you mean --hidden-size"), std::string::npos);
}

}  // namespace
}  // namespace megatron::cli
