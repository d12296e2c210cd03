// MPI in this process, from its start to its end. Every MPI call goes through here: one at a time,
// and none that waits for other ranks inside MPI, so that threads may share it
// (MPI_THREAD_SERIALIZED is enough) and a waiting rank yields its core.
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

// A message that was sent and may still be in flight: its memory, and its MPI requests.
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
  int local_rank() const { return local_rank_; }  // among this host's ranks
  int local_size() const { return local_size_; }
  MPI_Comm world() const { return world_; }
  const std::string& library() const { return library_; }  // "Open MPI 4.1.4"
  bool finalized() const { return finalized_; }

  // Makes an MPI call; throws Error with MPI's text if it fails.
  void call(std::string_view what, FunctionRef<int()> function);
  bool test(std::span<MPI_Request> requests);
  // True if a call would start soon: no thread is inside a long MPI call.
  bool is_free();
  // patient: the other ranks may take long to arrive. brisk: all have arrived, the data are in
  // flight.
  enum class Pace { patient, brisk };
  void wait(std::span<MPI_Request> requests, Pace pace);

  // Makes every call throw this reason from now on, including calls in which a thread already
  // waits. Pending operations refer to memory that may be gone, so nothing may advance them.
  void give_up(const std::string& reason);
  bool given_up() const { return given_up_.load(std::memory_order_acquire); }
  const std::string& reason() const { return reason_; }  // set by give_up()

  // Record of the calls of this process.
  RankRecord& record() { return *record_; }

  // Keeps the messages of a group that is destroyed.
  void adopt(std::vector<Parcel> parcels);
  // Waits for all ranks, then finalizes MPI. A message that nobody has received by then ends all
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
