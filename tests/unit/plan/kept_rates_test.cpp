#include "plan/kept_rates.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "base/files.h"

namespace megatron::plan {
namespace {

class KeptRates : public ::testing::Test {
 protected:
  KeptRates() {
    std::string pattern = (std::filesystem::temp_directory_path() / "megatron-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
    keeping_.folder = folder_ + "/cache/rates";
  }
  ~KeptRates() override { std::filesystem::remove_all(folder_); }

  Rate rate(Rate measured) {
    return kept_rate(keeping_, key_, [&] {
      ++measurements_;
      return measured;
    });
  }
  std::vector<std::string> files() const {
    std::vector<std::string> paths;
    if (!std::filesystem::exists(keeping_.folder)) return paths;
    for (const auto& entry : std::filesystem::directory_iterator(keeping_.folder))
      paths.push_back(entry.path());
    return paths;
  }

  std::string folder_;
  RateKeeping keeping_;
  Json key_ = rate_key("gemm f32", {DeviceKind::cpu, 0}, 2);
  int measurements_ = 0;
};

TEST_F(KeptRates, AreMeasuredOnce) {
  const Rate first = rate({.value = 1.25e11, .spread = 0.1});
  EXPECT_EQ(first.origin(), "measured now and cached for later runs");
  const Rate second = rate({.value = 9e11});
  EXPECT_EQ(measurements_, 1);
  EXPECT_EQ(second.value, 1.25e11);
  EXPECT_EQ(second.spread, 0.1);
  EXPECT_TRUE(second.origin().starts_with("cached from 2")) << second.origin();
  EXPECT_NE(second.origin().find("UTC (--measure-peak measures it again)"), std::string::npos);
}

TEST_F(KeptRates, AreRenewed) {
  rate({.value = 1});
  keeping_.renew = true;
  EXPECT_EQ(rate({.value = 2}).value, 2);
  keeping_.renew = false;
  EXPECT_EQ(rate({.value = 3}).value, 2);
  EXPECT_EQ(measurements_, 2);
}

TEST_F(KeptRates, WhatIsNoisyIsUsedAndNotKept) {
  const Rate apart = rate({.value = 1, .spread = 0.16});
  EXPECT_EQ(apart.value, 1);
  EXPECT_NE(apart.origin().find("not cached: its samples differ by 16%"), std::string::npos);
  const Rate shared = rate({.value = 2, .spread = 0.14, .share = 0.5});
  EXPECT_EQ(shared.value, 2);
  EXPECT_NE(shared.origin().find("other programs used 50%"), std::string::npos) << shared.origin();
  EXPECT_TRUE(files().empty());
  EXPECT_EQ(rate({.value = 3, .spread = 0.15}).not_kept, "");
}

// A noisy measurement does not replace the stored value either.
TEST_F(KeptRates, NoiseReplacesNothing) {
  rate({.value = 1});
  keeping_.renew = true;
  EXPECT_EQ(rate({.value = 2, .spread = 0.5}).value, 2);
  keeping_.renew = false;
  EXPECT_EQ(rate({.value = 3}).value, 1);
}

TEST_F(KeptRates, BelongToTheirKey) {
  rate({.value = 1});
  for (const Json& key : {rate_key("gemm bf16", {DeviceKind::cpu, 0}, 2),
                          rate_key("gemm f32", {DeviceKind::cpu, 0}, 1),
                          rate_key("gemm f32", {DeviceKind::reference, 0}, 2)}) {
    key_ = key;
    EXPECT_EQ(rate({.value = 2}).value, 2) << key.dump();
  }
  EXPECT_EQ(files().size(), 4u);
}

TEST_F(KeptRates, OfAnotherBuildAreReplaced) {
  key_.set("build", "0.0.9 1 2");
  rate({.value = 1});
  key_ = rate_key("gemm f32", {DeviceKind::cpu, 0}, 2);
  EXPECT_EQ(rate({.value = 2}).value, 2);
  EXPECT_EQ(rate({.value = 3}).value, 2);
  EXPECT_EQ(files().size(), 1u);
}

TEST_F(KeptRates, DamagedFilesCountAsNone) {
  rate({.value = 1});
  const std::string path = files().at(0), whole = read_file(path);
  const auto replaced = [&](const std::string& from, const std::string& to) {
    std::string text = whole;
    return text.replace(text.find(from), from.size(), to);
  };
  for (const std::string& text :
       {std::string(), whole.substr(0, whole.size() / 2), std::string("[]"),
        std::string("\0\xff", 2), replaced("1.0", "-1.0"), replaced("1.0", "1e999"),
        replaced("1.0", "\"x\""), replaced("gemm f32", "gemm f16"),
        std::string(1 << 20, ' ') + whole}) {
    write_file(path, text);
    measurements_ = 0;
    EXPECT_EQ(rate({.value = 5}).value, 5) << text.substr(0, 200);
    EXPECT_EQ(rate({.value = 6}).value, 5);  // and are replaced
    EXPECT_EQ(measurements_, 1);
  }
  std::filesystem::remove(path);
  std::filesystem::create_directory(path);
  const Rate in_the_way = rate({.value = 7});
  EXPECT_EQ(in_the_way.value, 7);
  EXPECT_NE(in_the_way.not_kept.find(path), std::string::npos) << in_the_way.not_kept;
}

TEST_F(KeptRates, WhereNothingCanBeWrittenTheyAreMeasured) {
  write_file(folder_ + "/cache", "a file");
  EXPECT_NE(rate({.value = 1}).not_kept.find(folder_ + "/cache"), std::string::npos);
  keeping_.folder.clear();
  keeping_.no_folder = "there is no HOME";
  EXPECT_EQ(rate({.value = 2}).origin(), "measured now, not cached: there is no HOME");
  EXPECT_EQ(rate({.value = 3}).value, 3);
}

TEST_F(KeptRates, ManyMayBeKeptAtOnce) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([this] {
      for (int k = 0; k < 20; ++k) {
        RateKeeping keeping = keeping_;
        keeping.renew = k % 2 == 0;
        const Rate found = kept_rate(keeping, key_, [] { return Rate{.value = 4}; });
        EXPECT_EQ(found.value, 4);
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(files().size(), 1u);  // no incomplete file remains
  EXPECT_EQ(rate({.value = 5}).value, 4);
}

TEST_F(KeptRates, OfTheMachineAreMeasured) {
  const Rate peak = gemm_peak({DeviceKind::cpu, 0}, 1, DType::f32, keeping_);
  EXPECT_GT(peak.value, 1e8);
  EXPECT_GT(peak.share, 0);
  if (!peak.not_kept.empty()) return;
  EXPECT_EQ(gemm_peak({DeviceKind::cpu, 0}, 1, DType::f32, keeping_).value, peak.value);
}

TEST_F(KeptRates, OfTheLibraryAreThoseOfTypesThatItMultiplies) {
  const Device cpu{DeviceKind::cpu, 0};
  const Rate f32 = library_gemm_peak(cpu, 1, DType::f32, keeping_);
  EXPECT_TRUE(f32.value == 0 || f32.value > 1e8) << f32.value;  // 0 in a build without the library
  EXPECT_EQ(library_gemm_peak(cpu, 1, DType::f16, keeping_).value, 0);
  EXPECT_EQ(library_gemm_peak({DeviceKind::reference, 0}, 1, DType::f32, keeping_).value, 0);
}

}  // namespace
}  // namespace megatron::plan
