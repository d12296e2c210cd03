// Results of a comparison with expected values.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace megatron::selftest {

class Report {
 public:
  explicit Report(std::string title = {}) : title_(std::move(title)) {}

  // Records one tensor of a kind ("logits", "gradients"): an error above the tolerance, or NaN, is
  // a failure.
  void compare(std::string_view kind, const std::string& tensor, double error, double tolerance);
  // Records values that must be equal. difference: the first one, which a failure quotes; "" if
  // there is none.
  void expect(std::string_view kind, const std::string& tensor, const std::string& difference);
  void fail(std::string text) { failures_.push_back(std::move(text)); }
  // Adds a remark that is not a failure.
  void note(std::string text) { notes_.push_back(std::move(text)); }

  const std::string& title() const { return title_; }
  bool passed() const { return failures_.empty(); }
  const std::vector<std::string>& failures() const { return failures_; }
  int64_t compared() const;    // number of tensors of all kinds
  double worst_share() const;  // largest error relative to its tolerance
  // Tensor with that error: "gradients of NAME: 2.1e-07 of 5.0e-06"; "" if there is none.
  std::string worst() const;
  // Title, for each kind the number of tensors and the worst error with its tensor, then notes and
  // failures.
  std::string text() const;

 private:
  void record(std::string_view kind, const std::string& tensor, double error, double tolerance);

  struct Kind {
    std::string name;
    int64_t compared = 0;
    // The tensor with the largest share = error / tolerance.
    double share = -1, error = 0, tolerance = 0;
    std::string tensor;
  };
  std::string title_;
  std::vector<Kind> kinds_;
  std::vector<std::string> failures_, notes_;
};

// Distances between two lists of elements; infinite if their lengths differ, NaN if an element is
// NaN.
double largest_difference(std::span<const double> values, std::span<const double> expected);
std::vector<int64_t> integers_of(const Json& list);  // throws Error if it is not one of integers
// The first difference of two lists of integers: "element 3 is 5, expected 7"; "" if they are
// equal.
std::string first_difference(std::span<const int64_t> values, std::span<const int64_t> expected);
double difference_norm(std::span<const double> values, std::span<const double> expected);  // 2-norm
double norm(std::span<const double> values);
// |value - expected| / |expected|; 0 if both are 0.
double relative_error(double value, double expected);

}  // namespace megatron::selftest
