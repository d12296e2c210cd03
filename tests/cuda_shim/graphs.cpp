// Work that is recorded in a stream and queued again as a whole.
#include <fmt/core.h>

#include <algorithm>

#include "machine.h"

struct CUgraph_st {
  int device = 0;
  std::vector<cuda_shim::Operation> work;
};
struct CUgraphExec_st {
  int device = 0;
  std::vector<cuda_shim::Operation> work;
};

namespace cuda_shim {
namespace {

thread_local cudaStreamCaptureMode mode_of_thread = cudaStreamCaptureModeGlobal;

cudaError_t spoil(Recording& recording, const std::string& text) {
  recording.spoiled = true;
  return refuse(cudaErrorStreamCaptureUnsupported, text);
}

cudaError_t no_graph(const char* call) {
  return refuse(cudaErrorInvalidValue, fmt::format("{} with a graph that does not exist", call));
}

}  // namespace

cudaError_t refuse_while_recording(const char* call, bool of_device) {
  const std::thread::id self = std::this_thread::get_id();
  for (const cudaStream_t stream : machine().streams) {
    Recording* const recording = stream->recording.get();
    if (recording == nullptr) continue;
    const bool hinders = of_device ? stream->device == current_device()
                                   : mode_of_thread != cudaStreamCaptureModeRelaxed &&
                                         recording->mode != cudaStreamCaptureModeRelaxed &&
                                         (recording->mode == cudaStreamCaptureModeGlobal ||
                                          recording->thread == self);
    if (hinders)
      return spoil(*recording, fmt::format("{} while the work of a stream is recorded", call));
  }
  return cudaSuccess;
}

cudaError_t refuse_recording_stream(const char* call, cudaStream_t stream) {
  if (stream == nullptr || stream->recording == nullptr) return cudaSuccess;
  return spoil(*stream->recording, fmt::format("{} of a stream whose work is recorded", call));
}

cudaError_t refuse_recorded_event(const char* call, cudaEvent_t event) {
  if (event->recorded_in == nullptr) return cudaSuccess;
  const cudaStream_t stream = event->recorded_in;
  if (std::ranges::count(machine().streams, stream) != 0 && stream->recording != nullptr)
    stream->recording->spoiled = true;
  return refuse(cudaErrorCapturedEvent,
                fmt::format("{} of an event that was recorded into a graph", call));
}

}  // namespace cuda_shim

using namespace cuda_shim;

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, mode_of_thread);
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  Machine& m = machine();
  const Lock lock(m.mutex);
  if (std::ranges::count(m.streams, stream) == 0)
    return refuse(cudaErrorStreamCaptureUnsupported,
                  "cudaStreamBeginCapture of no stream, or of the default stream");
  if (stream->recording != nullptr)
    return spoil(*stream->recording, "cudaStreamBeginCapture of a stream whose work is recorded");
  stream->recording = std::make_unique<Recording>();
  stream->recording->mode = mode;
  stream->recording->thread = std::this_thread::get_id();
  return m.sticky;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  Machine& m = machine();
  const Lock lock(m.mutex);
  *graph = nullptr;
  if (std::ranges::count(m.streams, stream) == 0 || stream->recording == nullptr)
    return refuse(cudaErrorStreamCaptureUnmatched, "cudaStreamEndCapture without a begin");
  if (stream->recording->thread != std::this_thread::get_id() &&
      stream->recording->mode != cudaStreamCaptureModeRelaxed)
    return refuse(cudaErrorStreamCaptureWrongThread,
                  "cudaStreamEndCapture by another thread than the one that began");
  const std::unique_ptr<Recording> recording = std::move(stream->recording);
  if (recording->spoiled) return cudaErrorStreamCaptureInvalidated;
  *graph = new CUgraph_st{.device = stream->device, .work = std::move(recording->work)};
  m.graphs.insert(*graph);
  return m.sticky;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long) {
  Machine& m = machine();
  const Lock lock(m.mutex);
  *executable = nullptr;
  if (!m.graphs.contains(graph)) return no_graph("cudaGraphInstantiate");
  if (const cudaError_t error = refuse_while_recording("cudaGraphInstantiate");
      error != cudaSuccess)
    return error;
  *executable = new CUgraphExec_st{.device = graph->device, .work = graph->work};
  m.executables.insert(*executable);
  return m.sticky;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  Machine& m = machine();
  const Lock lock(m.mutex);
  if (!m.executables.contains(executable)) return no_graph("cudaGraphLaunch");
  const cudaStream_t own = stream_of(stream);
  if (own == nullptr || own->device != executable->device)
    return refuse(cudaErrorInvalidResourceHandle,
                  "cudaGraphLaunch on a stream that does not exist, or of another device");
  if (const cudaError_t error = refuse_recording_stream("cudaGraphLaunch", own);
      error != cudaSuccess)
    return error;
  for (const Operation& operation : executable->work) {
    if (const cudaError_t error = queue(own, operation); error != cudaSuccess) return error;
  }
  return m.sticky;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  const Lock lock(machine().mutex);
  if (machine().graphs.erase(graph) == 0) return no_graph("cudaGraphDestroy");
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  const Lock lock(machine().mutex);
  if (machine().executables.erase(executable) == 0) return no_graph("cudaGraphExecDestroy");
  delete executable;
  return cudaSuccess;
}
