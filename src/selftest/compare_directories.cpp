#include "selftest/compare_directories.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "checkpoint/model_directory.h"
#include "checkpoint/safetensors.h"

namespace megatron::selftest {
namespace {

// Elements of a stored tensor at once.
constexpr int64_t kAtOnce = int64_t{1} << 20;

double largest_difference_of(const std::string& name, const checkpoint::ModelDirectory& a,
                             const checkpoint::ModelDirectory& b) {
  const checkpoint::TensorInfo& info = *a.find(name);
  double worst = 0;
  for (int64_t begin = 0; begin < info.shape.elements(); begin += kAtOnce) {
    const int64_t count = std::min(kAtOnce, info.shape.elements() - begin);
    const auto part = [&](const checkpoint::ModelDirectory& of) {
      return checkpoint::SafetensorsFile::doubles_of(of.tensors().read(name, begin, count),
                                                     of.find(name)->dtype);
    };
    const std::vector<double> x = part(a), y = part(b);
    for (size_t i = 0; i < x.size(); ++i) {
      if (x[i] == y[i] || (std::isnan(x[i]) && std::isnan(y[i]))) continue;
      const double difference = std::abs(x[i] - y[i]);
      worst = std::isnan(difference) ? static_cast<double>(INFINITY) : std::max(worst, difference);
    }
  }
  return worst;
}

void compare_configs(const Json& a, const Json& b, Report& report) {
  std::set<std::string> keys;
  for (const Json* config : {&a, &b})
    for (const auto& [key, value] : config->as_object()) keys.insert(key);
  for (const std::string& key : keys) {
    const Json *x = a.find(key), *y = b.find(key);
    if (x != nullptr && y != nullptr && *x == *y) continue;
    const auto text = [](const Json* value) { return value == nullptr ? "absent" : value->dump(); };
    report.note(fmt::format("config.json, {}: {} here, {} there", key, text(x), text(y)));
  }
}

}  // namespace

Report compare_directories(const std::string& directory, const std::string& other) {
  Report report(fmt::format("{} against {}", directory, other));
  const checkpoint::ModelDirectory a(directory), b(other);
  compare_configs(a.config(), b.config(), report);
  const std::vector<std::string> names = a.tensor_names();
  for (const std::string& name : names) {
    const checkpoint::TensorInfo &x = *a.find(name), *y = b.find(name);
    if (y == nullptr) {
      report.fail(fmt::format("{} is not in {}", name, other));
    } else if (!(x.shape == y->shape)) {
      report.fail(
          fmt::format("{} has shape {} here and {} there{}", name, x.shape.str(), y->shape.str(),
                      x.shape.elements() == y->shape.elements() ? ", as many elements" : ""));
    } else {
      if (x.dtype != y->dtype)
        report.note(fmt::format("{} is {} here and {} there", name, megatron::name(x.dtype),
                                megatron::name(y->dtype)));
      report.compare("tensors", name, largest_difference_of(name, a, b), 0);
    }
  }
  for (const std::string& name : b.tensor_names())
    if (a.find(name) == nullptr) report.fail(fmt::format("{} is not in {}", name, directory));
  return report;
}

}  // namespace megatron::selftest
