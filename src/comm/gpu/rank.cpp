#include "comm/gpu/rank.h"

#include <chrono>
#include <utility>

#include "base/error.h"
#include "device/cuda_plugin.h"

namespace megatron::comm {

namespace {

constexpr std::chrono::milliseconds kPause{50};  // between two checks
constexpr Device kHost{DeviceKind::cpu, 0};

}  // namespace

const Nccl& nccl() {
  using Find = const Nccl*();
  return *reinterpret_cast<Find*>(cuda_symbol("megatron_cuda_nccl"))();
}

// --- One communicator.

GpuLane::GpuLane(std::shared_ptr<GpuRank> rank, std::unique_ptr<Communicator> communicator)
    : rank_(std::move(rank)),
      arena_(Arena::make(rank_->device(), MemoryClass::communication)),
      communicator_(std::move(communicator)),
      stream_(cuda_plugin().make_stream(rank_->device(), rank_->pool(), rank_->scratch())) {
  rank_->add(*this);
}

GpuLane::~GpuLane() {
  try {
    stream_->synchronize();
  } catch (const std::exception& error) {
    rank_->give_up(error.what());
  }
  rank_->remove(*this);
  in_flight_.clear();
}

void GpuLane::add(Event reached, std::unique_ptr<GpuCall> call, Tensor tensor) {
  const std::lock_guard lock(mutex_);
  in_flight_.push_back({std::move(reached), std::move(call), std::move(tensor)});
}

// Calls complete in the order in which they were queued.
void GpuLane::release_completed() {
  const std::lock_guard lock(mutex_);
  while (!in_flight_.empty() && in_flight_.front().reached.reached()) in_flight_.pop_front();
}

bool GpuLane::idle() {
  const std::lock_guard lock(mutex_);
  return in_flight_.empty();
}

// --- All of a rank.

GpuRank::GpuRank(Device device, Member& member)
    : nccl_(comm::nccl()),
      device_(device),
      member_(member),
      host_arena_(Arena::make(kHost, MemoryClass::communication)),
      scratch_(Arena::make(device, MemoryClass::scratch)),
      host_(kHost, pool_, *host_arena_, Stream::Target{DeviceKind::cpu, 1}),
      thread_([this] { watch(); }) {}

GpuRank::~GpuRank() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

std::unique_ptr<Communicator> GpuRank::join(const CommunicatorId& id, int rank, int size) {
  return nccl_.join(id, rank, size, device_, [this] { check("a call of NCCL"); });
}

void GpuRank::add(GpuLane& lane) {
  const std::lock_guard lock(mutex_);
  lanes_.insert(&lane);
  if (failed()) lane.communicator().abort();
}

void GpuRank::remove(GpuLane& lane) {
  const std::lock_guard lock(mutex_);
  lanes_.erase(&lane);
}

void GpuRank::give_up(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (failed()) return;
  reason_ = reason;
  failed_.store(true, std::memory_order_release);
  // All at once: abort() returns only when the kernels of all communicators have ended, here and on
  // the other ranks, which may begin with another communicator.
  std::vector<std::thread> threads;
  for (GpuLane* lane : lanes_) threads.emplace_back([lane] { lane->communicator().abort(); });
  for (std::thread& thread : threads) thread.join();
}

void GpuRank::check(std::string_view call) const {
  if (failed()) fail("'{}' was aborted: {}", call, reason_);
}

void GpuRank::watch() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kPause, [this] { return stopped_; })) {
    if (failed()) continue;
    std::string reason = member_.failure();
    try {
      for (GpuLane* lane : lanes_) {
        if (reason.empty()) reason = lane->communicator().failure();
        lane->release_completed();
      }
    } catch (const std::exception& error) {  // a failure of the device
      reason = error.what();
    }
    if (reason.empty()) continue;
    lock.unlock();
    give_up(reason);
    lock.lock();
  }
}

}  // namespace megatron::comm
