#include "comm/hang_report.h"

#include <fmt/core.h>

#include <algorithm>

namespace megatron::comm {

namespace {

const RankReport* find(int rank, std::span<const RankReport> reports) {
  const auto at = std::find_if(reports.begin(), reports.end(),
                               [rank](const RankReport& r) { return r.rank == rank; });
  return at == reports.end() ? nullptr : &*at;
}

bool has_come(const RankReport& report, const CallReport& call) {
  for (const GroupProgress& group : report.groups) {
    if (group.group != call.group) continue;
    if (call.peer < 0) return group.calls >= call.number;
    return !group.sent.empty() && group.sent[static_cast<size_t>(call.place)] >= call.number;
  }
  return false;
}

// Those whose coming the call needs.
std::vector<int> awaited(const CallReport& call, int rank) {
  if (call.peer >= 0) return {call.members[static_cast<size_t>(call.peer)]};
  std::vector<int> ranks = call.members;
  std::erase(ranks, rank);
  return ranks;
}

// "rank 2", "ranks 2, 3 and 5".
std::string names_of(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  return text;
}

std::string waiting_text(const CallReport& call, int rank, std::span<const RankReport> reports) {
  std::string text = fmt::format("in {} for {:.1f} s", call.text, call.seconds);
  if (reports.empty()) return text;
  const std::vector<int> ranks = missing(call, rank, reports);
  const std::string whom = ranks.empty() ? "all ranks have come"
                                         : fmt::format("{} {} not come", names_of(ranks),
                                                       ranks.size() == 1 ? "has" : "have");
  return text + "; " + whom;
}

}  // namespace

std::vector<int> missing(const CallReport& call, int rank, std::span<const RankReport> reports) {
  std::vector<int> ranks = awaited(call, rank);
  std::erase_if(ranks, [&](int r) {
    const RankReport* const report = find(r, reports);
    return report != nullptr && has_come(*report, call);
  });
  return ranks;
}

std::string line_of(const RankReport& report, std::span<const RankReport> reports) {
  const std::string start = fmt::format("rank {}: ", report.rank);
  if (report.state == RankReport::State::has_ended) return start + "has ended";
  if (report.state == RankReport::State::is_silent) return start + "gives no answer";
  std::string text = start + describe(report.doing);
  for (const CallReport& call : report.calls)
    text += "; " + waiting_text(call, report.rank, reports);
  if (!report.calls.empty()) return text;
  if (report.last_call.empty()) return text + "; in no call so far";
  return text +
         fmt::format("; in no call for {:.1f} s, after {}", report.last_seconds, report.last_call);
}

std::string hang_text(std::span<const RankReport> reports, double limit) {
  const CallReport* longest = nullptr;
  int rank = 0;
  for (const RankReport& report : reports) {
    for (const CallReport& call : report.calls) {
      if (longest != nullptr && call.seconds <= longest->seconds) continue;
      longest = &call;
      rank = report.rank;
    }
  }
  std::string text = "the ranks make no progress: ";
  if (longest != nullptr)
    text += fmt::format("rank {} is {}", rank, waiting_text(*longest, rank, reports));
  text += fmt::format(
      " (the limit is {:g} s; where a call may take longer, raise --distributed-timeout-minutes, "
      "or "
      "--distributed-timeout-seconds-after-init where that is given)",
      limit);
  for (const RankReport& report : reports) text += "\n  " + line_of(report, reports);
  return text;
}

std::string waits_for_ever(const RankReport& report, std::span<const RankReport> ended,
                           double seconds) {
  for (const CallReport& call : report.calls) {
    if (call.seconds < seconds) continue;
    for (const int rank : awaited(call, report.rank)) {
      const RankReport* const other = find(rank, ended);
      if (other == nullptr || has_come(*other, call)) continue;
      return fmt::format("rank {} has ended while rank {} waits for it in {}", rank, report.rank,
                         call.text);
    }
  }
  return {};
}

}  // namespace megatron::comm
