// The table of parameters: one row per span, one column per class.
#include <fmt/core.h>

#include <algorithm>

#include "plan/figures.h"
#include "plan/grid.h"
#include "plan/page_sections.h"

namespace megatron::plan {
namespace {

// A span, or several consecutive ones with equal counts.
struct Row {
  std::string first, last;
  int64_t spans = 1;
  std::vector<int64_t> counts;  // by class
};

std::vector<std::string> classes_of(const Plan& plan) {
  std::vector<std::string> classes;
  for (const ParameterCount& p : plan.parameters)
    if (std::ranges::find(classes, p.group) == classes.end()) classes.push_back(p.group);
  return classes;
}

std::vector<Row> spans_of(const Plan& plan, const std::vector<std::string>& classes) {
  std::vector<Row> rows;
  for (const ParameterCount& p : plan.parameters) {
    if (rows.empty() || rows.back().first != p.span)
      rows.push_back({p.span, p.span, 1, std::vector<int64_t>(classes.size())});
    const auto at = std::ranges::find(classes, p.group) - classes.begin();
    rows.back().counts[static_cast<size_t>(at)] += p.count;
  }
  return rows;
}

std::vector<Row> folded(const std::vector<Row>& spans) {
  std::vector<Row> rows;
  for (const Row& span : spans) {
    if (rows.empty() || rows.back().counts != span.counts) {
      rows.push_back(span);
      continue;
    }
    rows.back().last = span.last;
    ++rows.back().spans;
  }
  return rows;
}

std::vector<std::string> cells(const std::string& label, const std::vector<int64_t>& counts,
                               const std::string& behind) {
  std::vector<std::string> row = {label};
  int64_t sum = 0;
  for (const int64_t count : counts) {
    row.push_back(count > 0 ? count_text(count) : "-");
    sum += count;
  }
  row.push_back(count_text(sum));
  row.push_back(behind);
  return row;
}

}  // namespace

std::string parameter_section(const Plan& plan) {
  if (plan.parameters.empty()) return "";
  const std::vector<std::string> classes = classes_of(plan);
  std::vector<std::string> head = {"Parameters"};
  head.insert(head.end(), classes.begin(), classes.end());
  head.emplace_back("total");
  Grid grid(std::move(head));
  std::vector<int64_t> sums(classes.size());
  for (const Row& row : folded(spans_of(plan, classes))) {
    const std::string label =
        row.spans == 1 ? row.first : fmt::format("{} - {}", row.first, row.last);
    grid.add(cells("  " + label, row.counts, row.spans == 1 ? "" : "each"));
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += row.spans * row.counts[i];
  }
  grid.add(cells("  all", sums, ""));
  const auto add_total = [&](const char* label, int64_t count) {
    std::vector<std::string> row(classes.size() + 1);
    row.front() = label;
    row.push_back(count_text(count));
    grid.add(std::move(row));
  };
  if (plan.trained) add_total("  trained", *plan.trained);
  if (plan.reference) add_total("  reference model", plan.parameter_count());
  return grid.text();
}

}  // namespace megatron::plan
