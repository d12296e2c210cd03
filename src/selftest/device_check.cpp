#include "selftest/device_check.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <initializer_list>
#include <mutex>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/machine_limits.h"
#include "base/processor.h"
#include "device/cuda_plugin.h"
#include "device/stream.h"
#include "kernels/case.h"

namespace megatron::selftest {
namespace {

using Names = std::initializer_list<std::pair<const char*, const char*>>;  // kernel and Case

// On CUDA the first attention is computed by a library; the second always by this program's kernel.
const Names kFills = {{"fill", "[7, 33] f32 misaligned value=3"}};
const Names kProducts = {{"gemm", "m=128 k=192 n=256 NT f32 bias"},
                         {"gemm", "m=128 k=192 n=256 NT bf16 bias"},
                         {"gemm", "m=40 k=24 n=72 NT bf16 bias gelu aux"},
                         {"gemm", "m=72 k=40 n=24 TN bf16 to f32 accumulated bias gradient added"}};
constexpr const char *kLibrarysAttention = "b=1 t=128 s=128 n=2/1 d=64 bf16 causal packed",
                     *kOurAttention = "b=2 t=33 s=33 n=4/2 d=24 bf16 causal";
const Names kForward = {{"attention", kLibrarysAttention}, {"attention", kOurAttention}};
const Names kBackward = {{"attention_backward", kLibrarysAttention},
                         {"attention_backward", kOurAttention}};

// Calls hung() if it is not destroyed in time.
class Deadline {
 public:
  Deadline(double seconds, std::function<void()> hung)
      : thread_([this, seconds, hung = std::move(hung)] {
          std::unique_lock lock(mutex_);
          if (!done_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return over_; }))
            hung();
        }) {}
  ~Deadline() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    done_.notify_all();
    thread_.join();
  }

 private:
  std::mutex mutex_;
  std::condition_variable done_;
  bool over_ = false;
  std::thread thread_;
};

// The version that follows `word`: "13.0" for "CUDA" in "CUDA 13.0, driver 13.0"; "" if it is
// absent.
std::string version_behind(const std::string& versions, const std::string& word) {
  const size_t at = versions.find(word + " ");
  if (at == versions.npos) return "";
  const std::string rest = versions.substr(at + word.size() + 1);
  return rest.substr(0, rest.find(','));
}

std::string with_version(std::string_view library) {
  const CudaLibrary found = cuda_library(library);
  return found.version.empty() ? found.name : found.name + " " + found.version;
}

class Checker {
 public:
  explicit Checker(const DeviceCheckOptions& options) : options_(options) {}

  DeviceFindings run() {
    const Deadline deadline(options_.seconds, [this] { hang(); });
    begin("device");
    const bool found = options_.device == DeviceKind::cuda ? look_for_gpu() : look_at_cpu();
    if (!found) return findings_;
    const auto cases = kernels::cases();
    check("fill", cases, kFills);
    check("matrix product", cases, kProducts);
    check("attention forward", cases, kForward);
    check("attention backward", cases, kBackward);
    findings_.what_to_do = advice();
    return findings_;
  }

 private:
  bool look_at_cpu() {
    findings_.device = cpu_name().empty() ? "CPU" : cpu_name();
    findings_.memory = available_memory();
    return true;
  }

  bool look_for_gpu() {
    const CudaState& cuda = cuda_state();
    const std::vector<CudaLibrary> libraries = cuda_libraries();
    const std::lock_guard lock(mutex_);
    findings_.libraries = libraries;
    if (cuda.plugin == nullptr) {
      findings_.what_to_do = "CUDA cannot be used: " + cuda.why_not;
      return false;
    }
    const CudaDevice& gpu = cuda.plugin->devices().front();
    findings_.device = gpu.name;
    findings_.memory = gpu.memory;
    findings_.compute_capability = fmt::format("{}.{}", gpu.major, gpu.minor);
    findings_.cuda = version_behind(cuda.plugin->versions(), "CUDA");
    findings_.driver = version_behind(cuda.plugin->versions(), "driver");
    return true;
  }

  void begin(const std::string& name) {
    const std::lock_guard lock(mutex_);
    in_flight_ = name;
    begin_ = now_seconds();
  }

  void check(const std::string& name, const std::vector<kernels::Case>& cases, const Names& names) {
    begin(name);
    DeviceCheck check{.name = name};
    try {
      check.result = compare(cases, names);
      check.passed = true;
    } catch (const std::exception& error) {
      check.why_not = error.what();
    }
    check.seconds = now_seconds() - begin_;
    const std::lock_guard lock(mutex_);
    findings_.checks.push_back(std::move(check));
  }

  std::string compare(const std::vector<kernels::Case>& cases, const Names& names) const {
    Runtime runtime({options_.device, 0}, options_.threads);
    double worst = 0;
    for (const auto& [kernel, name] : names) {
      const auto found = std::ranges::find_if(
          cases, [&](const kernels::Case& c) { return c.kernel == kernel && c.name == name; });
      MG_ASSERT(found != cases.end());
      const kernels::CaseResult result = kernels::compare_with_reference(*found, runtime);
      MG_CHECK(result.worst <= 1, "{} {}: the error of {} is {:.3g} times the tolerance", kernel,
               name, result.output, result.worst);
      worst = std::max(worst, result.worst);
    }
    return fmt::format("{} call{}, error at most {:.2f} of the tolerance{}", names.size(),
                       names.size() == 1 ? "" : "s", worst, computed_by(runtime.stream().calls()));
  }

  std::string computed_by(const CallCounts& calls) const {
    if (calls.attention_library > 0) return "; " + with_version("cuDNN");
    if (calls.attention_own > 0) return "; this program's own kernels";
    return calls.epilogues_fused > 0 ? "; " + with_version("cuBLASLt") : "";
  }

  std::string advice() const {
    for (const DeviceCheck& check : findings_.checks)
      if (!check.passed)
        return fmt::format(
            "the check of the {} failed; `megatron selftest --device {} --filter kernels/` checks "
            "each kernel",
            check.name, name(options_.device));
    return "";
  }

  void hang() {
    const std::lock_guard lock(mutex_);
    findings_.checks.push_back(
        {.name = in_flight_,
         .seconds = now_seconds() - begin_,
         .why_not =
             fmt::format("it did not finish; the time limit of all checks together is {:.3g} s",
                         options_.seconds),
         .hung = true});
    findings_.what_to_do =
        fmt::format("the check of the {} hangs: {}", in_flight_,
                    options_.device == DeviceKind::cuda
                        ? "check nvidia-smi and dmesg for GPU or driver errors (Xid); the GPU "
                          "may need a reset, or the machine a reboot"
                        : "give it more time (--seconds) on a machine that is this busy");
    options_.hung(findings_);
  }

  const DeviceCheckOptions& options_;
  std::mutex mutex_;  // guards what hang() reads
  DeviceFindings findings_;
  std::string in_flight_;
  double begin_ = 0;
};

}  // namespace

bool DeviceFindings::passed() const {
  return usable() && !checks.empty() && std::ranges::all_of(checks, &DeviceCheck::passed);
}

DeviceFindings check_device(const DeviceCheckOptions& options) { return Checker(options).run(); }

}  // namespace megatron::selftest
