#include "cli/flags/table.h"

#include <array>

#include "base/error.h"
#include "base/text_parts.h"
#include "cli/flags/embedded.h"

namespace megatron::cli {
namespace {

Verdict verdict_of(std::string_view word) {
  if (word == "supported") return Verdict::supported;
  if (word == "ignored") return Verdict::ignored;
  MG_ASSERT(word == "refused");
  return Verdict::refused;
}

// Calls f with the cells of each line after the first, which names the columns.
template <size_t columns, class F>
void for_each_row(std::string_view text, F f) {
  take_until(text, '\n');
  while (!text.empty()) {
    std::array<std::string_view, columns> cells;
    std::string_view line = take_until(text, '\n');
    for (std::string_view& cell : cells) cell = take_until(line, '\t');
    f(cells);
  }
}

std::vector<FlagRow> flag_rows(std::string_view text) {
  std::vector<FlagRow> rows;
  for_each_row<7>(text, [&](const auto& c) {
    rows.push_back({c[0], c[1], c[2], c[3], verdict_of(c[4]), c[5], c[6]});
  });
  return rows;
}

}  // namespace

FlagTable::FlagTable() : today_(flag_rows(kFlagTable)), older_(flag_rows(kOlderTable)) {
  for_each_row<3>(kReasonTable,
                  [&](const auto& c) { reasons_.push_back({verdict_of(c[0]), c[1], c[2]}); });
}

const FlagRow* FlagTable::find(std::string_view flag) const {
  for (const std::vector<FlagRow>* rows : {&today_, &older_}) {
    for (const FlagRow& row : *rows) {
      if (row.flag == flag) return &row;
    }
  }
  return nullptr;
}

std::string_view FlagTable::reason(const FlagRow& row) const {
  for (const ReasonRow& reason : reasons_) {
    if (reason.verdict == row.verdict && reason.id == row.why) return reason.it;
  }
  throw InternalError(std::string("no reason for ") + std::string(row.flag));
}

std::vector<std::string_view> split_list(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    text = end == text.npos ? std::string_view() : text.substr(end + 1);
  }
  return parts;
}

}  // namespace megatron::cli
