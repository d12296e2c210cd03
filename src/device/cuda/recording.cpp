#include "device/cuda/recording.h"

#include "base/error.h"
#include "device/cuda/runtime_call.h"

namespace megatron::cuda {
namespace {

class Graph final : public RecordedWork {
 public:
  // Also destroys `graph`.
  Graph(CudaStream& stream, std::vector<CudaStream*> others, cudaGraph_t graph)
      : stream_(stream), others_(std::move(others)) {
    const cudaError_t made = cudaGraphInstantiate(&executable_, graph, 0);
    cudaGraphDestroy(graph);
    check(made,
          "cudaGraphInstantiate (not needed with --cuda-graph-impl none, or "
          "--inference-dynamic-batching-num-cuda-graphs 0)");
  }
  ~Graph() override { cudaGraphExecDestroy(executable_); }
  // Also marks the other streams as busy with this work.
  void queue() override {
    MG_ASSERT(!stream_.recording());
    for (CudaStream* other : others_) stream_.wait(other->record());
    check(cudaGraphLaunch(executable_, stream_.handle()), "cudaGraphLaunch");
    if (others_.empty()) return;
    const Event done = stream_.record();
    for (CudaStream* other : others_) other->wait(done);
  }

 private:
  CudaStream& stream_;
  const std::vector<CudaStream*> others_;
  cudaGraphExec_t executable_ = nullptr;
};

class Recording final : public StreamRecording {
 public:
  Recording(CudaStream& stream, RecordingGate& gate)
      : stream_(stream), gate_(gate), lock_(gate.record()) {
    try {
      stream_.begin_recording();
    } catch (...) {
      gate_.recorded();
      throw;
    }
  }
  ~Recording() override {
    if (!lock_) return;
    if (const cudaGraph_t graph = stream_.drop_recording(); graph != nullptr)
      cudaGraphDestroy(graph);
    gate_.recorded();
  }
  std::unique_ptr<RecordedWork> finish() override {
    MG_ASSERT(lock_.owns_lock());
    std::vector<CudaStream*> others;
    const cudaGraph_t graph = stream_.end_recording(others);
    gate_.recorded();
    lock_.unlock();
    return std::make_unique<Graph>(stream_, std::move(others), graph);
  }

 private:
  CudaStream& stream_;
  RecordingGate& gate_;
  std::unique_lock<std::shared_mutex> lock_;  // until it is finished
};

}  // namespace

std::unique_ptr<StreamRecording> record(CudaStream& stream, RecordingGate& gate) {
  return std::make_unique<Recording>(stream, gate);
}

MemoryWhileRecording::MemoryWhileRecording() {
  check(cudaThreadExchangeStreamCaptureMode(&mode_), "cudaThreadExchangeStreamCaptureMode");
}
MemoryWhileRecording::~MemoryWhileRecording() { cudaThreadExchangeStreamCaptureMode(&mode_); }

}  // namespace megatron::cuda
