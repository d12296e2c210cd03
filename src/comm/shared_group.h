// Meeting point of a group's ranks that are threads of one process, and the failure of all groups
// when one rank fails.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/call_header.h"
#include "comm/group.h"
#include "comm/mailbox.h"
#include "comm/rank_record.h"

namespace megatron::comm {

class SharedGroup;

// Failure state of all ranks of a run.
class World {
 public:
  explicit World(int ranks);

  // Keeps the first failure and wakes all waiting ranks.
  void fail(int rank, std::exception_ptr failure, const std::string& reason);
  // Called when the rank fails with an exception that is not known yet; its fail() follows.
  void leave(int rank);
  void end(int rank);   // the rank's body has returned: it makes no more calls
  void left(int rank);  // the rank's thread has ended, for whatever reason
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  bool ended(int rank) const {
    return ended_[static_cast<size_t>(rank)].load(std::memory_order_acquire);
  }
  bool runs(int rank) const {
    return !left_[static_cast<size_t>(rank)].load(std::memory_order_acquire);
  }
  RankRecord& record(int rank) { return *records_[static_cast<size_t>(rank)]; }
  double longest() const;  // age in seconds of the oldest call that a rank is in; 0: none
  std::vector<RankReport> reports() const;
  std::string reason();  // message of the first failure

  // Throws Error: `call` was given up, and the reason.
  [[noreturn]] void give_up(std::string_view call);
  void rethrow() const;  // throws the first failure, if any; call after all ranks have ended
  void add(const std::shared_ptr<SharedGroup>& group);

 private:
  void wake_all();

  std::mutex mutex_;
  std::vector<std::weak_ptr<SharedGroup>> groups_;
  std::atomic<bool> failed_ = false;
  std::exception_ptr failure_;
  int leaving_ = -1;  // rank whose leave() preceded any failure
  std::string reason_;
  std::vector<std::atomic<bool>> ended_, left_;
  std::vector<std::unique_ptr<RankRecord>> records_;
};

// One rank's arguments of a collective call.
struct Entry : CallHeader {
  std::byte* data = nullptr;  // of the call's `in`
  int color = 0, key = 0;
  std::shared_ptr<SharedGroup> part;  // of split: the new group, created by its first rank
};

// The shared state of one group. A collective consists of: write entry(rank), begin, read all
// entries and do the rank's share, end. Ranks are ranks of the group, except in texts, which name
// ranks of the world.
class SharedGroup {
 public:
  SharedGroup(std::shared_ptr<World> world, std::vector<int> members, uint64_t id);

  int size() const { return static_cast<int>(members_.size()); }
  World& world() const { return *world_; }
  const std::shared_ptr<World>& shared_world() const { return world_; }
  const std::vector<int>& members() const { return members_; }
  uint64_t id() const { return id_; }
  Entry& entry(int rank) { return entries_[static_cast<size_t>(rank)]; }

  // Returns once every rank has arrived. Throws Error if a rank of the world fails, or ends without
  // arriving.
  void begin(int rank);
  // Returns once every rank has arrived. All will, since they have passed begin, so a failure
  // elsewhere does not stop it; this ensures that nobody frees memory that others still read.
  void end(int rank);
  // May be called between begin and end. Empty if the entries agree; otherwise a text naming two
  // that differ, the same on every rank.
  std::string disagreement() const;

  void send(int from, int to, const Tensor& tensor, std::string_view call, int64_t number);
  void receive(int from, int to, Tensor& tensor, const CallHeader& header);
  void wake();

 private:
  struct Arrival {
    uint64_t generation;
    bool last;
  };
  Arrival arrive(int rank);
  bool spin(uint64_t generation) const;
  bool over(uint64_t generation) const {
    return generation_.load(std::memory_order_acquire) != generation;
  }
  int missing_for_ever() const;  // a rank that has not arrived and has ended; -1: none
  Mailbox& mailbox(int from, int to) { return mailboxes_[static_cast<size_t>(from * size() + to)]; }

  std::shared_ptr<World> world_;
  std::vector<int> members_;  // ranks of the world
  uint64_t id_;
  std::vector<Entry> entries_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<bool> present_;
  int arrived_ = 0;
  std::atomic<uint64_t> generation_ = 0;
  std::vector<Mailbox> mailboxes_;
};

}  // namespace megatron::comm
