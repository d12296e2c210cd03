#include "comm/tcp/star.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <list>
#include <map>
#include <set>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "comm/hang_report.h"
#include "comm/shared_group.h"
#include "comm/tcp/star_frames.h"
#include "comm/tcp/star_group.h"
#include "comm/threads.h"
#include "comm/watchdog.h"

namespace megatron::comm {
namespace {

using star::Hello;
using star::Kind;

constexpr std::chrono::milliseconds kPause{50}, kEndInterval{2}, kLastWords{100};
constexpr int kHelloSeconds = 10;
constexpr double kGrace = 30;        // seconds until a rank that does not end by itself is stopped
constexpr double kNotice = 5;        // seconds until the awaited ranks are logged
constexpr double kTelling = 10;      // seconds for notifying the others that the run does not begin
constexpr size_t kMaxReason = 3000;  // bytes of the reason that are sent to other ranks

[[noreturn]] void end_process(int code) {
  std::fflush(nullptr);
  std::this_thread::sleep_for(kLastWords);
  std::_Exit(code);
}

// Limits exit codes to 1 to 255, whatever the bytes are.
int code_of(const std::string& bytes) { return std::clamp(std::atoi(bytes.c_str()), 1, 255); }

std::optional<Hello> hello_of(const std::optional<Line::Frame>& frame) {
  Hello hello;
  if (!frame || frame->kind != number(Kind::hello) || frame->bytes.size() != sizeof hello)
    return std::nullopt;
  std::memcpy(&hello, frame->bytes.data(), sizeof hello);
  return hello;
}

// --- Rank 0.

class Center final : public Star {
 public:
  // own_failure: reason why this process has already failed, in which case only that is sent;
  // empty: it has not.
  Center(const RendezvousAddress& place, int size, double seconds,
         const std::string& own_failure = {})
      : size_(size),
        run_(place.run),
        failed_(!own_failure.empty()),
        world_(std::make_shared<World>(size)),
        failure_(failed_ ? failed_start(0, own_failure) : ""),
        reception_(place) {
    shared_ = std::make_shared<SharedGroup>(world_, all_ranks(size), kWorldId);
    world_->add(shared_);
    group_ = thread_group(shared_, 0, "world");
    accepting_ = std::thread([this] { accept(); });
    try {
      wait_for_all(place, seconds);
    } catch (...) {
      close();
      throw;
    }
    telling_ = std::thread([this] { tell_failure(); });
  }
  ~Center() override { close(); }

  Group& world() override { return *group_; }
  void body_begins(WaitLimits limits) override {
    most_seconds_ = limits.most;
    watchdog_ = std::make_unique<Watchdog>(*world_, limits);
  }

  void end() override {
    std::unique_lock lock(mutex_);
    for (const double began = now_seconds();
         static_cast<int>(gone_.size()) < size_ - 1 && !world_->failed();) {
      changed_.wait_for(lock, kPause);
      if (most_seconds_ > 0 && now_seconds() > began + most_seconds_) end_overdue(lock);
    }
    lock.unlock();
    ended_ = !world_->failed();
    send_all(Kind::bye, "");
  }

  void abort(int code) override { send_all(Kind::abort, std::to_string(code)); }

 private:
  // A rank may hang outside any call, where no watchdog sees it.
  [[noreturn]] void end_overdue(std::unique_lock<std::mutex>& lock) {
    std::string missing;
    for (int r = 1; r < size_; ++r)
      if (!gone_.contains(r)) missing += fmt::format("{}{}", missing.empty() ? "" : ", ", r);
    lock.unlock();
    log::error(
        "{:g} s after the end of the run these ranks are still running: {}; all ranks are "
        "ended",
        most_seconds_, missing);
    send_all(Kind::abort, std::to_string(kGivenUp));
    end_process(kGivenUp);
  }

  void wait_for_all(const RendezvousAddress& place, double seconds) {
    std::unique_lock lock(mutex_);
    const auto over = [this] {
      return static_cast<int>(lives_.size()) == size_ - 1 || !failure_.empty();
    };
    const auto wait = [&](double most, const auto& until) {
      return changed_.wait_for(lock, std::chrono::duration<double>(most), until);
    };
    const double first = std::min(seconds, kNotice);
    if (!wait(first, over) && first < seconds)
      log::info(
          "waiting for these of the {} ranks (WORLD_SIZE) to connect to {}:{} (MASTER_ADDR, "
          "MASTER_PORT): {}; {:g} s are left",
          size_, place.address, place.port, missing(), seconds - first);
    if (!wait(seconds - first, over))
      failure_ = fmt::format(
          "of the {} ranks (WORLD_SIZE), these did not connect to {}:{} (MASTER_ADDR, MASTER_PORT) "
          "within {:g} s: {}; check that they were started, and with the same address",
          size_, place.address, place.port, seconds, missing());
    complete_ = failure_.empty();
    for (const auto& [rank, line] : lives_) told_.insert(rank);
    lock.unlock();
    if (complete_) return send_all(Kind::welcome, "");
    send_all(Kind::refusal, failure_);
    lock.lock();  // for processes that connect later
    wait(std::min(seconds, kTelling),
         [this] { return static_cast<int>(told_.size()) == size_ - 1; });
    MG_CHECK(failed_, "{}", failure_);
  }

  std::string missing() const {
    std::string ranks;
    for (int r = 1; r < size_; ++r)
      if (!lives_.contains(r)) ranks += fmt::format("{}{}", ranks.empty() ? "" : ", ", r);
    return ranks;
  }

  void accept() {
    while (auto line = reception_.accept()) {
      release();
      const std::lock_guard lock(mutex_);
      if (closed_) return;
      Served& one = served_.emplace_back(std::move(*line));
      one.thread = std::thread([this, &one] {
        serve(one.line);
        one.over = true;
      });
    }
  }

  // Releases closed connections, whoever opened them: a run's port may be probed for weeks.
  void release() {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    served_.remove_if([this](Served& one) {
      const auto is_kept = [&one](const auto& live) { return live.second == &one.line; };
      if (!one.over || std::ranges::any_of(lives_, is_kept)) return false;
      one.thread.join();
      return true;
    });
  }

  void serve(Line& line) {
    try {
      line.set_patience(kHelloSeconds);
      const std::optional<Hello> hello = hello_of(line.receive(star::kMaxHello));
      if (!hello) return line.shut();  // not a process of this program
      line.set_patience(0);
      if (hello->size != size_ || hello->rank < 1 || hello->rank >= size_)
        return line.send(number(Kind::refusal),
                         fmt::format("rank 0 has WORLD_SIZE {}, but this process is rank {} of {}",
                                     size_, hello->rank, hello->size));
      const Hello own = star::hello_of(0, size_, 0, run_);
      const std::string_view mine = run_of(own), theirs = run_of(*hello);
      if (!mine.empty() && !theirs.empty() && mine != theirs)
        return line.send(
            number(Kind::refusal),
            fmt::format("rank 0 belongs to the run '{}', but this process, rank {}, to '{}': "
                        "each run needs its own MASTER_PORT",
                        mine, hello->rank, theirs));
      if (hello->part == star::kNoPart) return hear_failure(line, hello->rank);
      if (hello->part == 0) return live(line, hello->rank);
      if (auto group = part(*hello)) serve_calls(line, std::move(group), part_maker());
    } catch (const std::exception&) {  // the process is gone, which its live connection will show
    }
    line.shut();
  }

  void hear_failure(Line& line, int rank) {
    const auto frame = line.receive(star::kMaxHello);
    line.shut();
    const std::lock_guard lock(mutex_);
    told_.insert(rank);
    if (frame && !complete_ && failure_.empty()) failure_ = failed_start(rank, frame->bytes);
    changed_.notify_all();
  }

  static std::string failed_start(int rank, std::string_view reason) {
    return fmt::format("rank {} failed before the ranks had connected: {}", rank, reason);
  }

  // Runs until the process ends in any way.
  void live(Line& line, int rank) {
    {
      const std::lock_guard lock(mutex_);
      if (!failure_.empty()) {
        line.send(number(Kind::refusal), failure_);
        told_.insert(rank);
        return changed_.notify_all();
      }
      if (!lives_.try_emplace(rank, &line).second)
        return line.send(number(Kind::refusal),
                         fmt::format("two processes claim to be rank {}", rank));
      changed_.notify_all();
    }
    while (const auto frame = line.receive(star::kMaxHello)) {
      if (frame->kind == number(Kind::abort)) {
        send_all(Kind::abort, frame->bytes, rank);
        end_process(code_of(frame->bytes));
      }
      if (frame->kind != number(Kind::bye)) break;
      const std::lock_guard lock(mutex_);
      gone_.insert(rank);
      changed_.notify_all();
      return;
    }
    const std::lock_guard lock(mutex_);
    if (closed_ || !complete_) {
      lives_.erase(rank);
      return;
    }
    const std::string text = fmt::format("rank {} has exited: its connection closed", rank);
    world_->fail(rank, std::make_exception_ptr(Error(text)), text);
  }

  std::unique_ptr<Group> part(const Hello& hello) {
    const std::lock_guard lock(mutex_);
    if (hello.part == 1) {
      const bool first = complete_ && joined_.insert(hello.rank).second;
      return first ? thread_group(shared_, hello.rank, "world") : nullptr;
    }
    const auto found = parts_.find(hello.part);
    if (found == parts_.end()) return nullptr;
    auto group = std::move(found->second);
    parts_.erase(found);
    return group;
  }

  PartMaker part_maker() {
    return [this](std::unique_ptr<Group> group) {
      const std::lock_guard lock(mutex_);
      parts_[++next_part_] = std::move(group);
      return next_part_;
    };
  }

  void tell_failure() {
    std::unique_lock lock(mutex_);
    while (!closed_ && !world_->failed()) changed_.wait_for(lock, kPause);
    if (closed_) return;
    lock.unlock();
    send_all(Kind::failure, world_->reason());
  }

  void send_all(Kind kind, const std::string& bytes, int but = 0) {
    const std::lock_guard sending(sending_);
    std::map<int, Line*> lives;
    {
      const std::lock_guard lock(mutex_);
      lives = lives_;
    }
    for (const auto& [rank, line] : lives) {
      if (rank == but) continue;
      try {
        line->send(number(kind), bytes);
      } catch (const Error&) {  // the process is gone, which its thread notices
      }
    }
  }

  // The others are sent the reason before their connections end.
  void close() {
    if (complete_ && !ended_) {
      if (world_->failed()) send_all(Kind::failure, world_->reason());
      std::this_thread::sleep_for(kLastWords);
    }
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
      changed_.notify_all();
    }
    const std::string text = "rank 0 has exited";
    world_->fail(0, std::make_exception_ptr(Error(text)), text);
    reception_.shut();
    accepting_.join();
    for (Served& one : served_) one.line.shut();
    for (Served& one : served_) one.thread.join();
    if (telling_.joinable()) telling_.join();
    watchdog_.reset();
    parts_.clear();
  }

  struct Served {
    explicit Served(Line line) : line(std::move(line)) {}
    Line line;
    std::thread thread;
    std::atomic<bool> over = false;
  };

  const int size_;
  const std::string run_;
  const bool failed_;
  const std::shared_ptr<World> world_;
  std::shared_ptr<SharedGroup> shared_;
  std::unique_ptr<Group> group_;
  std::string failure_;  // reason why the run does not begin; empty: none so far
  Reception reception_;
  std::mutex mutex_, sending_;
  std::condition_variable changed_;
  std::list<Served> served_;
  std::map<int, Line*> lives_;          // by rank
  std::set<int> joined_, gone_, told_;  // told_: ranks that know whether the run begins
  std::map<int64_t, std::unique_ptr<Group>> parts_;
  int64_t next_part_ = 1;
  bool complete_ = false, closed_ = false, ended_ = false;
  double most_seconds_ = 0;
  std::unique_ptr<Watchdog> watchdog_;
  std::thread accepting_, telling_;
};

// --- Any other rank.

class Ray final : public Star {
 public:
  Ray(const RendezvousAddress& place, int rank, int size, double seconds)
      : home_(std::make_shared<Home>(place, rank, size)), live_(home_->connect(0, seconds)) {
    live_.set_patience(static_cast<int>(seconds) + kHelloSeconds);
    const auto frame = live_.receive(star::kMaxHello);
    MG_CHECK(frame.has_value(),
             "rank 0 at {}:{} (MASTER_ADDR, MASTER_PORT) exited before all ranks had connected, "
             "or it is a different program",
             place.address, place.port);
    MG_CHECK(frame->kind == number(Kind::welcome), "{}", frame->bytes);
    live_.set_patience(0);
    world_ = star_group(home_, 1, kWorldId, "world", rank, all_ranks(size));
    listening_ = std::thread([this] { listen(); });
  }
  ~Ray() override {
    ending_ = true;
    world_.reset();
    live_.shut();
    listening_.join();
  }

  Group& world() override { return *world_; }
  void body_begins(WaitLimits limits) override { most_seconds_ = limits.most; }

  void end() override {
    ending_ = true;
    live_.send(number(Kind::bye), "");
    // Waits until rank 0 also reports the end, which is sooner if it waits for others.
    const double began = now_seconds();
    while (!over_) {
      std::this_thread::sleep_for(kEndInterval);
      if (most_seconds_ <= 0 || now_seconds() < began + most_seconds_ + kGrace) continue;
      log::error("rank {} is stopping: rank 0 is still running {:g} s after the end of the run",
                 home_->rank(), most_seconds_ + kGrace);
      end_process(kGivenUp);
    }
  }

  void abort(int code) override {
    ending_ = true;
    try {
      live_.send(number(Kind::abort), std::to_string(code));
    } catch (const Error&) {  // rank 0 has ended
    }
  }

 private:
  void listen() {
    hear();
    over_ = true;
  }

  void hear() {
    while (const auto frame = live_.receive(star::kMaxCall)) {
      if (frame->kind == number(Kind::abort)) end_process(code_of(frame->bytes));
      if (frame->kind == number(Kind::failure)) home_->fail(frame->bytes);
      if (frame->kind == number(Kind::bye)) return;
    }
    if (ending_) return;
    home_->fail("rank 0 has exited: its connection closed");
    end_if_stuck();
  }

  // A thread may be inside a library that waits for the others forever (NCCL, making a
  // communicator).
  void end_if_stuck() {
    for (const double until = now_seconds() + kGrace; now_seconds() < until;) {
      if (ending_) return;
      std::this_thread::sleep_for(kPause);
    }
    log::error("rank {} was still running {:g} s after the run failed ({}) and is being ended",
               home_->rank(), kGrace, home_->failure());
    end_process(kGivenUp);
  }

  const std::shared_ptr<Home> home_;
  Line live_;
  std::unique_ptr<Group> world_;
  std::atomic<bool> ending_ = false, over_ = false;
  double most_seconds_ = 0;
  std::thread listening_;
};

}  // namespace

std::unique_ptr<Star> make_star(const RendezvousAddress& place, int rank, int size,
                                double seconds) {
  MG_ASSERT(size > 1 && rank >= 0 && rank < size);
  if (rank == 0) return std::make_unique<Center>(place, size, seconds);
  return std::make_unique<Ray>(place, rank, size, seconds);
}

void tell_failed_start(const RendezvousAddress& place, int rank, int size, std::string reason,
                       double seconds) {
  MG_ASSERT(size > 1 && rank >= 0 && rank < size);
  reason.resize(std::min(reason.size(), kMaxReason));
  if (rank == 0) {
    Center(place, size, seconds, reason);
    return;
  }
  Line line = Home(place, rank, size).connect(star::kNoPart, seconds);
  line.send(number(Kind::stopped), reason);
  line.set_patience(kHelloSeconds);
  line.receive(star::kMaxHello);  // returns once rank 0 has answered
}

}  // namespace megatron::comm
