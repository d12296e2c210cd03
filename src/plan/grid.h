// Text in aligned columns.
#pragma once

#include <string>
#include <vector>

namespace megatron::plan {

// Rows of cells separated by two spaces: the first column is left-aligned, the others
// right-aligned.
class Grid {
 public:
  explicit Grid(std::vector<std::string> head) { add(std::move(head)); }
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  std::string text() const;  // each row ends with a line feed and has no trailing spaces

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace megatron::plan
