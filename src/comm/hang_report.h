// Texts about ranks that wait for each other.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "comm/rank_record.h"
#include "comm/wait_limits.h"

namespace megatron::comm {

// The exit code of a run that is ended since it makes no progress: that of any other Error.
constexpr int kGivenUp = 2;

// The ranks of the world that the call of rank `rank` still waits for: members that have not come
// to it as far as their reports show. Ranks without a report, or silent ones, count as missing.
std::vector<int> missing(const CallReport& call, int rank, std::span<const RankReport> reports);

// "rank 1: step 7, backward, layer decoder.3; in all_reduce 'loss' (...) for 3.0 s; rank 2 has not
// come". Without reports nobody is named.
std::string line_of(const RankReport& report, std::span<const RankReport> reports);

// The call that has waited longest and whom it waits for; then a line for each rank. limit: seconds
// that a call may take.
std::string hang_text(std::span<const RankReport> reports, double limit);

// Ranks that wait while the run goes on, for a line of the log.
struct WaitNotice {
  std::string text;     // who waits for whom, in which call, and what those do
  std::string awaited;  // "rank 1", "ranks 1 and 3"; empty: all have come
  bool usual = false;   // those that are awaited do what may take long, or all have come
};
// Named are those that others wait for and that wait for nobody themselves; where there is none, as
// in a circle, whom the longest call waits for. No report has an open call: an empty text.
WaitNotice wait_notice(std::span<const RankReport> reports, const WaitLimits& limits);

// Why a call of this rank can never end: "rank 1 has ended while rank 0 waits for it in barrier
// 'last' (...)". Empty when each of its calls, open for more than `seconds`, may end. ended:
// reports of ranks that will not call again.
std::string waits_for_ever(const RankReport& report, std::span<const RankReport> ended,
                           double seconds);

}  // namespace megatron::comm
