// Where examples are from: the parts of a mixture, which validation may evaluate separately.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace megatron::corpus {

class Sources {
 public:
  // Names the source of the next example.
  void add(const std::string& name) {
    const auto [found, added] = numbers_.try_emplace(name, names_.size());
    if (added) names_.push_back(name);
    of_example_.push_back(found->second);
  }
  const std::vector<std::string>& names() const { return names_; }  // as they first occur
  size_t of(int64_t example) const { return of_example_[static_cast<size_t>(example)]; }

 private:
  std::vector<std::string> names_;
  std::unordered_map<std::string, size_t> numbers_;
  std::vector<size_t> of_example_;
};

}  // namespace megatron::corpus
