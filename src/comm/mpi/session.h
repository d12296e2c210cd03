// MPI in this process, from its start to its end. Every call of MPI goes through here: one at a
// time, none that waits for other ranks inside MPI, so that threads may share it
// (MPI_THREAD_SERIALIZED is enough) and a rank that waits gives its core away.
#pragma once

#include <mpi.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/function_ref.h"
#include "comm/rank_record.h"

namespace megatron::comm {

// A message that was sent and may still be on its way: its memory, and MPI's requests for it.
struct Parcel {
  std::vector<std::byte> envelope, data;
  std::vector<MPI_Request> requests;
  std::string call;
  int to = 0;  // rank of the world
};

class Session {
 public:
  Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  int local_rank() const { return local_rank_; }  // among the ranks of this host
  int local_size() const { return local_size_; }
  MPI_Comm world() const { return world_; }
  const std::string& library() const { return library_; }  // "Open MPI 4.1.4"
  bool finalized() const { return finalized_; }

  // Runs a call of MPI; throws Error with MPI's text when it fails.
  void call(std::string_view what, FunctionRef<int()> function);
  bool test(std::span<MPI_Request> requests);
  // Whether a call would begin soon: no thread is inside MPI for long.
  bool is_free();
  // patient: others may be long in coming. brisk: all are there, the data are on their way.
  enum class Pace { patient, brisk };
  void wait(std::span<MPI_Request> requests, Pace pace);

  // From now on every call throws this reason, also where a thread waits already: what is under way
  // ends in memory that may be gone, so nothing may move it on.
  void give_up(const std::string& reason);
  bool given_up() const { return given_up_.load(std::memory_order_acquire); }
  const std::string& reason() const { return reason_; }  // once it is given up

  // The calls of this process.
  RankRecord& record() { return *record_; }

  // Keeps the messages of a group that goes away.
  void adopt(std::vector<Parcel> parcels);
  // Waits for all ranks, then ends MPI. A message that nobody has received by then ends all
  // processes, with a text that names it.
  void finalize();
  [[noreturn]] void abort(int code);

 private:
  void find_local_ranks();

  std::timed_mutex mutex_;
  int rank_ = 0, size_ = 1, local_rank_ = 0, local_size_ = 1;
  MPI_Comm world_ = MPI_COMM_NULL;
  std::string library_;
  bool finalized_ = false;
  std::atomic<bool> given_up_ = false;
  std::mutex giving_up_;
  std::string reason_;  // written once, before given_up_
  std::unique_ptr<RankRecord> record_;
  std::vector<Parcel> left_;
};

}  // namespace megatron::comm
