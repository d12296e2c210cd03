#include "selftest/selftest.h"

#include <chrono>

#include "base/error.h"
#include "base/tolerances.h"
#include "kernels/case.h"
#include "ops/gradient_check.h"
#include "selftest/layouts.h"
#include "selftest/model_check.h"

namespace megatron::selftest {
namespace {

void compare_case(const kernels::Case& c, Runtime& runtime, Report& report) {
  try {
    const kernels::CaseResult result = kernels::compare_with_reference(c, runtime);
    report.compare("cases", c.name + ": " + result.output, result.worst * c.tolerance, c.tolerance);
  } catch (const Error&) {
    if (c.dtype != DType::f64) throw;  // a type that a back-end may refuse
  }
}

void add_kernel_checks(std::vector<Check>& all, int threads) {
  std::vector<std::pair<std::string, std::vector<kernels::Case>>> by_kernel;
  for (kernels::Case& c : kernels::cases()) {
    if (c.real) continue;
    if (by_kernel.empty() || by_kernel.back().first != c.kernel)
      by_kernel.push_back({c.kernel, {}});
    by_kernel.back().second.push_back(std::move(c));
  }
  for (auto& [kernel, cases] : by_kernel) {
    all.push_back({"kernels/" + kernel,
                   [threads, cases = std::move(cases)](const Environment&, Report& report) {
                     Runtime runtime({DeviceKind::cpu, 0}, threads);
                     for (const kernels::Case& c : cases) compare_case(c, runtime, report);
                   }});
  }
}

void add_gradient_checks(std::vector<Check>& all) {
  for (const ops::GradientCase& c : ops::gradient_cases()) {
    all.push_back({"gradients/" + c.name, [c](const Environment& environment, Report& report) {
                     Runtime runtime({DeviceKind::reference, 0}, 1);
                     const ops::GradientError error =
                         ops::gradient_error(c, runtime, environment.table(DeviceKind::reference));
                     report.compare("gradients", error.tensor, error.worst,
                                    tolerance::kDifferenceOp);
                   }});
  }
}

void add_model_checks(std::vector<Check>& all) {
  for (const DeviceKind device : {DeviceKind::reference, DeviceKind::cpu}) {
    const std::string type = device == DeviceKind::reference ? " fp64" : " fp32";
    for (const TinyModel& model : tiny_models()) {
      all.push_back({"model/" + model.name + type,
                     [model, device](const Environment& environment, Report& report) {
                       check_model(model, device, environment, report);
                     }});
      all.push_back({"layouts/" + model.name + type,
                     [model, device](const Environment& environment, Report& report) {
                       check_layouts(model, device, environment, report);
                     }});
    }
  }
  for (const TinyModel& model : tiny_models()) {
    all.push_back({"layouts/" + model.name + " bf16",
                   [model](const Environment& environment, Report& report) {
                     check_bf16_layouts(model, environment, report);
                   }});
    all.push_back({"bits/" + model.name, [model](const Environment& environment, Report& report) {
                     check_bits(model, environment, report);
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

std::vector<Check> checks(int threads) {
  std::vector<Check> all;
  add_kernel_checks(all, threads);
  add_gradient_checks(all);
  add_model_checks(all);
  return all;
}

Summary run(const SelftestOptions& options, const std::function<void(std::string_view)>& print) {
  const Environment environment =
      options.fault.empty() ? Environment() : faulty_environment(options.fault);
  Summary summary;
  for (const Check& check : checks(options.threads)) {
    if (check.name.find(options.filter) == std::string::npos) continue;
    const auto begin = std::chrono::steady_clock::now();
    const Report report = run_check(check, environment);
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    (report.passed() ? summary.passed : summary.failed).push_back(check.name);
    if (report.passed()) {
      print(fmt::format("ok      {:<40} {:>5} compared, {:.1e} of what is allowed, {:.1f} s\n",
                        check.name, report.compared(), report.worst_share(), seconds));
    } else {
      print(fmt::format("FAILED  {:<40} {} of {}\n        {}\n", check.name,
                        report.failures().size(), report.compared(), report.failures().front()));
    }
  }
  const size_t total = summary.passed.size() + summary.failed.size();
  MG_CHECK(total > 0, "no check has '{}' in its name", options.filter);
  print(fmt::format("{} passed, {} failed\n", summary.passed.size(), summary.failed.size()));
  return summary;
}

}  // namespace megatron::selftest
