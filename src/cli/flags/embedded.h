// The texts of table.tsv, older.tsv and reasons.tsv of this folder.
#pragma once

#include <string_view>

namespace megatron::cli {

extern const std::string_view kFlagTable, kOlderTable, kReasonTable;

}  // namespace megatron::cli
