#include "selftest/compare_directories.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <span>
#include <vector>

#include "base/tolerances.h"
#include "checkpoint/model_directory.h"
#include "checkpoint/safetensors.h"

namespace megatron::selftest {
namespace {

// Number of elements of a stored tensor that are read at once.
constexpr int64_t kUnroll = int64_t{1} << 20;

// Difference between a tensor of the first directory and that of the second.
struct Distance {
  std::string name;
  double largest = 0;  // largest difference of an element
  double difference = 0,
         squares = 0;  // sums of squares of the differences, and of the second directory's elements
  int64_t elements = 0;
  double tolerance = 0;
};

void add(Distance& d, std::span<const double> x, std::span<const double> y) {
  for (size_t i = 0; i < x.size(); ++i) {
    if (std::isfinite(y[i])) d.squares += y[i] * y[i];
    if (x[i] == y[i] || (std::isnan(x[i]) && std::isnan(y[i]))) continue;
    double difference = std::abs(x[i] - y[i]);
    if (std::isnan(difference)) difference = static_cast<double>(INFINITY);
    d.largest = std::max(d.largest, difference);
    d.difference += difference * difference;
  }
}

bool is_wide(const checkpoint::TensorInfo& info) {
  return info.dtype == DType::f32 || info.dtype == DType::f64;
}

// Compares two tensors, which must have the same shape.
Distance distance(const std::string& name, const checkpoint::ModelDirectory& a,
                  const checkpoint::ModelDirectory& b) {
  const checkpoint::TensorInfo &x = *a.find(name), &y = *b.find(name);
  Distance d{.name = name,
             .elements = x.shape.elements(),
             .tolerance = is_wide(x) && is_wide(y) ? tolerance::kLayoutFp32 : 0};
  if (!x.foreign_type.empty() || !y.foreign_type.empty()) {  // only bytes can be compared
    const bool same =
        type_name(x) == type_name(y) && std::ranges::equal(a.bytes(name), b.bytes(name));
    d.largest = d.difference = same ? 0 : static_cast<double>(INFINITY);
    return d;
  }
  for (int64_t begin = 0; begin < d.elements; begin += kUnroll) {
    const int64_t count = std::min(kUnroll, d.elements - begin);
    const auto part = [&](const checkpoint::ModelDirectory& of, DType type) {
      return checkpoint::SafetensorsFile::doubles_of(of.tensors().read(name, begin, count), type);
    };
    add(d, part(a, x.dtype), part(b, y.dtype));
  }
  return d;
}

void report_distances(std::span<const Distance> all, std::optional<double> tolerance,
                      Report& report) {
  double squares = 0, elements = 0;
  for (const Distance& d : all) {
    squares += d.squares;
    elements += static_cast<double>(d.elements);
  }
  const double rms = elements > 0 ? std::sqrt(squares / elements) : 0;
  const Distance* worst = nullptr;
  for (const Distance& d : all) {
    report.compare(
        "tensors", d.name,
        tolerance::tensor_metric(std::sqrt(d.difference), std::sqrt(d.squares), rms, d.elements),
        tolerance.value_or(d.tolerance));
    if (worst == nullptr || d.largest > worst->largest) worst = &d;
  }
  if (worst != nullptr && worst->largest > 0)
    report.note(fmt::format("largest absolute difference of an element: {:.3g}, in {}",
                            worst->largest, worst->name));
}

void compare_configs(const Json& a, const Json& b, Report& report) {
  std::set<std::string> keys;
  for (const Json* config : {&a, &b})
    for (const auto& [key, value] : config->as_object()) keys.insert(key);
  for (const std::string& key : keys) {
    const Json *x = a.find(key), *y = b.find(key);
    if (x != nullptr && y != nullptr && *x == *y) continue;
    const auto text = [](const Json* value) { return value == nullptr ? "absent" : value->dump(); };
    report.note(
        fmt::format("config.json, {}: {}, but {} in the other directory", key, text(x), text(y)));
  }
}

}  // namespace

Report compare_directories(const std::string& directory, const std::string& other,
                           std::optional<double> tolerance) {
  Report report(fmt::format("{} against {}", directory, other));
  const checkpoint::ModelDirectory a(directory), b(other);
  compare_configs(a.config(), b.config(), report);
  for (const checkpoint::ModelDirectory* one : {&a, &b})
    if (!one->disagreement().empty()) report.note(one->disagreement());
  const std::vector<std::string> names = a.tensor_names();
  std::vector<Distance> distances;
  for (const std::string& name : names) {
    const checkpoint::TensorInfo &x = *a.find(name), *y = b.find(name);
    if (y == nullptr) {
      report.fail(fmt::format("{} is not in {}", name, other));
    } else if (!(x.shape == y->shape)) {
      report.fail(fmt::format(
          "{} has shape {}, but {} in the other directory{}", name, x.shape.str(), y->shape.str(),
          x.shape.elements() == y->shape.elements() ? ", with the same number of elements" : ""));
    } else {
      if (type_name(x) != type_name(*y))
        report.note(fmt::format("{} is {}, but {} in the other directory", name, type_name(x),
                                type_name(*y)));
      distances.push_back(distance(name, a, b));
    }
  }
  report_distances(distances, tolerance, report);
  for (const std::string& name : b.tensor_names())
    if (a.find(name) == nullptr) report.fail(fmt::format("{} is not in {}", name, directory));
  return report;
}

}  // namespace megatron::selftest
