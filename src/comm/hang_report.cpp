#include "comm/hang_report.h"

#include <fmt/core.h>

#include <algorithm>
#include <set>

namespace megatron::comm {

namespace {

const RankReport* find(int rank, std::span<const RankReport> reports) {
  const auto index = static_cast<size_t>(rank);
  if (index < reports.size() && reports[index].rank == rank) return &reports[index];
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

// Ranks that the call is waiting for.
std::vector<int> awaited(const CallReport& call, int rank) {
  if (call.peer >= 0) return {call.members[static_cast<size_t>(call.peer)]};
  std::vector<int> ranks = call.members;
  std::erase(ranks, rank);
  return ranks;
}

// Formats "rank 2", "ranks 2, 3 and 5", "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 120 more".
std::string names_of(const std::vector<int>& ranks) {
  constexpr size_t kNamed = 8;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  const size_t named = ranks.size() > kNamed + 1 ? kNamed : ranks.size();
  for (size_t i = 0; i < named; ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  if (named < ranks.size()) text += fmt::format(" and {} more", ranks.size() - named);
  return text;
}

std::string waiting_text(const CallReport& call, int rank, std::span<const RankReport> reports) {
  std::string text = fmt::format("in {} for {:.1f} s", call.text, call.seconds);
  if (reports.empty()) return text;
  const std::vector<int> ranks = missing(call, rank, reports);
  const std::string whom = ranks.empty() ? "all ranks have arrived"
                                         : fmt::format("{} {} not arrived", names_of(ranks),
                                                       ranks.size() == 1 ? "has" : "have");
  return text + "; " + whom;
}

// An open call, and the ranks that have not come to it.
struct Wait {
  const RankReport* rank = nullptr;
  const CallReport* call = nullptr;
  std::vector<int> missing;
};

// Open calls, the longest wait first.
std::vector<Wait> waits_of(std::span<const RankReport> reports) {
  std::vector<Wait> waits;
  for (const RankReport& report : reports) {
    for (const CallReport& call : report.calls)
      waits.push_back({&report, &call, missing(call, report.rank, reports)});
  }
  std::ranges::stable_sort(
      waits, [](const Wait& a, const Wait& b) { return a.call->seconds > b.call->seconds; });
  return waits;
}

// Formats "; rank 1: step 7, forward; in no call for 31.0 s, after all_reduce 'loss' (call 1 of
// 'tp')".
std::string what_they_do(const std::vector<int>& ranks, std::span<const RankReport> reports) {
  constexpr size_t kNamed = 2;
  std::string text;
  for (size_t i = 0; i < ranks.size() && i < kNamed; ++i) {
    const RankReport* const report = find(ranks[i], reports);
    if (report == nullptr) continue;
    text += "; " + line_of(*report, reports);
    if (report->doing.may_be_long) text += " (this may take long)";
  }
  return text;
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
  if (report.state == RankReport::State::has_ended) return start + "has exited";
  if (report.state == RankReport::State::is_silent) return start + "does not respond";
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
      " (the timeout is {:g} s; if calls may take longer, raise --distributed-timeout-minutes, "
      "or --distributed-timeout-seconds-after-init if that is given)",
      limit);
  for (const RankReport& report : reports) text += "\n  " + line_of(report, reports);
  return text;
}

WaitNotice wait_notice(std::span<const RankReport> reports, const WaitLimits& limits) {
  const std::vector<Wait> waits = waits_of(reports);
  if (waits.empty()) return {};
  std::set<int> waiting, to_blame;
  for (const Wait& wait : waits)
    if (!wait.missing.empty()) waiting.insert(wait.rank->rank);
  for (const Wait& wait : waits)
    for (const int rank : wait.missing)
      if (!waiting.contains(rank)) to_blame.insert(rank);
  const auto shows = [&](const Wait& wait) {
    return std::ranges::any_of(wait.missing, [&](int r) { return to_blame.contains(r); });
  };
  const auto shown = std::ranges::find_if(waits, shows);
  const Wait& wait = shown == waits.end() ? waits.front() : *shown;
  std::vector<int> awaited = wait.missing;
  if (shown != waits.end()) std::erase_if(awaited, [&](int r) { return !to_blame.contains(r); });

  WaitNotice notice;
  notice.awaited = awaited.empty() ? "" : names_of(awaited);
  notice.usual = std::ranges::all_of(awaited, [&](int r) {
    const RankReport* const report = find(r, reports);
    return report != nullptr && report->doing.may_be_long;
  });
  notice.text =
      fmt::format("rank {} has waited {:.1f} s{}{} in {}", wait.rank->rank, wait.call->seconds,
                  awaited.empty() ? "" : " for ", notice.awaited, wait.call->text);
  if (wait.rank->doing.known()) notice.text += fmt::format(" ({})", describe(wait.rank->doing));
  const size_t others = waiting.size() - (waiting.contains(wait.rank->rank) ? 1 : 0);
  if (others > 0) notice.text += fmt::format(", and {} more wait", others);
  notice.text += awaited.empty() ? "; all ranks have arrived" : what_they_do(awaited, reports);
  notice.text += limits.most > 0 ? fmt::format(
                                       ". The run continues; it is aborted if a call takes {:g} "
                                       "s (--distributed-timeout-minutes)",
                                       limits.most)
                                 : std::string(". The run continues, with no timeout");
  return notice;
}

std::string waits_for_ever(const RankReport& report, std::span<const RankReport> ended,
                           double seconds) {
  for (const CallReport& call : report.calls) {
    if (call.seconds < seconds) continue;
    for (const int rank : awaited(call, report.rank)) {
      const RankReport* const other = find(rank, ended);
      if (other == nullptr || has_come(*other, call)) continue;
      return fmt::format("rank {} has exited while rank {} is waiting for it in {}", rank,
                         report.rank, call.text);
    }
  }
  return {};
}

}  // namespace megatron::comm
