#include "selftest/selftest.h"

#include <chrono>

#include "base/error.h"
#include "base/tolerances.h"
#include "device/cuda_plugin.h"
#include "kernels/case.h"
#include "ops/gradient_check.h"
#include "selftest/layouts.h"
#include "selftest/model_check.h"

namespace megatron::selftest {
namespace {

void compare_case(const kernels::Case& c, Runtime& runtime, Report& report) {
  try {
    const kernels::CaseResult result = c.real ? kernels::compare_with_cpu(c, runtime)
                                              : kernels::compare_with_reference(c, runtime);
    report.compare("cases", c.name + ": " + result.output, result.worst * c.tolerance, c.tolerance);
  } catch (const Error&) {
    if (c.dtype != DType::f64) throw;  // back-ends may refuse f64 only
  }
}

void add_kernel_checks(std::vector<Check>& all, const std::string& group, bool real,
                       DeviceKind device, int threads) {
  std::vector<std::pair<std::string, std::vector<kernels::Case>>> by_kernel;
  for (kernels::Case& c : kernels::cases()) {
    if (c.real != real) continue;
    auto found = std::ranges::find(by_kernel, c.kernel, &decltype(by_kernel)::value_type::first);
    if (found == by_kernel.end()) found = by_kernel.insert(found, {c.kernel, {}});
    found->second.push_back(std::move(c));
  }
  for (auto& [kernel, cases] : by_kernel) {
    all.push_back({group + kernel,
                   [device, threads, cases = std::move(cases)](const Environment&, Report& report) {
                     Runtime runtime({device, 0}, threads);
                     for (const kernels::Case& c : cases) compare_case(c, runtime, report);
                   }});
  }
}

void check_gradients(const ops::GradientCase& c, DeviceKind device, const Environment& environment,
                     Report& report) {
  if (device == DeviceKind::cuda) {
    Runtime runtime({device, 0}, 1);
    const ops::GradientError error = ops::gradient_distance(c, DType::f32, runtime);
    return report.compare("gradients", error.tensor, error.worst, tolerance::kDeviceGradientOp);
  }
  Runtime runtime({DeviceKind::reference, 0}, 1);
  const ops::GradientError error =
      ops::gradient_error(c, runtime, environment.table(DeviceKind::reference));
  report.compare("gradients", error.tensor, error.worst, tolerance::kDifferenceOp);
}

void add_gradient_checks(std::vector<Check>& all, DeviceKind device) {
  for (const ops::GradientCase& c : ops::gradient_cases()) {
    all.push_back(
        {"gradients/" + c.name, [c, device](const Environment& environment, Report& report) {
           check_gradients(c, device, environment, report);
         }});
  }
}

// Testing the CPU also checks the reference.
void add_model_checks(std::vector<Check>& all, DeviceKind tested) {
  std::vector<DeviceKind> devices = {tested};
  if (tested == DeviceKind::cpu) devices.insert(devices.begin(), DeviceKind::reference);
  for (const DeviceKind device : devices) {
    const std::string type = device == DeviceKind::reference ? " fp64" : " fp32";
    const auto add_model = [&](const TinyModel& model) {
      all.push_back({"model/" + model.name + type,
                     [model, device](const Environment& environment, Report& report) {
                       check_model(model, device, environment, report);
                     }});
    };
    add_model(predicting_model());
    for (const TinyModel& model : tiny_encoders()) add_model(model);
    add_model(tiny_t5());
    add_model(tiny_hybrid());
    for (const TinyModel& model : tiny_models()) {
      add_model(model);
      all.push_back({"layouts/" + model.name + type,
                     [model, device](const Environment& environment, Report& report) {
                       check_layouts(model, device, environment, report);
                     }});
    }
  }
  for (const TinyModel& model : tiny_models()) {
    all.push_back({"layouts/" + model.name + " bf16",
                   [model, tested](const Environment& environment, Report& report) {
                     check_bf16_layouts(model, tested, environment, report);
                   }});
    all.push_back(
        {"bits/" + model.name, [model, tested](const Environment& environment, Report& report) {
           check_bits(model, tested, environment, report);
         }});
  }
}

Report run_check(const Check& check, const Environment& environment) {
  Report report(check.name);
  try {
    check.run(environment, report);
    if (report.compared() == 0) report.fail("nothing was compared");
  } catch (const std::exception& e) {
    report.fail(e.what());
  }
  return report;
}

}  // namespace

std::vector<Check> checks(int threads, DeviceKind device, bool real) {
  std::vector<Check> all;
  if (real) {
    add_kernel_checks(all, "real/", true, device, threads);
    return all;
  }
  add_kernel_checks(all, "kernels/", false, device, threads);
  add_gradient_checks(all, device);
  add_model_checks(all, device);
  return all;
}

namespace {

using Print = std::function<void(std::string_view)>;

constexpr size_t kColumns = 100, kListedFailures = 5;

bool selected(const SelftestOptions& options, const std::string& name) {
  const std::string_view filter = options.filter;
  return filter.starts_with('=') ? name == filter.substr(1)
                                 : name.find(filter) != std::string::npos;
}

// Lines of at most kColumns, cut between words; those after the first are indented.
std::string lines(const std::string& first, size_t indent, std::string_view text) {
  std::string result = first;
  size_t column = first.size();
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    const bool starts = column == indent || column == first.size();
    if (!starts && column + 1 + word.size() > kColumns) {
      result += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (!starts) {
      result += ' ';
      ++column;
    }
    result += word;
    column += word.size();
    text.remove_prefix(std::min(word.size() + 1, text.size()));
  }
  return result + "\n";
}

void print_excluded(const std::vector<std::string>& excluded, const Print& print) {
  for (size_t i = 0; i < excluded.size(); ++i) {
    const size_t end = excluded[i].find(": ");
    const std::string reason = excluded[i].substr(end + 2);
    print("  " + excluded[i].substr(0, end) + "\n");
    const bool same = i + 1 < excluded.size() && excluded[i + 1].ends_with(": " + reason);
    if (!same) print(lines("      ", 6, reason));
  }
}

void print_row(const std::string& name, const Report& report, double seconds, const Print& print) {
  print(lines(report.passed() ? "ok      " : "FAILED  ", 8, name));
  if (report.passed()) {
    print(lines(
        "        ", 8,
        fmt::format("worst of {}: {}; {:.1f} s", report.compared(), report.worst(), seconds)));
    return;
  }
  const size_t listed = std::min(report.failures().size(), kListedFailures);
  for (size_t i = 0; i < listed; ++i) print(lines("        ", 10, report.failures()[i]));
  if (report.failures().size() > listed)
    print(fmt::format("        and {} more\n", report.failures().size() - listed));
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

Precisions precisions_of(const SelftestOptions& options) {
  if (!options.fault.empty()) return Precisions::fp64;
  return options.device == DeviceKind::cuda ? Precisions::fp32 : options.precisions;
}

// With a fault, runs only rows that reach it, on the reference, until one fails.
Summary run_matrix(const SelftestOptions& options, const Fault* fault,
                   const Environment& environment, const Print& print) {
  const LayoutMatrix matrix(options.layouts);
  print(lines("", 0, matrix.summary() + (matrix.excluded().empty() ? "" : ":")));
  print_excluded(matrix.excluded(), print);
  MatrixRun matrix_run(environment, precisions_of(options), options.device);
  Summary summary;
  for (const MatrixRow* row : matrix.part(options.part, options.parts)) {
    const std::string name = fmt::format("row {}: {}", row->number, row->str());
    if (!selected(options, name) || (fault != nullptr && !comes_to(*fault, *row))) continue;
    const auto begin = std::chrono::steady_clock::now();
    const Report report =
        run_check({name, [&](const Environment&, Report& into) { into = matrix_run.run(*row); }},
                  environment);
    (report.passed() ? summary.passed : summary.failed).push_back(name);
    print_row(name, report, seconds_since(begin), print);
    if (fault != nullptr && !report.passed()) break;
  }
  return summary;
}

Summary run_checks(const SelftestOptions& options, const Environment& environment,
                   const Print& print) {
  Summary summary;
  for (const Check& check : checks(options.threads, options.device, options.real)) {
    if (!selected(options, check.name)) continue;
    const auto begin = std::chrono::steady_clock::now();
    const Report report = run_check(check, environment);
    const double seconds = seconds_since(begin);
    (report.passed() ? summary.passed : summary.failed).push_back(check.name);
    if (report.passed()) {
      print(fmt::format("ok      {:<40} {:>5} compared, {:.1e} of the tolerance, {:.1f} s\n",
                        check.name, report.compared(), report.worst_share(), seconds));
    } else {
      print(fmt::format("FAILED  {:<40} {} of {}\n        {}\n", check.name,
                        report.failures().size(), report.compared(), report.failures().front()));
    }
  }
  return summary;
}

void print_names(const SelftestOptions& options, const Print& print) {
  if (options.layouts > 0) {
    const LayoutMatrix matrix(options.layouts);
    for (const MatrixRow* row : matrix.part(options.part, options.parts)) {
      const std::string name = fmt::format("row {}: {}", row->number, row->str());
      if (selected(options, name)) print(name + "\n");
    }
    return;
  }
  for (const Check& check : checks(options.threads, options.device, options.real))
    if (selected(options, check.name)) print(check.name + "\n");
}

}  // namespace

Summary run(const SelftestOptions& options, const Print& print) {
  const bool matrix = options.layouts > 0;
  const Fault* const fault = options.fault.empty() ? nullptr : &fault_named(options.fault);
  MG_CHECK(fault == nullptr || !matrix || fault->in_row,
           "the layout matrix cannot detect the fault '{}', which affects one rank and many ranks "
           "in the same way: run it without --layouts",
           options.fault);
  MG_CHECK(fault == nullptr || matrix || fault->in_checks,
           "only the layout matrix exercises the fault '{}': add --layouts", options.fault);
  const bool cuda = options.device == DeviceKind::cuda;
  MG_CHECK(fault == nullptr || !cuda, "faults can only be injected on the CPU: use --device cpu");
  MG_CHECK(!options.real || (cuda && !matrix),
           "--real compares CUDA kernels with CPU kernels: give --device cuda, not --layouts");
  if (options.list) {
    print_names(options, print);
    return {};
  }
  if (cuda) {
    const CudaPlugin& plugin = cuda_plugin();
    print(lines("", 2, fmt::format("{}; {}", plugin.devices().front().name, plugin.versions())));
  }
  const Environment environment = fault == nullptr ? Environment() : fault->environment();
  if (fault != nullptr) print(lines("", 2, fmt::format("fault {}: {}", fault->name, fault->text)));
  Summary summary = matrix ? run_matrix(options, fault, environment, print)
                           : run_checks(options, environment, print);
  const size_t total = summary.passed.size() + summary.failed.size();
  MG_CHECK(total > 0, "no {} has '{}' in its name", matrix ? "row" : "check", options.filter);
  print(fmt::format("{} passed, {} failed\n", summary.passed.size(), summary.failed.size()));
  return summary;
}

}  // namespace megatron::selftest
