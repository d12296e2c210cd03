#include "comm/gpu/communicator.h"

#include <cuda_runtime.h>
#include <nccl.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "comm/gpu/nccl/rank_order.h"
#include "device/cuda/out_of_memory.h"
#include "device/cuda/runtime_call.h"
#include "device/cuda/stream.h"
#include "device/cuda/waited.h"

namespace megatron::comm {
namespace {

static_assert(sizeof(ncclUniqueId) == sizeof(CommunicatorId));

// Wait for a thread inside NCCL when another gives up.
constexpr std::chrono::seconds kPatience{1};
// Number of polls of NCCL without a pause, and the pause between later ones.
constexpr int kQuickLooks = 2000;
constexpr std::chrono::microseconds kPause{100};

void check(ncclResult_t result, const char* call, ncclComm_t comm) {
  if (result == ncclSuccess) return;
  const std::string text = fmt::format("NCCL: {} failed: {} ({})", call, ncclGetErrorString(result),
                                       ncclGetLastError(comm));
  if (text.find("out of memory") != std::string::npos) cuda::fail_for_memory(text);
  fail("{}", text);
}

ncclDataType_t type_of(DType type) {
  switch (type) {
    case DType::f64: return ncclFloat64;
    case DType::f32: return ncclFloat32;
    case DType::i64: return ncclInt64;
    case DType::i32: return ncclInt32;
    case DType::i8: return ncclInt8;
    case DType::u8: return ncclUint8;
    default: break;
  }
  MG_ASSERT(false);
}
ncclRedOp_t operation_of(Reduce op) { return op == Reduce::sum ? ncclSum : ncclMax; }
size_t size(int64_t n) { return static_cast<size_t>(n); }

// NCCL does not block: a call is started, and the rest of it (all of it, if others must join)
// continues in a thread of NCCL's. Until that has ended, no other call of the communicator, and no
// CUDA call on its stream, may be made, so every call here waits for it.
class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(const CommunicatorId& id, int rank, int ranks, Device device, Patience patience)
      : rank_(rank), device_(device.index), patience_(std::move(patience)) {
    cuda::check(cudaSetDevice(device_), "cudaSetDevice");
    ncclUniqueId name;
    std::memcpy(&name, id.bytes.data(), sizeof name);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    try {
      settle(ncclCommInitRankConfig(&comm_, ranks, name, rank, &config), "ncclCommInitRankConfig");
    } catch (...) {
      if (comm_ != nullptr) ncclCommAbort(comm_);
      throw;
    }
  }

  ~NcclCommunicator() override {
    try {
      call("ncclCommFinalize", [&] { return ncclCommFinalize(comm_); });
      ncclCommDestroy(comm_);
    } catch (const std::exception&) {  // whoever gave up has reported the reason
      abort();
    }
  }

  void all_reduce(void* data, int64_t count, DType type, Reduce op, Stream& stream) override {
    call("ncclAllReduce", [&] {
      return ncclAllReduce(data, data, size(count), type_of(type), operation_of(op), comm_,
                           cuda::handle_of(stream));
    });
  }

  void reduce_scatter(const void* in, void* out, int64_t count, DType type, Reduce op,
                      Stream& stream) override {
    call("ncclReduceScatter", [&] {
      return ncclReduceScatter(in, out, size(count), type_of(type), operation_of(op), comm_,
                               cuda::handle_of(stream));
    });
  }

  void all_gather(const void* in, void* out, int64_t bytes, Stream& stream) override {
    call("ncclAllGather", [&] {
      return ncclAllGather(in, out, size(bytes), ncclUint8, comm_, cuda::handle_of(stream));
    });
  }

  void broadcast(void* data, int64_t bytes, int root, Stream& stream) override {
    call("ncclBroadcast", [&] {
      return ncclBroadcast(data, data, size(bytes), ncclUint8, root, comm_,
                           cuda::handle_of(stream));
    });
  }

  void exchange(std::span<const Piece> out, std::span<const Piece> in, Stream& stream) override {
    const cudaStream_t handle = cuda::handle_of(stream);
    const Piece from = out[size(rank_)], to = in[size(rank_)];
    if (to.bytes > 0 && from.data != to.data)
      cuda::check(
          cudaMemcpyAsync(to.data, from.data, size(to.bytes), cudaMemcpyDeviceToDevice, handle),
          "cudaMemcpyAsync");
    call("ncclGroupEnd", [&] {
      ncclResult_t result = ncclGroupStart();
      const auto add = [&result](ncclResult_t next) {
        if (result == ncclSuccess || result == ncclInProgress) result = next;
      };
      for (int r = 0; r < static_cast<int>(out.size()); ++r) {
        if (r == rank_) continue;
        if (const Piece& p = out[size(r)]; p.bytes > 0)
          add(ncclSend(p.data, size(p.bytes), ncclUint8, r, comm_, handle));
        if (const Piece& p = in[size(r)]; p.bytes > 0)
          add(ncclRecv(p.data, size(p.bytes), ncclUint8, r, comm_, handle));
      }
      add(ncclGroupEnd());
      return result;
    });
  }

  void send(const void* data, int64_t bytes, int to, Stream& stream) override {
    call("ncclSend", [&] {
      return ncclSend(data, size(bytes), ncclUint8, to, comm_, cuda::handle_of(stream));
    });
  }

  void receive(void* data, int64_t bytes, int from, Stream& stream) override {
    call("ncclRecv", [&] {
      return ncclRecv(data, size(bytes), ncclUint8, from, comm_, cuda::handle_of(stream));
    });
  }

  // If a thread is inside a call on the communicator, the next poll reports the failure: polling
  // must not block.
  std::string failure() override {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    ncclResult_t error = ncclSuccess;
    if (!lock || aborted_ || ncclCommGetAsyncError(comm_, &error) != ncclSuccess ||
        error == ncclSuccess || error == ncclInProgress)
      return "";
    return fmt::format("NCCL failed: {} ({})", ncclGetErrorString(error), ncclGetLastError(comm_));
  }

  // Only aborting helps a thread that is stuck inside NCCL.
  void abort() noexcept override {
    given_up_ = true;
    std::unique_lock lock(mutex_, std::defer_lock);
    static_cast<void>(lock.try_lock_for(kPatience));
    if (aborted_.exchange(true)) return;
    cudaSetDevice(device_);
    ncclCommAbort(comm_);
  }

 private:
  template <class F>
  void call(const char* name, F&& f) {
    const std::lock_guard lock(mutex_);
    check_alive(name);
    settle(f(), name);
  }

  void check_alive(const char* name) const {
    MG_CHECK(!given_up_, "{} after the communicator was aborted", name);
  }

  // Waits until the call is done: queued or, if it makes or ends the communicator, finished.
  void settle(ncclResult_t result, const char* name) {
    for (int looks = 0; result == ncclInProgress; ++looks) {
      patience_();
      check_alive(name);
      const ncclResult_t looked = ncclCommGetAsyncError(comm_, &result);
      if (looked != ncclSuccess) result = looked;
      if (result != ncclInProgress) break;
      if (looks < kQuickLooks) std::this_thread::yield();
      else std::this_thread::sleep_for(kPause);
    }
    check(result, name, given_up_ ? nullptr : comm_);
  }

  const int rank_, device_;
  const Patience patience_;
  ncclComm_t comm_ = nullptr;
  std::timed_mutex mutex_;
  std::atomic<bool> given_up_ = false, aborted_ = false;
};

class Library final : public Nccl {
 public:
  // Arenas are mapped only for their own GPU (device/cuda/memory.cpp), but NCCL would let GPUs of
  // one process read each other's tensors in place, and would share tensors of calls in CUDA graphs
  // with other processes. These variables are the only way to prevent that.
  Library() {
    ::setenv("NCCL_P2P_DIRECT_DISABLE", "1", 1);
    ::setenv("NCCL_GRAPH_REGISTER", "0", 1);
  }

  CommunicatorId make_id() const override {
    ncclUniqueId name;
    check(ncclGetUniqueId(&name), "ncclGetUniqueId", nullptr);
    CommunicatorId id;
    std::memcpy(id.bytes.data(), &name, sizeof name);
    return id;
  }

  std::unique_ptr<Communicator> join(const CommunicatorId& id, int rank, int size, Device device,
                                     Patience patience) const override {
    return std::make_unique<NcclCommunicator>(id, rank, size, device, std::move(patience));
  }

  int64_t place_of(Device device) const override {
    cudaDeviceProp p;
    cuda::check(cudaGetDeviceProperties(&p, device.index), "cudaGetDeviceProperties");
    return int64_t{p.pciDomainID} << 32 | int64_t{p.pciBusID} << 16 | int64_t{p.pciDeviceID};
  }

  void reduce(const void* sources, int64_t stride, int ranks, void* out, int64_t count, DType type,
              Reduce op, Stream& stream) const override {
    reduce_in_rank_order({sources, stride, ranks, out, count, type, op}, stream);
  }

  void set_aside(Stream& stream) const override { cuda::set_aside(cuda::cuda_stream(stream)); }

  void on_wait(Stream& stream, const void* key,
               const std::function<void(bool ends)>& on_wait) const override {
    cuda::cuda_stream(stream).on_wait(key, on_wait);
  }
};

}  // namespace
}  // namespace megatron::comm

extern "C" __attribute__((visibility("default"))) const megatron::comm::Nccl* megatron_cuda_nccl() {
  static const megatron::comm::Library library;
  return &library;
}
