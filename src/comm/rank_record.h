// The calls of one rank: those it is in now, and how far it has come in each group. Kept by the
// rank, read by whoever looks for hangs.
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

// How far one rank has come in one group. Only RankRecord touches what changes.
struct GroupRecord {
  uint64_t id = 0;           // the same on all members, no other group's
  std::string name;          // "tp"
  std::vector<int> members;  // ranks of the world
  int64_t calls = 0;         // collectives that this rank has begun: the number of the last one
  std::vector<int64_t> sent, received;  // messages to and from each member; empty: none

  // Of a group that the last call, a split, has made for this rank's colour.
  uint64_t id_of_part(int color) const;
};

// A call that a rank is in, as others may know it.
struct CallReport {
  uint64_t group = 0;
  std::vector<int> members;  // ranks of the world
  int64_t number = 0;
  int place = 0, peer = -1;  // this rank's in the group; of a recv, the sender's
  std::string text;          // "all_reduce 'loss' (call 12 of 'tp', 8 bytes of f32, sum)"
  double seconds = 0;        // since it began
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
  std::string last_call;     // that ended; empty: none
  double last_seconds = -1;  // since then

  std::string packed() const;
  static RankReport unpacked(std::string_view bytes);
};

class RankRecord;

// From the beginning of a call to its end: numbers it, and shows it to others. The header, and what
// it names, stay as they are meanwhile.
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
  // A message is on its way; its number.
  int64_t sent(GroupRecord& group, int to);

  double longest() const;  // seconds since the oldest open call began; 0: there is none
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
