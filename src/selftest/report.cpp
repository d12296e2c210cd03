#include "selftest/report.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace megatron::selftest {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr size_t kListedFailures = 20;

}  // namespace

void Report::record(std::string_view kind, const std::string& tensor, double error,
                    double tolerance) {
  Kind* found = nullptr;
  for (Kind& k : kinds_)
    if (k.name == kind) found = &k;
  if (found == nullptr) found = &kinds_.emplace_back(Kind{.name = std::string(kind)});
  ++found->compared;
  const bool good = error <= tolerance;
  double share = kInfinity;
  if (good) share = error == 0 ? 0 : error / tolerance;
  else if (!std::isnan(error) && tolerance > 0) share = error / tolerance;
  if (share > found->share || (share == found->share && error > found->error)) {
    found->share = share;
    found->error = error;
    found->tolerance = tolerance;
    found->tensor = tensor;
  }
}

void Report::compare(std::string_view kind, const std::string& tensor, double error,
                     double tolerance) {
  record(kind, tensor, error, tolerance);
  if (!(error <= tolerance))
    fail(fmt::format("{} of {}: error {:.3g} is above {:.3g}", kind, tensor, error, tolerance));
}

void Report::expect(std::string_view kind, const std::string& tensor,
                    const std::string& difference) {
  record(kind, tensor, difference.empty() ? 0 : 1, 0);
  if (!difference.empty()) fail(fmt::format("{} of {}: {}", kind, tensor, difference));
}

int64_t Report::compared() const {
  int64_t sum = 0;
  for (const Kind& k : kinds_) sum += k.compared;
  return sum;
}

double Report::worst_share() const {
  double worst = 0;
  for (const Kind& k : kinds_) worst = std::max(worst, k.share);
  return worst;
}

std::string Report::worst() const {
  const auto most = std::ranges::max_element(kinds_, {}, &Kind::share);
  if (most == kinds_.end()) return "";
  return fmt::format("{} of {}: {:.1e} of {:.1e}", most->name, most->tensor, most->error,
                     most->tolerance);
}

std::string Report::text() const {
  std::string text =
      fmt::format("{}: {}, {} compared\n", title_, passed() ? "passed" : "FAILED", compared());
  for (const Kind& k : kinds_) {
    text += fmt::format("  {:<16} {:>4} compared, worst error {:.1e} of {:.1e} allowed ({})\n",
                        k.name, k.compared, k.error, k.tolerance, k.tensor);
  }
  for (size_t i = 0; i < notes_.size() && i < kListedFailures; ++i)
    text += fmt::format("  {}\n", notes_[i]);
  if (notes_.size() > kListedFailures)
    text += fmt::format("  and {} more\n", notes_.size() - kListedFailures);
  for (size_t i = 0; i < failures_.size() && i < kListedFailures; ++i)
    text += fmt::format("  FAILED: {}\n", failures_[i]);
  if (failures_.size() > kListedFailures)
    text += fmt::format("  and {} more failures\n", failures_.size() - kListedFailures);
  return text;
}

std::vector<int64_t> integers_of(const Json& list) {
  std::vector<int64_t> values;
  for (const Json& value : list.as_array()) values.push_back(value.as_integer());
  return values;
}

std::string first_difference(std::span<const int64_t> values, std::span<const int64_t> expected) {
  for (size_t i = 0; i < std::min(values.size(), expected.size()); ++i)
    if (values[i] != expected[i])
      return fmt::format("element {} is {}, expected {}", i, values[i], expected[i]);
  if (values.size() == expected.size()) return "";
  return fmt::format("{} elements, expected {}", values.size(), expected.size());
}

double largest_difference(std::span<const double> values, std::span<const double> expected) {
  if (values.size() != expected.size()) return kInfinity;
  double largest = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double d = std::abs(values[i] - expected[i]);
    if (std::isnan(d)) return d;
    largest = std::max(largest, d);
  }
  return largest;
}

double difference_norm(std::span<const double> values, std::span<const double> expected) {
  if (values.size() != expected.size()) return kInfinity;
  double sum = 0;
  for (size_t i = 0; i < values.size(); ++i)
    sum += (values[i] - expected[i]) * (values[i] - expected[i]);
  return std::sqrt(sum);
}

double norm(std::span<const double> values) {
  double sum = 0;
  for (const double v : values) sum += v * v;
  return std::sqrt(sum);
}

double relative_error(double value, double expected) {
  const double d = std::abs(value - expected);
  return d == 0 ? 0 : d / std::abs(expected);
}

}  // namespace megatron::selftest
