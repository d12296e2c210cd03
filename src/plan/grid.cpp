#include "plan/grid.h"

#include <algorithm>

#include "plan/figures.h"

namespace megatron::plan {

std::string Grid::text() const {
  std::vector<size_t> widths;
  for (const auto& row : rows_) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], columns(row[i]));
  }
  std::string all;
  for (const auto& row : rows_) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i)
      line += i == 0 ? left(row[i], widths[i]) : "  " + right(row[i], widths[i]);
    all += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return all;
}

}  // namespace megatron::plan
