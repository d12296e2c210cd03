// What a rank says of a collective call before its data move, and the text when two ranks differ.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/function_ref.h"
#include "comm/group.h"

namespace megatron::comm {

struct CallHeader {
  std::string_view operation;  // "all_reduce"
  std::string call;
  DType type = DType::u8;
  int64_t bytes = 0;  // that every rank must name alike
  Reduce op = Reduce::sum;
  int root = -1;
  bool has_data = true;
  std::span<const int64_t> send_counts, receive_counts;  // of all_to_all, else empty
};

// "all_reduce 'loss' (8 bytes of f32, sum)".
std::string describe(const CallHeader& header);

// The same call with the same bytes and type; row counts are not looked at.
bool same_call(const CallHeader& a, const CallHeader& b);

// Empty when the headers of ranks [0, members.size()) agree; else a text naming two that differ, by
// their ranks of the world, members[r].
std::string disagreement(FunctionRef<const CallHeader&(int rank)> header,
                         std::span<const int> members);

}  // namespace megatron::comm
