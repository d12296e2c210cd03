// Formats of 4 and 8 bits and their quantisation against NumPy, and that a changed bit is found.
#include "selftest/verify_low_precision.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "kernels/instruction_set.h"
#include "support.h"

namespace megatron::selftest {
namespace {

using megatron::testing::TemporaryDirectory;
using megatron::testing::vectors;

class LowPrecisionVectors : public ::testing::Test {
 protected:
  LowPrecisionVectors() : path_(directory_ / "lowprec") {
    std::filesystem::copy(vectors("lowprec"), path_);
  }
  // Changes the lowest bit of a byte, counted from the end of the file.
  void flip(const std::string& name, int64_t from_end) const {
    const std::string file = path_ + "/" + name + ".npy";
    std::filesystem::permissions(file, std::filesystem::perms::owner_all);
    const auto at = static_cast<std::streamoff>(std::filesystem::file_size(file)) - from_end;
    std::fstream f(file, std::ios::binary | std::ios::in | std::ios::out);
    f.seekg(at);
    const auto byte = static_cast<char>(f.get() ^ 1);
    f.seekp(at);
    f.put(byte);
  }
  std::string text() const {
    return verify_low_precision(path_, {.devices = {DeviceKind::cpu}}).at(0).text();
  }

  TemporaryDirectory directory_;
  std::string path_;
};

TEST_F(LowPrecisionVectors, AgreeOnEveryInstructionSet) {
  using enum kernels::InstructionSet;
  ASSERT_TRUE(has_low_precision(path_));
  for (const kernels::InstructionSet set : {avx2, newest}) {
    kernels::limit_instruction_set(set);
    const std::vector<Report> reports = verify_low_precision(path_, {});
    ASSERT_EQ(reports.size(), 2u);
    for (const Report& report : reports) {
      EXPECT_TRUE(report.passed()) << report.text();
      EXPECT_EQ(report.compared(), 38) << report.text();
    }
  }
}

// One bit of each kind of file.
TEST_F(LowPrecisionVectors, AChangedBitIsNamed) {
  for (const char* name :
       {"decode_e2m1", "decode_e8m0fnu", "encode_e4m3fn_saturating", "encode_e5m2_torch_cast",
        "encode_e2m1_saturating", "e8m0_torch_cast", "mx_e4m3_ceil_codes", "mx_e5m2_floor_scales",
        "mx_e2m1_ceil_dequant", "nvfp4_global_scale", "nvfp4_block_scales_e4m3", "nvfp4_codes",
        "nvfp4_dequant"}) {
    flip(name, std::string_view(name) == "nvfp4_global_scale" ? 4 : 8);
    const Report report = verify_low_precision(path_, {.devices = {DeviceKind::cpu}}).at(0);
    ASSERT_EQ(report.failures().size(), 1u) << name << report.text();
    EXPECT_NE(report.failures()[0].find(name), std::string::npos) << report.failures()[0];
    flip(name, std::string_view(name) == "nvfp4_global_scale" ? 4 : 8);
  }
}

TEST_F(LowPrecisionVectors, MissingAndUnknownFilesAreNamed) {
  std::filesystem::remove(path_ + "/decode_e5m2.npy");
  EXPECT_NE(text().find("decode_e5m2 is missing"), std::string::npos) << text();
  std::filesystem::copy(path_ + "/decode_e2m1.npy", path_ + "/decode_e3m2.npy");
  EXPECT_NE(text().find("decode_e3m2.npy is unknown"), std::string::npos) << text();
  std::filesystem::remove(path_ + "/block_input.npy");
  EXPECT_NE(text().find("block_input.npy is missing"), std::string::npos) << text();
}

TEST_F(LowPrecisionVectors, ATruncatedFileIsRefused) {
  std::filesystem::permissions(path_ + "/nvfp4_input.npy", std::filesystem::perms::owner_all);
  std::filesystem::resize_file(path_ + "/nvfp4_input.npy", 200);
  EXPECT_THROW(text(), Error);
}

}  // namespace
}  // namespace megatron::selftest
