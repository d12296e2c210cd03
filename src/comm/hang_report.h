// Texts about ranks that wait for each other.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "comm/rank_record.h"
#include "comm/wait_limits.h"

namespace megatron::comm {

// Exit code of a run that is ended because it makes no progress: the same as for any other Error.
constexpr int kGivenUp = 2;

// Ranks of the world that the call of rank `rank` still waits for: members that have not reached it
// according to their reports. Ranks without a report, or silent ones, count as missing.
std::vector<int> missing(const CallReport& call, int rank, std::span<const RankReport> reports);

// Formats "rank 1: step 7, backward, layer decoder.3; in all_reduce 'loss' (...) for 3.0 s; rank 2
// has not come". Without reports no rank is named.
std::string line_of(const RankReport& report, std::span<const RankReport> reports);

// Describes the call that has waited longest and the ranks it waits for, then one line per rank.
// limit: seconds that a call may take.
std::string hang_text(std::span<const RankReport> reports, double limit);

// Description of ranks that wait while the run continues, for the log.
struct WaitNotice {
  std::string text;     // which ranks wait for which, in which call, and what those do
  std::string awaited;  // "rank 1", "ranks 1 and 3"; empty: all have arrived
  bool usual = false;   // the awaited ranks do something that may take long, or all have arrived
};
// Names the ranks that others wait for and that do not wait themselves; if there are none, as in a
// cycle, the ranks that the longest call waits for. The text is empty if no report has an open
// call.
WaitNotice wait_notice(std::span<const RankReport> reports, const WaitLimits& limits);

// Reason why a call of this rank can never end: "rank 1 has ended while rank 0 waits for it in
// barrier 'last' (...)". Empty if each of its calls open for more than `seconds` may still end.
// ended: reports of ranks that will not call again.
std::string waits_for_ever(const RankReport& report, std::span<const RankReport> ended,
                           double seconds);

}  // namespace megatron::comm
