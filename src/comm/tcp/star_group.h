// Both ends of the calls of comm/tcp/star.h: a group whose calls are made at rank 0, and the code
// that makes them there.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/group.h"
#include "comm/rank_record.h"
#include "comm/tcp/rendezvous.h"

namespace megatron::comm {

// Connection of a process other than rank 0 to rank 0, and the reason why its calls throw.
// Thread-safe.
class Home {
 public:
  Home(RendezvousAddress place, int rank, int size)
      : place_(std::move(place)), rank_(rank), size_(size), record_(rank) {}
  int rank() const { return rank_; }
  RankRecord& record() { return record_; }
  // Opens a new connection for the group with number `part`.
  Line connect(int64_t part, double seconds) const;
  void fail(const std::string& reason);  // only the first reason counts
  std::string failure() const;           // empty if there is none

 private:
  const RendezvousAddress place_;
  const int rank_, size_;
  RankRecord record_;
  mutable std::mutex mutex_;
  std::string reason_;
};

// part: see Hello. place: index of this rank among `members`, which are ranks of the world.
std::unique_ptr<Group> star_group(std::shared_ptr<Home> home, int64_t part, uint64_t id,
                                  std::string_view name, int place, std::vector<int> members);

// Keeps a group that a split has made until its rank connects; returns its number.
using PartMaker = std::function<int64_t(std::unique_ptr<Group>)>;
// Runs at rank 0: makes the calls that arrive over the line until it ends. Throws Error for bytes
// that are not calls.
void serve_calls(Line& line, std::unique_ptr<Group> group, const PartMaker& keep);

}  // namespace megatron::comm
