#include "comm/processes.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "comm/tcp/star.h"
#include "comm/threads.h"

namespace megatron::comm {

namespace {

// Long enough for rank 0 to fail in the same way on a crowded machine. Ranks above 0 wait for
// different times, so that the lowest of those that fail reports.
constexpr std::chrono::milliseconds kPatience{3000}, kTurn{50};
constexpr int kTurns = 20;
constexpr double kFailedStartSeconds = 10;

}  // namespace

void Processes::run(int ranks, const std::function<void(Group& world)>& body, WaitLimits limits) {
  if (!launched() || size() == 1) return run_ranks(ranks, body, limits);
  MG_CHECK(ranks == size(),
           "{} ranks were requested, but the launcher started {} processes ({}), each of which is "
           "one rank",
           ranks, size(), launch_.place->source);
  body_begins(limits);
  body(group());
  body_ended();
  group().barrier("end of the run");
}

void tell_failed_start(const std::string& reason) {
  try {
    const std::optional<ProcessPlace> place = find_launch(environment()).place;
    if (!place || place->size == 1 || place->source != "RANK") return;
    tell_failed_start(rendezvous_address(environment()), place->rank, place->size, reason,
                      kFailedStartSeconds);
  } catch (const Error&) {  // no one is left to notify
  }
}

void Processes::end_star(bool failed) {
  if (failed || aborted_) return;
  try {
    star()->end();
  } catch (const std::exception& error) {
    log::error("{}", error.what());
  }
}

void Processes::abort_star(int code) {
  aborted_ = true;
  star()->abort(code);
}

void Processes::wait_for_lead() const {
  be_quiet();
  if (rank() > 0) std::this_thread::sleep_for(kPatience + std::min(rank(), kTurns) * kTurn);
}

}  // namespace megatron::comm
