// The matrix-product peak that `train` caches between runs.
#include <cstdlib>

#include "base/json.h"
#include "golden/cli/tiny_run.h"
#include "plan/kept_rates.h"

namespace megatron::testing {
namespace {

// Sets the cache folders of child processes while a test runs.
class Folders {
 public:
  Folders(const char* cache, const char* home)
      : cache_(text("XDG_CACHE_HOME")), home_(text("HOME")) {
    set("XDG_CACHE_HOME", cache);
    set("HOME", home);
  }
  ~Folders() {
    set("XDG_CACHE_HOME", cache_.c_str());
    set("HOME", home_.c_str());
  }

 private:
  static std::string text(const char* name) {
    const char* value = std::getenv(name);
    return value != nullptr ? value : "";
  }
  static void set(const char* name, const char* value) {
    if (value != nullptr) ::setenv(name, value, 1);
    else ::unsetenv(name);
  }
  std::string cache_, home_;
};

class KeptPeak : public ::testing::Test {
 protected:
  static Words words() {
    return {"train", "--num-layers",  "1",  "--hidden-size", "16",   "--num-attention-heads",
            "2",     "--seq-length",  "16", "--vocab-size",  "64",   "--micro-batch-size",
            "1",     "--train-iters", "1",  "--lr",          "1e-3", "--threads",
            "1",     "--mock-data"};
  }
  // Returns the text after "GEMM peak of this machine: 0.123 TFLOP/s, ".
  std::string origin(const Words& more = {}, const std::string& type = "f32") {
    outcome_ = place_.run(with(words(), more));
    EXPECT_EQ(outcome_.code, 0) << outcome_.err;
    const size_t line = outcome_.err.find(type + " GEMM peak of this machine: "),
                 begin = outcome_.err.find("TFLOP/s, ", line);
    if (line == std::string::npos || begin == std::string::npos) {
      ADD_FAILURE() << outcome_.err;
      return "";
    }
    return outcome_.err.substr(begin + 9, outcome_.err.find('\n', begin) - begin - 9);
  }
  double peak_of(const std::string& log) const {
    const std::string text = read_file(place_ / log);
    return Json::parse(text.substr(0, text.find('\n')))["peak_flops"].as_number();
  }

  Workplace place_;
  Outcome outcome_;
};

TEST_F(KeptPeak, SharesAreOfTheFastestThatAnEarlierRunKept) {
  const Folders folders((place_ / "cache").c_str(), "/nonexistent");
  const auto keep = [&](const char* what, double value) {
    const Json key = plan::rate_key(what, {DeviceKind::cpu, 0}, 1, MEGATRON_BINARY);
    plan::kept_rate({.folder = place_ / "cache/megatron/rates", .renew = true}, key,
                    [value] { return plan::Rate{.value = value}; });
  };
  keep("gemm f32", 1.25e11);
  keep("library gemm f32", 1e11);
  for (const char* log : {"first.jsonl", "second.jsonl"}) {
    EXPECT_TRUE(origin({"--log-jsonl", log}).starts_with("cached from 2"));
    EXPECT_EQ(peak_of(log), 1.25e11);
  }
  keep("library gemm f32", 2.5e11);
  const std::string library = origin({"--log-jsonl", "library.jsonl"});
  EXPECT_TRUE(library.starts_with("with oneDNN, cached from 2")) << library;
  EXPECT_TRUE(library.ends_with("this program's own kernels reach 0.125")) << library;
  EXPECT_EQ(peak_of("library.jsonl"), 2.5e11);
  EXPECT_NE(origin({"--measure-peak"}).find("measured now"), std::string::npos);
  // bf16 has its own peaks
  EXPECT_NE(origin({"--bf16", "--measure-peak"}, "bf16").find("measured now"), std::string::npos);
  // and so short a run does not measure it by itself
  const Outcome short_run = place_.run(with(words(), {"--fp16"}));
  EXPECT_NE(short_run.err.find("GEMM peak: not measured for a run of "), std::string::npos);
  EXPECT_EQ(short_run.out.find("of peak"), std::string::npos);
}

TEST_F(KeptPeak, RunsNeedNoCache) {
  {
    const Folders none(nullptr, nullptr);
    EXPECT_NE(origin({"--measure-peak"}).find("not cached: "), std::string::npos);
  }
  const Folders read_only(nullptr, "/proc");
  EXPECT_NE(origin({"--measure-peak"}).find("not cached: "), std::string::npos);
}

}  // namespace
}  // namespace megatron::testing
