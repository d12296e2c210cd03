// Description of a collective call that ranks compare before data move, and the text if two ranks
// differ.
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
  int64_t bytes = 0;  // must be the same on every rank
  Reduce op = Reduce::sum;
  int root = -1;
  bool has_data = true;
  std::span<const int64_t> send_counts, receive_counts;  // of all_to_all, else empty
  std::string_view group;                                // the group's name; empty: unknown
  // Number of the call in the group, from 1; for recv, counted per sender; 0: unknown.
  int64_t number = 0;
};

// Header of a call on tensors. Its counts are the call's own. text: memory for its name.
CallHeader header_of(const GroupCall& call, std::string text = {});

// Formats "all_reduce 'loss' (call 12 of 'tp', 8 bytes of f32, sum)".
std::string describe(const CallHeader& header);
// Formats "all_reduce 'loss' (call 12 of 'tp')".
std::string short_text(const CallHeader& header);

// True for the same call with the same bytes and type. Row counts, and the call's number and group,
// are ignored.
bool same_call(const CallHeader& a, const CallHeader& b);

// Empty if the headers of ranks [0, members.size()) agree; otherwise a text naming two that differ,
// by their ranks in the world, members[r].
std::string disagreement(FunctionRef<const CallHeader&(int rank)> header,
                         std::span<const int> members);

}  // namespace megatron::comm
