// Compares a training run with values that another system computed for it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "selftest/canonical.h"
#include "selftest/expected.h"
#include "selftest/report.h"

namespace megatron::selftest {

// Elements [begin, end) of the tensors whose names match the pattern ('*': any run of characters)
// are not compared.
struct IgnoredElements {
  std::string pattern;
  int64_t begin = 0, end = 0;
};

// Steps of an optimizer that moves each element by its learning rate times a sign (Lion). Where the
// sign's argument is nearly 0, rounding decides it, and the element may be off by twice the
// learning rate of each such step.
struct SignSteps {
  int64_t count = 0;
  double least_rate = std::numeric_limits<double>::infinity();
  double rates = 0;  // sum of the learning rates

  void add(double rate) {
    ++count;
    least_rate = std::min(least_rate, rate);
    rates += rate;
  }
};

class TrajectoryComparison {
 public:
  // start: parameters before the first step. expected and report are borrowed.
  TrajectoryComparison(Expected& expected, TensorMap start, std::vector<IgnoredElements> ignored,
                       Report& report)
      : expected_(expected),
        start_(std::move(start)),
        ignored_(std::move(ignored)),
        report_(report) {}

  void scalar(const std::string& name, int64_t step, double value, double tolerance);

  // Compares parameters after some steps with expected "PREFIX.NAME", each relative to its movement
  // from the start to the end: |d| <= kTrajectoryParameterOfMovement |final - start|, all together
  // kTrajectoryMovementTotal. signs: the steps so far; elements whose error is as large as a sign
  // can cause are only counted ("sign flips") if there are no more than rounding explains
  // (kSignFlips); otherwise they are compared like all others.
  void parameters(const std::string& prefix, const TensorMap& values, const SignSteps& signs);

  // Compares optimizer states after the last step.
  void state(const std::string& prefix, const TensorMap& values);

 private:
  // Returns the values without the elements that are excluded from comparison.
  std::vector<double> kept(const std::string& name, std::vector<double> values) const;
  std::vector<double> kept_expected(const std::string& prefix, const std::string& name);
  double movement(const std::string& prefix, const std::string& name);
  void forgive_signs(const std::string& key, const SignSteps& signs, std::vector<double>& d);

  Expected& expected_;
  TensorMap start_;
  std::vector<IgnoredElements> ignored_;
  Report& report_;
};

}  // namespace megatron::selftest
