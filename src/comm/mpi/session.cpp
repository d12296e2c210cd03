#include "comm/mpi/session.h"

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "comm/mpi_library.h"

namespace megatron::comm {

namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// Between two polls a rank at first only yields, since what it waits for is often imminent; then it
// sleeps, longer and longer if it is patient.
class Pauses {
 public:
  explicit Pauses(Session::Pace pace) : patient_(pace == Session::Pace::patient) {}

  void pause() {
    if (sleep_ == 0us && ++looks_ % 16 == 0 && Clock::now() - start_ > (patient_ ? 50us : 2000us))
      sleep_ = 20us;
    if (sleep_ == 0us) return std::this_thread::yield();
    std::this_thread::sleep_for(sleep_);
    if (patient_ && sleep_ < 1000us) sleep_ += sleep_ / 4;
  }

 private:
  bool patient_;
  int looks_ = 0;
  Clock::time_point start_ = Clock::now();
  std::chrono::microseconds sleep_ = 0us;
};

// Shortens "Open MPI v4.1.4, package: ..." or "MPICH Version:\t4.0.2\n...".
std::string short_name(std::string_view text) {
  if (text.starts_with("Open MPI v"))
    return fmt::format("Open MPI {}", text.substr(10, text.find(',') - 10));
  constexpr std::string_view kMpich = "MPICH Version:";
  if (text.starts_with(kMpich)) {
    text.remove_prefix(kMpich.size());
    text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
    return fmt::format("MPICH {}", text.substr(0, text.find('\n')));
  }
  return std::string(text.substr(0, text.find_first_of(",\n")));
}

}  // namespace

Session::Session() {
  int level = 0;
  MG_CHECK(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level) == MPI_SUCCESS,
           "MPI could not be started");
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
  library_ = short_name(mpi_library());
  MG_CHECK(level >= MPI_THREAD_SERIALIZED,
           "{} was built without thread support; at least MPI_THREAD_SERIALIZED is needed",
           library_);
  call("rank", [&] { return MPI_Comm_rank(MPI_COMM_WORLD, &rank_); });
  call("size", [&] { return MPI_Comm_size(MPI_COMM_WORLD, &size_); });
  call("duplicate", [&] { return MPI_Comm_dup(MPI_COMM_WORLD, &world_); });
  record_ = std::make_unique<RankRecord>(rank_);
  find_local_ranks();
}

void Session::find_local_ranks() {
  MPI_Comm host = MPI_COMM_NULL;
  call("split by host", [&] {
    return MPI_Comm_split_type(world_, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &host);
  });
  call("rank", [&] { return MPI_Comm_rank(host, &local_rank_); });
  call("size", [&] { return MPI_Comm_size(host, &local_size_); });
  call("free", [&] { return MPI_Comm_free(&host); });
}

void Session::call(std::string_view what, FunctionRef<int()> function) {
  MG_CHECK(!given_up(), "{}", reason_);
  const std::lock_guard lock(mutex_);
  const int code = function();
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  fail("MPI failed in '{}' on rank {}: {}", what, rank_,
       std::string_view(text.data(), static_cast<size_t>(length)));
}

bool Session::test(std::span<MPI_Request> requests) {
  int done = 0;
  call("test", [&] {
    return MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done,
                       MPI_STATUSES_IGNORE);
  });
  return done != 0;
}

void Session::wait(std::span<MPI_Request> requests, Pace pace) {
  for (Pauses pauses(pace); !test(requests);) pauses.pause();
}

bool Session::is_free() {
  const std::unique_lock lock(mutex_, 200ms);
  return lock.owns_lock();
}

void Session::give_up(const std::string& reason) {
  const std::lock_guard lock(giving_up_);
  if (given_up_) return;
  reason_ = reason;
  given_up_.store(true, std::memory_order_release);
}

void Session::adopt(std::vector<Parcel> parcels) {
  const std::lock_guard lock(mutex_);
  for (Parcel& parcel : parcels) left_.push_back(std::move(parcel));
}

void Session::finalize() {
  MPI_Request all_here = MPI_REQUEST_NULL;
  call("end", [&] { return MPI_Ibarrier(world_, &all_here); });
  wait({&all_here, 1}, Pace::patient);
  const auto limit = Clock::now() + 2s;
  for (Parcel& parcel : left_) {
    while (!test(parcel.requests)) {
      if (Clock::now() > limit) {
        log::error("rank {} sent '{}' to rank {}, which has exited without receiving it", rank_,
                   parcel.call, parcel.to);
        abort(1);
      }
      std::this_thread::sleep_for(1ms);
    }
  }
  call("free", [&] { return MPI_Comm_free(&world_); });
  finalized_ = true;
  call("finalize", [] { return MPI_Finalize(); });
}

void Session::abort(int code) {
  std::fflush(nullptr);
  // A launcher that is asked to end a run may not read the last output of its processes.
  std::this_thread::sleep_for(100ms);
  // A thread that is stuck inside MPI must not keep the run alive.
  std::unique_lock lock(mutex_, std::defer_lock);
  static_cast<void>(lock.try_lock_for(1s));
  MPI_Abort(MPI_COMM_WORLD, code);
  std::_Exit(code);
}

}  // namespace megatron::comm
