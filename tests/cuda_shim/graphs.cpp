// Work that is captured from a stream and later launched as a whole.
#include <fmt/core.h>

#include <algorithm>
#include <map>

#include "machine.h"

struct CUgraph_st {
  int device = 0;
  std::vector<cuda_shim::Recording::Branch> branches;
};
struct CUgraphExec_st {
  int device = 0;
  std::vector<cuda_shim::Recording::Branch> branches;
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

// True if the end of the first branch comes after all work of the other branches.
bool is_joined(const std::vector<Recording::Branch>& branches) {
  std::map<const Marker*, std::pair<size_t, size_t>> marks;  // {branch, operations up to it}
  for (size_t b = 0; b < branches.size(); ++b)
    for (size_t i = 0; i < branches[b].work.size(); ++i)
      if (const Marker* mark = branches[b].work[i].mark.get()) marks[mark] = {b, i + 1};
  std::vector<size_t> reached(branches.size(), 0), looked(branches.size(), 0);
  reached[0] = branches[0].work.size();
  for (bool more = true; more;) {
    more = false;
    for (size_t b = 0; b < branches.size(); ++b) {
      for (; looked[b] < reached[b]; ++looked[b], more = true) {
        const auto mark = marks.find(branches[b].work[looked[b]].wait.get());
        if (mark == marks.end()) continue;
        const auto [other, end] = mark->second;
        reached[other] = std::max(reached[other], end);
      }
    }
  }
  for (size_t b = 1; b < branches.size(); ++b) {
    const auto& work = branches[b].work;
    for (size_t i = reached[b]; i < work.size(); ++i)
      if (work[i].mark == nullptr) return false;
  }
  return true;
}

Operation of_marks(std::shared_ptr<Marker> wait, std::shared_ptr<Marker> mark) {
  return {.name = "order in a graph", .work = {}, .wait = std::move(wait), .mark = std::move(mark)};
}

// One launch of a graph. Its first branch runs on the launching stream; the others run on streams
// of their own, which end with the launch.
class GraphLaunch {
 public:
  GraphLaunch(const std::vector<Recording::Branch>& branches, cudaStream_t stream)
      : branches_(branches), streams_{stream} {
    for (size_t b = 1; b < branches.size(); ++b) {
      streams_.push_back(
          new CUstream_st{.device = stream->device, .non_blocking = true, .work = {}});
      machine().branches.push_back(streams_.back());
    }
  }

  cudaError_t queue() {
    const auto begin = marker(0);
    cudaError_t error = cuda_shim::queue(streams_[0], of_marks(nullptr, begin));
    for (size_t b = 0; b < branches_.size() && error == cudaSuccess; ++b) {
      if (b > 0) error = cuda_shim::queue(streams_[b], of_marks(begin, nullptr));
      for (const Operation& operation : branches_[b].work)
        if (error == cudaSuccess) error = cuda_shim::queue(streams_[b], of_this(operation));
    }
    for (size_t b = 1; b < branches_.size() && error == cudaSuccess; ++b) error = end(b);
    return error;
  }

 private:
  std::shared_ptr<Marker> marker(size_t branch) const {
    auto made = std::make_shared<Marker>();
    made->stream = streams_[branch];
    return made;
  }

  // Returns this launch's counterpart of a recorded marker.
  std::shared_ptr<Marker> of_this(const std::shared_ptr<Marker>& recorded) {
    if (recorded == nullptr) return nullptr;
    auto& made = markers_[recorded.get()];
    for (size_t b = 0; made == nullptr && b < branches_.size(); ++b)
      if (branches_[b].stream == recorded->stream) made = marker(b);
    return made;
  }
  Operation of_this(Operation operation) {
    operation.wait = of_this(operation.wait);
    operation.mark = of_this(operation.mark);
    return operation;
  }

  cudaError_t end(size_t branch) {
    const auto over = marker(branch);
    const cudaError_t error = cuda_shim::queue(streams_[branch], of_marks(nullptr, over));
    if (error != cudaSuccess) return error;
    return cuda_shim::queue(streams_[0], {.name = "end of a graph's branch",
                                          .work =
                                              [own = streams_[branch]] {
                                                std::erase(machine().branches, own);
                                                delete own;
                                                return cudaSuccess;
                                              },
                                          .wait = over,
                                          .mark = nullptr});
  }

  const std::vector<Recording::Branch>& branches_;
  std::vector<cudaStream_t> streams_;
  std::map<const Marker*, std::shared_ptr<Marker>> markers_;
};

}  // namespace

std::vector<Operation>& Recording::work_of(cudaStream_t stream) {
  const auto found = std::ranges::find(branches, stream, &Branch::stream);
  if (found != branches.end()) return found->work;
  return branches.emplace_back(stream, std::vector<Operation>()).work;
}

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
  if (!event->recorded) return cudaSuccess;
  if (const auto recording = event->recording.lock()) recording->spoiled = true;
  return refuse(cudaErrorCapturedEvent,
                fmt::format("{} of an event that was recorded into a graph", call));
}

// A stream that waits for recorded work is part of the recording from then on.
cudaError_t record_wait(cudaStream_t stream, cudaEvent_t event) {
  const std::shared_ptr<Recording> recording = event->recording.lock();
  if (event->recorded && recording == nullptr)
    return refuse_recorded_event("cudaStreamWaitEvent", event);
  if (recording == nullptr || (stream->recording != nullptr && stream->recording != recording)) {
    stream->recording->spoiled = true;
    return refuse(cudaErrorStreamCaptureIsolation,
                  "a wait between work that is recorded and other work");
  }
  stream->recording = recording;
  recording->work_of(stream).push_back(of_marks(event->marker, nullptr));
  return cudaSuccess;
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
  stream->recording = std::make_shared<Recording>();
  stream->recording->mode = mode;
  stream->recording->thread = std::this_thread::get_id();
  stream->recording->work_of(stream);
  return m.sticky;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  Machine& m = machine();
  const Lock lock(m.mutex);
  *graph = nullptr;
  if (std::ranges::count(m.streams, stream) == 0 || stream->recording == nullptr ||
      stream->recording->branches[0].stream != stream)
    return refuse(cudaErrorStreamCaptureUnmatched, "cudaStreamEndCapture without a begin");
  if (stream->recording->thread != std::this_thread::get_id() &&
      stream->recording->mode != cudaStreamCaptureModeRelaxed)
    return refuse(cudaErrorStreamCaptureWrongThread,
                  "cudaStreamEndCapture by another thread than the one that began");
  const std::shared_ptr<Recording> recording = stream->recording;
  for (const cudaStream_t other : m.streams)
    if (other->recording == recording) other->recording = nullptr;
  if (recording->spoiled) return cudaErrorStreamCaptureInvalidated;
  if (!is_joined(recording->branches))
    return refuse(cudaErrorStreamCaptureUnjoined,
                  "the work of a stream is recorded, and the stream that began does not wait for "
                  "the last of it");
  *graph = new CUgraph_st{.device = stream->device, .branches = std::move(recording->branches)};
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
  if (!has_some_left()) return cudaErrorMemoryAllocation;
  *executable = new CUgraphExec_st{.device = graph->device, .branches = graph->branches};
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
  const cudaError_t error = GraphLaunch(executable->branches, own).queue();
  return error != cudaSuccess ? error : m.sticky;
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
