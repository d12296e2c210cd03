#include "device/cuda/recording.h"

#include "base/error.h"
#include "device/cuda/runtime_call.h"

namespace megatron::cuda {
namespace {

class Graph final : public RecordedWork {
 public:
  // Gives `graph` up, too.
  Graph(CudaStream& stream, cudaGraph_t graph) : stream_(stream), handle_(stream.handle()) {
    const cudaError_t made = cudaGraphInstantiate(&executable_, graph, 0);
    cudaGraphDestroy(graph);
    check(made, "cudaGraphInstantiate");
  }
  ~Graph() override {
    cudaStreamSynchronize(handle_);
    cudaGraphExecDestroy(executable_);
  }
  void queue() override {
    MG_ASSERT(!stream_.recording());
    check(cudaGraphLaunch(executable_, stream_.handle()), "cudaGraphLaunch");
  }

 private:
  CudaStream& stream_;
  cudaStream_t handle_;
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
    const cudaGraph_t graph = stream_.end_recording();
    gate_.recorded();
    lock_.unlock();
    return std::make_unique<Graph>(stream_, graph);
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
