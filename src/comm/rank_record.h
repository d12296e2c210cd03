// The calls of one rank: those it is in now, and its progress in each group. Written by the rank,
// read by hang detection.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "comm/call_header.h"
#include "comm/doing.h"

namespace megatron::comm {

inline constexpr uint64_t kWorldId = 1;  // of the group of all ranks
std::vector<int> all_ranks(int size);    // its members: 0, 1 ... size - 1

// Progress of one rank in one group. Only RankRecord accesses the members that change.
struct GroupRecord {
  uint64_t id = 0;           // the same on all members, and unique among groups
  std::string name;          // "tp"
  std::vector<int> members;  // ranks of the world
  int64_t calls = 0;         // collectives that this rank has started: number of the last one
  std::vector<int64_t> sent, received;  // messages to and from each member; empty: none

  // Id of the group that the last call, a split, created for this rank's colour.
  uint64_t id_of_part(int color) const;
};

// A call that a rank is in, in a form that can be sent to others.
struct CallReport {
  uint64_t group = 0;
  std::vector<int> members;  // ranks of the world
  int64_t number = 0;
  int place = 0, peer = -1;  // place: this rank's in the group; peer: sender of a recv
  std::string text;          // "all_reduce 'loss' (call 12 of 'tp', 8 bytes of f32, sum)"
  double seconds = 0;        // since the call began
};

struct GroupProgress {
  uint64_t group = 0;
  int64_t calls = 0;
  std::vector<int64_t> sent;
};

struct RankReport {
  enum class State { runs, has_ended, is_silent };
  int rank = 0;
  State state = State::runs;
  Doing::State doing;
  std::vector<CallReport> calls;
  std::vector<GroupProgress> groups;
  std::string last_call;     // last finished call; empty: none
  double last_seconds = -1;  // since then

  std::string packed() const;
  static RankReport unpacked(std::string_view bytes);
};

class RankRecord;

// Spans a call from begin to end: numbers it and shows it to others. The header, and everything it
// refers to, must not change meanwhile.
class OpenCall {
 public:
  OpenCall(RankRecord& record, GroupRecord& group, CallHeader& header, int peer = -1);
  ~OpenCall();
  OpenCall(const OpenCall&) = delete;
  OpenCall& operator=(const OpenCall&) = delete;

 private:
  friend class RankRecord;
  RankRecord& record_;
  const GroupRecord& group_;
  const CallHeader& header_;
  const int peer_;
  double began_;
};

class RankRecord {
 public:
  explicit RankRecord(int rank) : rank_(rank) {}

  Doing& doing() { return doing_; }
  std::shared_ptr<GroupRecord> add_group(uint64_t id, std::string_view name,
                                         std::vector<int> members);
  void set_name(GroupRecord& group, std::string_view name);
  // Records that a message was sent; returns its number.
  int64_t sent(GroupRecord& group, int to);

  double longest() const;  // age in seconds of the oldest open call; 0: none
  RankReport report() const;

 private:
  friend class OpenCall;
  void begin(OpenCall& call, GroupRecord& group, CallHeader& header);
  void end(OpenCall& call);

  const int rank_;
  Doing doing_;
  mutable std::mutex mutex_;
  std::vector<const OpenCall*> open_;
  std::vector<std::shared_ptr<GroupRecord>> groups_;
  struct {
    std::string_view operation;
    std::string call, group;
    int64_t number = 0;
    double ended = 0;
  } last_;
};

}  // namespace megatron::comm
