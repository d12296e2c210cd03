// State shared by all groups of one rank on one GPU (comm/gpu/group.h).
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "comm/gpu/communicator.h"
#include "comm/member.h"

namespace megatron::comm {

class GpuRank;

// A call of the rank, open from construction to destruction.
class GpuCall {
 public:
  // peer: sender of a recv; otherwise -1.
  GpuCall(CallHeader header, Member& member, int peer)
      : header_(std::move(header)),
        progress_(member.progress()),
        open_(member.record(), *progress_, header_, peer) {}
  const std::string& name() const { return header_.call; }

 private:
  CallHeader header_;
  const std::shared_ptr<GroupRecord> progress_;
  const OpenCall open_;
};

// A communicator and the stream of its calls.
class GpuLane {
 public:
  GpuLane(std::shared_ptr<GpuRank> rank, std::unique_ptr<Communicator> communicator);
  ~GpuLane();
  GpuLane(const GpuLane&) = delete;
  GpuLane& operator=(const GpuLane&) = delete;

  Communicator& communicator() { return *communicator_; }
  Stream& stream() { return *stream_; }
  Arena& arena() { return *arena_; }  // memory that only this lane's stream reads and writes

  // Keeps a call (may be null) and a tensor alive until `reached`. Releases completed ones.
  void add(Event reached, std::unique_ptr<GpuCall> call, Tensor tensor);
  void release_completed();
  bool idle();

 private:
  struct InFlight {
    Event reached;
    std::unique_ptr<GpuCall> call;
    Tensor tensor;
  };

  const std::shared_ptr<GpuRank> rank_;
  const std::shared_ptr<Arena> arena_;
  const std::unique_ptr<Communicator> communicator_;
  std::unique_ptr<Stream> stream_;
  std::mutex mutex_;
  std::deque<InFlight> in_flight_;
};

// A thread of this object monitors the calls in flight: it releases completed calls, and aborts all
// if the ranks' run or NCCL has failed.
class GpuRank {
 public:
  // member: that of the group of all ranks; borrowed.
  GpuRank(Device device, Member& member);
  ~GpuRank();
  GpuRank(const GpuRank&) = delete;
  GpuRank& operator=(const GpuRank&) = delete;

  const Nccl& nccl() const { return nccl_; }
  Device device() const { return device_; }
  // Stream for calls of the host's groups, and for making streams.
  Stream& host() { return host_; }
  ThreadPool& pool() { return pool_; }
  Arena& scratch() { return *scratch_; }

  // Returns once all ranks of the communicator have joined; throws Error if the run fails first.
  std::unique_ptr<Communicator> join(const CommunicatorId& id, int rank, int size);

  void add(GpuLane& lane);
  void remove(GpuLane& lane);

  // Aborts everything queued and waits until it has ended; only the first reason is kept.
  void give_up(const std::string& reason);
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  // If calls were given up, throws Error naming `call` and the reason.
  void check(std::string_view call) const;

 private:
  void watch();

  const Nccl& nccl_;
  const Device device_;
  Member& member_;
  ThreadPool pool_{1};
  const std::shared_ptr<Arena> host_arena_, scratch_;
  HostStream host_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<GpuLane*> lanes_;
  std::string reason_;  // does not change after a failure
  std::atomic<bool> failed_ = false;
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace megatron::comm
