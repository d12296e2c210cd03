#include "plan/kept_rates.h"

#include <fmt/core.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <optional>

#include "base/clock.h"
#include "base/error.h"
#include "base/files.h"
#include "base/machine_limits.h"
#include "base/philox.h"
#include "base/processor.h"
#include "base/program_path.h"
#include "base/user_cache.h"
#include "base/version.h"
#include "device/cuda_plugin.h"
#include "kernels/instruction_set.h"
#include "plan/machine_rates.h"

namespace megatron::plan {
namespace {

constexpr double kMinShare = 0.8;
constexpr size_t kLargestFile = 1 << 16;

// Name of a program's file, and a text that differs between its builds.
struct Build {
  std::string program, text;
};

Build build_of(std::string program) {
  Build build{.text = std::string(version())};
  struct stat file{};
  try {
    if (program.empty()) program = program_path();
    if (::stat(program.c_str(), &file) == 0)
      build.text += fmt::format(" {} {}", file.st_size, file.st_mtime);
  } catch (const Error&) {  // there is no /proc
  }
  build.program = program.substr(program.rfind('/') + 1);
  return build;
}

std::string device_name(Device device) {
  if (device.kind != DeviceKind::cuda) return std::string(name(device.kind));
  return cuda_plugin().devices()[static_cast<size_t>(device.index)].name + ", " +
         cuda_plugin().versions();
}

// Another build's file has the same name, so that the files of old builds do not accumulate.
std::string path_of(const RateKeeping& keeping, const Json& key) {
  std::string lasting, what = key["rate"].as_string();
  for (const auto& [name, value] : key.as_object())
    if (name != "build") lasting += value.dump() + "\n";
  std::ranges::replace(what, ' ', '-');
  return fmt::format("{}/{}-{:016x}.json", keeping.folder, what, hash_name(lasting));
}

std::string now_text() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  std::array<char, 64> text{};
  return {text.data(), std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M UTC", &parts)};
}

std::optional<Rate> read_rate(const std::string& path, const Json& key) {
  try {
    const Json file = Json::parse(read_file(path, kLargestFile), path);
    Rate rate{.value = file["value"].as_number(),
              .spread = file["spread"].as_number(),
              .kept_since = file["measured"].as_string()};
    const bool sound = std::isfinite(rate.value) && rate.value > 0 && file["key"] == key &&
                       !rate.kept_since.empty() && rate.kept_since.size() < 64;
    return sound ? std::optional(rate) : std::nullopt;
  } catch (const Error&) {
    return std::nullopt;
  }
}

// Keeps a rate; returns the reason if it is not kept.
std::string keep(const RateKeeping& keeping, const Json& key, const Rate& rate) {
  if (!(rate.value > 0)) return "no positive rate was measured";
  if (rate.spread > kNoisySpread)
    return fmt::format("its samples differ by {:.0f}%: other programs may be running",
                       100 * rate.spread);
  if (rate.share < kMinShare)
    return fmt::format("other programs used {:.0f}% of the CPU time", 100 * (1 - rate.share));
  if (keeping.folder.empty()) return keeping.no_folder;
  try {
    make_directories(keeping.folder);
    AtomicFile file(path_of(keeping, key));
    file.write(Json(Json::Object{{"value", rate.value},
                                 {"spread", rate.spread},
                                 {"measured", now_text()},
                                 {"key", key}})
                   .dump(1) +
               "\n");
    file.publish();
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

// Share of the processors that this process had while all threads worked.
double share_of_processors(Device device, int threads, const std::function<void()>& work) {
  const double begin = now_seconds(), used = processor_seconds();
  work();
  if (device.kind == DeviceKind::cuda) return 1;
  const double seconds = processor_seconds() - used;
  return seconds / ((now_seconds() - begin) * std::min(threads, available_processors()));
}

}  // namespace

std::string Rate::origin() const {
  if (!kept_since.empty())
    return fmt::format("cached from {} (--measure-peak measures it again)", kept_since);
  return not_kept.empty() ? "measured now and cached for later runs"
                          : fmt::format("measured now, not cached: {}", not_kept);
}

RateKeeping user_rates(bool renew) {
  const std::string folder = user_cache_directory();
  return {.folder = folder.empty() ? "" : folder + "/rates",
          .renew = renew,
          .no_folder = "neither XDG_CACHE_HOME nor HOME names a folder"};
}

Json rate_key(const std::string& what, Device device, int threads, const std::string& program) {
  const Build build = build_of(program);
  const bool avx2 = kernels::instruction_set_limit() == kernels::InstructionSet::avx2;
  return Json::Object{{"rate", what},
                      {"program", build.program},
                      {"build", build.text},
                      {"cpu", cpu_name()},
                      {"features", fmt::format("{:016x}", hash_name(cpu_features()))},
                      {"instructions", avx2 ? "avx2" : "newest"},
                      {"processors", allowed_processors()},
                      {"limit", available_processors()},
                      {"threads", threads},
                      {"device", device_name(device)}};
}

Rate kept_rate(const RateKeeping& keeping, const Json& key, const std::function<Rate()>& measure) {
  if (!keeping.renew && !keeping.folder.empty())
    if (auto rate = read_rate(path_of(keeping, key), key)) return *rate;
  if (!keeping.measure && !keeping.renew) return {};
  Rate rate = measure();
  rate.not_kept = keep(keeping, key, rate);
  return rate;
}

Rate gemm_peak(Device device, int threads, DType type, const RateKeeping& keeping) {
  const Json key = rate_key(fmt::format("gemm {}", name(type)), device, threads);
  return kept_rate(keeping, key, [&] {
    constexpr int kSamples = 3;
    constexpr double kSeconds = 0.2;
    Runtime runtime(device, threads);
    PeakMeter meter(runtime, type);
    const double share = share_of_processors(device, threads, [&] {
      for (int i = 0; i < kSamples; ++i) meter.sample(kSeconds);
    });
    return Rate{.value = meter.peak(), .spread = meter.spread(), .share = share};
  });
}

Rate library_gemm_peak(Device device, int threads, DType type, const RateKeeping& keeping) {
  if (device.kind != DeviceKind::cpu) return {};
  const Json key = rate_key(fmt::format("library gemm {}", name(type)), device, threads);
  return kept_rate(keeping, key, [&] {
    constexpr int kSamples = 3;
    constexpr double kSeconds = 0.1;
    Runtime runtime(device, threads);
    double least = 0, most = 0;
    const double share = share_of_processors(device, threads, [&] {
      for (int i = 0; i < kSamples; ++i) {
        const double rate = library_gemm_rate(runtime, type, kSeconds);
        least = i == 0 ? rate : std::min(least, rate);
        most = std::max(most, rate);
      }
    });
    return Rate{.value = most, .spread = most > 0 ? (most - least) / most : 0, .share = share};
  });
}

Rate copy_rate(Device device, int threads, const RateKeeping& keeping) {
  return kept_rate(keeping, rate_key("copy", device, threads), [&] {
    constexpr int kSamples = 3;
    Runtime runtime(device, threads);
    BandwidthMeter meter(runtime);
    const double share = share_of_processors(device, threads, [&] {
      for (int i = 0; i < kSamples; ++i) meter.sample(2);
    });
    return Rate{.value = meter.best(), .spread = meter.spread(), .share = share};
  });
}

}  // namespace megatron::plan
