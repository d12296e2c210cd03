// Metrics by layer from the last step that has them.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "report/markup.h"
#include "report/tables.h"

namespace megatron::report {
namespace {

double number_at(const Json& column, size_t row) {
  if (!column.is_array() || row >= column.as_array().size()) return kNone;
  const Json& value = column.as_array()[row];
  return value.is_number() ? value.as_number() : kNone;
}

// The number, and a bar whose length is its share of the column's largest value.
std::string cell(double value, double largest) {
  if (!std::isfinite(value)) return "–";
  const double share = largest > 0 ? std::clamp(value / largest, 0.0, 1.0) : 0;
  return fmt::format("{:.4g}<i class=\"level\" style=\"width:{:.1f}%\"></i>", value, 100 * share);
}

std::string layers_of(const RunHistory& history) {
  if (!history.layer_metrics.is_object()) return "";
  const Json::Object& metrics = history.layer_metrics.as_object();
  const Json* layers = history.layer_metrics.find("layer");
  if (layers == nullptr || !layers->is_array() || layers->as_array().empty()) return "";
  std::vector<std::string> head = {"Layer"};
  std::vector<std::vector<std::string>> rows(layers->as_array().size());
  for (size_t i = 0; i < rows.size(); ++i) {
    const double layer = number_at(*layers, i);
    rows[i].push_back(std::isfinite(layer) ? fmt::format("{:.0f}", layer) : "–");
  }
  for (const auto& [name, column] : metrics) {
    if (name == "layer") continue;
    head.push_back(html(name));
    double largest = 0;
    for (size_t i = 0; i < rows.size(); ++i)
      if (const double value = number_at(column, i); value > largest) largest = value;
    for (size_t i = 0; i < rows.size(); ++i) rows[i].push_back(cell(number_at(column, i), largest));
  }
  return table("Metrics by layer of " + history.name, head, rows, "numbers layers long");
}

}  // namespace

std::string metrics_by_layer(const std::vector<RunHistory>& histories) {
  std::string result;
  for (size_t i = 0; i < histories.size(); ++i) {
    const std::string layers = layers_of(histories[i]);
    if (layers.empty()) continue;
    result += fmt::format("<p class=\"bar-name\">{}iteration {}</p>\n{}",
                          histories.size() > 1 ? swatch(i) + html(histories[i].name) + ", " : "",
                          grouped(histories[i].layer_metrics_iteration), layers);
  }
  return result;
}

}  // namespace megatron::report
