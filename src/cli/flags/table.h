// Maps each Megatron-LM option to its status here (supported, ignored or refused): table.tsv (its
// 878 options), older.tsv (spellings that its documents and scripts still show) and reasons.tsv.
// tools/flag_table checks them against Megatron-LM's list and this program's fields.
#pragma once

#include <span>
#include <string_view>
#include <vector>

namespace megatron::cli {

enum class Verdict {
  supported,  // a field of `megatron train`, or another spelling of one
  ignored,    // accepted, with a note that it has no effect
  refused,  // an error with a reason and the alternative, unless it requests the default behaviour
};

// Columns of the tables; "a|b" is a list.
struct FlagRow {
  std::string_view flag;     // "--num-layers"
  std::string_view value;    // "switch", "INT", "FLOAT", "TEXT", with " ..." for many
  std::string_view initial;  // Megatron-LM's default, empty for none
  std::string_view choices;  // "a|b"
  Verdict verdict;
  // supported: the effect that a test observes, or "=--lr-warmup-fraction" for another spelling of
  // a flag, followed by a space and its value if that is fixed. Otherwise: a row of reasons.tsv.
  std::string_view why;
  // supported: "default", "choices" or "value" if these intentionally differ from Megatron-LM's.
  // refused: accepted values, "1|2", or "when --position-embedding-type rope".
  std::string_view detail;

  bool is_switch() const { return value == "switch"; }
  bool many() const { return value.ends_with("..."); }
};

struct ReasonRow {
  Verdict verdict;
  std::string_view id, it;  // `it` continues a sentence: "moves data ...; use ..."
};

class FlagTable {
 public:
  FlagTable();

  std::span<const FlagRow> today() const { return today_; }
  std::span<const FlagRow> older() const { return older_; }
  std::span<const ReasonRow> reasons() const { return reasons_; }

  // flag: with its dashes. Null if Megatron-LM has no such flag.
  const FlagRow* find(std::string_view flag) const;
  std::string_view reason(const FlagRow& row) const;  // why a flag is ignored or refused

 private:
  std::vector<FlagRow> today_, older_;
  std::vector<ReasonRow> reasons_;
};

// Splits a list into its parts; an empty text has none.
std::vector<std::string_view> split_list(std::string_view text, char separator);

}  // namespace megatron::cli
