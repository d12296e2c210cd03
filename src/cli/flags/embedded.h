// Contents of this folder's table.tsv, older.tsv and reasons.tsv.
#pragma once

#include <string_view>

namespace megatron::cli {

extern const std::string_view kFlagTable, kOlderTable, kReasonTable;

}  // namespace megatron::cli
