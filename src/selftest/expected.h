// A file of expected values that records which of its tensors were used.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "selftest/report.h"

namespace megatron::selftest {

class Expected {
 public:
  explicit Expected(const std::string& path) : file_(path) {}

  bool contains(const std::string& name) const { return file_.find(name) != nullptr; }
  std::vector<std::string> names() const;
  // Shape and elements; both throw Error if the tensor is absent. Reading the elements marks the
  // tensor as used.
  const Shape& shape(const std::string& name) const;
  std::vector<double> doubles(const std::string& name);
  std::vector<int64_t> integers(const std::string& name);

  // Reports every unused tensor as a failure.
  void report_unused(Report& report) const;

 private:
  checkpoint::SafetensorsFile file_;
  std::set<std::string> used_;
};

}  // namespace megatron::selftest
