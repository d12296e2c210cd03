#include <fmt/core.h>
#include <unistd.h>

#include <cstdio>

#include "base/error.h"
#include "base/json.h"
#include "base/progress.h"
#include "cli/command.h"
#include "selftest/device_check.h"
#include "training/device_flag.h"

namespace megatron::cli {
namespace {

using megatron::selftest::DeviceCheck;
using megatron::selftest::DeviceFindings;

Json as_json(const DeviceFindings& f) {
  Json::Array libraries, checks;
  for (const CudaLibrary& l : f.libraries)
    libraries.push_back(Json::Object{{"name", l.name},
                                     {"version", l.version},
                                     {"path", l.path},
                                     {"needed_by", l.needed_by},
                                     {"required", l.required},
                                     {"usable", l.why_not.empty()},
                                     {"why_not", l.why_not}});
  for (const DeviceCheck& c : f.checks)
    checks.push_back(Json::Object{{"name", c.name},
                                  {"passed", c.passed},
                                  {"seconds", c.seconds},
                                  {"result", c.result},
                                  {"why_not", c.why_not},
                                  {"hung", c.hung}});
  return Json::Object{{"device", f.device},
                      {"memory", f.memory},
                      {"compute_capability", f.compute_capability},
                      {"driver", f.driver},
                      {"cuda", f.cuda},
                      {"libraries", std::move(libraries)},
                      {"checks", std::move(checks)},
                      {"passed", f.passed()},
                      {"what_to_do", f.what_to_do}};
}

std::string library_line(const CudaLibrary& l) {
  const std::string needed = fmt::format("for {}", l.needed_by);
  if (l.why_not.empty())
    return fmt::format("ok       {:<20} {} {}: {}\n", l.name, l.version, needed, l.path);
  return fmt::format("{:<8} {:<20} {}: {}\n", l.required ? "FAILED" : "missing", l.name, needed,
                     l.why_not);
}

std::string as_text(const DeviceFindings& f) {
  std::string text;
  if (f.usable()) {
    text += fmt::format("{}, {} of memory", f.device, format_bytes(static_cast<double>(f.memory)));
    if (!f.cuda.empty())
      text += fmt::format(", compute capability {}, driver for CUDA {}, built for CUDA {}",
                          f.compute_capability, f.driver, f.cuda);
    text += "\n";
  }
  for (const CudaLibrary& l : f.libraries) text += library_line(l);
  for (const DeviceCheck& c : f.checks)
    text += fmt::format("{:<8} {:<20} {} ({:.2f} s)\n", c.passed ? "ok" : "FAILED", c.name,
                        c.passed ? c.result : c.why_not, c.seconds);
  if (f.passed()) text += "The device can be used.\n";
  if (!f.what_to_do.empty()) text += fmt::format("{}\n", f.what_to_do);
  return text;
}

void print(const DeviceFindings& findings, bool json) {
  fmt::print("{}", json ? as_json(findings).dump(1) + "\n" : as_text(findings));
  std::fflush(stdout);
}

}  // namespace

int selftest_device(const Arguments& arguments) {
  settings::RuntimeSettings runtime;
  megatron::selftest::DeviceCheckOptions options;
  bool json = false;
  Fields fields;
  training::add_bench_device(fields, runtime);
  fields.add("seconds", &options.seconds,
             "time limit for all checks together, after which the running one counts as hanging");
  fields.add("threads", &runtime.threads, "CPU threads; default: all cores");
  fields.add_switch("json", &json, true, "print JSON");
  const auto done = parse(
      "megatron selftest device [flags]",
      "Checks in less than a minute whether this machine's GPU (or CPU) can be used: shows the "
      "device, its driver and NVIDIA's libraries with versions and paths, then runs a fill, "
      "GEMMs, and attention forward and backward, each compared with a reference in plain loops. "
      "The exit code is 0 when all passed, 1 when a check failed, 2 when there is no usable "
      "device.",
      fields, {}, arguments);
  if (done) return *done;
  MG_CHECK(options.seconds > 0 && options.seconds <= 3600,
           "--seconds is {}; it must lie in (0, 3600]", options.seconds);
  runtime.check();
  runtime.limit_instruction_set();
  // With --device cuda, the findings report why no GPU is available.
  options.device = runtime.device == "cuda" ? DeviceKind::cuda : runtime.device_kind();
  options.threads = runtime.threads_per_rank();
  options.hung = [json](const DeviceFindings& findings) {
    print(findings, json);
    ::_exit(1);
  };
  const DeviceFindings findings = megatron::selftest::check_device(options);
  print(findings, json);
  return !findings.usable() ? 2 : findings.passed() ? 0 : 1;
}

}  // namespace megatron::cli
