#include "selftest/trajectory_comparison.h"

#include <cmath>

#include "base/error.h"
#include "base/tolerances.h"

namespace megatron::selftest {
namespace {

bool matches(std::string_view pattern, std::string_view text) {
  if (pattern.empty()) return text.empty();
  if (pattern[0] != '*')
    return !text.empty() && pattern[0] == text[0] && matches(pattern.substr(1), text.substr(1));
  for (size_t i = 0; i <= text.size(); ++i) {
    if (matches(pattern.substr(1), text.substr(i))) return true;
  }
  return false;
}

}  // namespace

void TrajectoryComparison::scalar(const std::string& name, int64_t step, double value,
                                  double tolerance) {
  if (!expected_.contains(name)) return;
  const std::vector<double> wanted = expected_.doubles(name);
  const auto index = static_cast<size_t>(step);
  const double error = index < wanted.size() ? relative_error(value, wanted[index]) : INFINITY;
  report_.compare(name, fmt::format("step {}", step), error, tolerance);
}

void TrajectoryComparison::parameters(const std::string& prefix, const TensorMap& values,
                                      const SignSteps& signs) {
  double difference = 0, moved = 0;
  bool any = false;
  for (const auto& [name, value] : values) {
    const std::string key = prefix + "." + name;
    if (!expected_.contains(key)) continue;
    any = true;
    const std::vector<double> wanted = kept_expected(prefix, name);
    std::vector<double> d = kept(name, value);
    if (d.size() != wanted.size()) {
      report_.fail(
          fmt::format("{} has {} elements, but {} are expected", key, d.size(), wanted.size()));
      continue;
    }
    for (size_t i = 0; i < d.size(); ++i) d[i] -= wanted[i];
    if (signs.count > 0) forgive_signs(key, signs, d);
    const double distance = norm(d), m = movement(prefix, name);
    report_.compare("parameters", key, distance, tolerance::kTrajectoryParameterOfMovement * m);
    difference += distance * distance;
    moved += m * m;
  }
  if (any) {
    report_.compare("all parameters", prefix, std::sqrt(difference),
                    tolerance::kTrajectoryMovementTotal * std::sqrt(moved));
  }
}

void TrajectoryComparison::state(const std::string& prefix, const TensorMap& values) {
  for (const auto& [name, value] : values) {
    const std::string key = prefix + "." + name;
    if (!expected_.contains(key)) continue;
    const std::vector<double> wanted = kept_expected(prefix, name);
    report_.compare(prefix, key, difference_norm(kept(name, value), wanted),
                    tolerance::kTrajectoryState * norm(wanted));
  }
}

std::vector<double> TrajectoryComparison::kept(const std::string& name,
                                               std::vector<double> values) const {
  for (const IgnoredElements& i : ignored_) {
    if (!matches(i.pattern, name)) continue;
    MG_CHECK(i.begin >= 0 && i.begin <= i.end && i.end <= static_cast<int64_t>(values.size()),
             "ignore of '{}' is [{}, {}), but {} has {} elements", i.pattern, i.begin, i.end, name,
             values.size());
    values.erase(values.begin() + i.begin, values.begin() + i.end);
  }
  return values;
}

std::vector<double> TrajectoryComparison::kept_expected(const std::string& prefix,
                                                        const std::string& name) {
  return kept(name, expected_.doubles(prefix + "." + name));
}

// Movement from the start to the end, or as far as it is known.
double TrajectoryComparison::movement(const std::string& prefix, const std::string& name) {
  const bool to_end = expected_.contains("final." + name);
  return difference_norm(kept(name, start_.at(name)),
                         kept_expected(to_end ? "final" : prefix, name));
}

// A sign flip leaves an error of about twice the learning rate of its step: at least one learning
// rate, and no more than all steps together can cause.
void TrajectoryComparison::forgive_signs(const std::string& key, const SignSteps& signs,
                                         std::vector<double>& d) {
  constexpr double kRounding = 1 + 1e-3;  // allowance for rounding of the parameters
  const double least = signs.least_rate, most = 2 * signs.rates * kRounding;
  const auto flipped = [&](double x) { return std::abs(x) >= least && std::abs(x) <= most; };
  const double allowed =
      1 + tolerance::kSignFlips * static_cast<double>(d.size()) * static_cast<double>(signs.count);
  const auto flips = static_cast<double>(std::ranges::count_if(d, flipped));
  report_.compare("sign flips", key, flips, allowed);
  if (flips > allowed) return;
  for (double& x : d)
    if (flipped(x)) x = 0;
}

}  // namespace megatron::selftest
