// Streams with deferred work, and events.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>

#include "machine.h"
#include "memory.h"

namespace cuda_shim {
namespace {

// After this many repeated queries the work runs, so that a host that polls makes progress.
constexpr int kMaxQueries = 8;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

cudaError_t no_stream() {
  return refuse(cudaErrorInvalidResourceHandle, "a call with a stream that does not exist");
}
cudaError_t no_event(const char* call) {
  return refuse(cudaErrorInvalidResourceHandle,
                fmt::format("{} with an event that does not exist", call));
}

// Returns false if the operation waits for something.
bool run_one(Operation& operation, int device) {
  Machine& m = machine();
  if (operation.wait != nullptr && !operation.wait->done &&
      !advance(operation.wait->stream, operation.wait.get()))
    return false;
  if (operation.work && m.sticky == cudaSuccess) {
    const cudaError_t error = operation.work();
    if (error == cudaErrorNotReady) return false;
    if (error != cudaSuccess) m.sticky = error;
  }
  if (operation.mark != nullptr) {
    operation.mark->done = true;
    operation.mark->seconds = now() + m.pretended[static_cast<size_t>(device)];
  }
  ++m.operations;
  return true;
}

bool is_alive(cudaStream_t stream) {
  const Machine& m = machine();
  return std::ranges::count(m.streams, stream) + std::ranges::count(m.branches, stream) +
             std::ranges::count(m.default_streams, stream) >
         0;
}

// Blocks work of the given name for as long as a test asks.
void may_hang(Operation& operation) {
  const auto hangs = [](const std::string& name) {
    const std::string& text = machine().settings.hang;
    return !text.empty() && name.find(text) != std::string::npos;
  };
  if (!hangs(operation.name)) return;
  operation.work = [hangs, name = operation.name, work = std::move(operation.work)] {
    if (hangs(name)) return cudaErrorNotReady;
    return work ? work() : cudaSuccess;
  };
}

// Newest first, so that work that should have waited for an older stream does not succeed by
// chance.
std::vector<cudaStream_t> all_streams() {
  const Machine& m = machine();
  std::vector<cudaStream_t> streams(m.branches.rbegin(), m.branches.rend());
  streams.insert(streams.end(), m.streams.rbegin(), m.streams.rend());
  for (const cudaStream_t stream : m.default_streams)
    if (stream != nullptr) streams.push_back(stream);
  return streams;
}

cudaError_t make_stream(cudaStream_t* stream, bool non_blocking) {
  if (!has_devices()) return cudaErrorNoDevice;
  *stream = new CUstream_st{.device = current_device(), .non_blocking = non_blocking, .work = {}};
  machine().streams.push_back(*stream);
  return cudaSuccess;
}

// Work queued on `stream` from now on runs after the work already queued on `other`.
void follow(cudaStream_t stream, cudaStream_t other) {
  if (other == nullptr || other == stream || other->work.empty()) return;
  auto mark = std::make_shared<Marker>();
  mark->stream = other;
  other->work.push_back({.name = "order", .work = {}, .wait = nullptr, .mark = mark});
  stream->work.push_back({.name = "order", .work = {}, .wait = mark, .mark = nullptr});
}

// The default stream and the blocking streams of its device run in call order.
void follow_order_of_calls(cudaStream_t stream) {
  Machine& m = machine();
  const cudaStream_t legacy = m.default_streams[stream->device];
  if (stream->non_blocking) return;
  if (stream != legacy) return follow(stream, legacy);
  for (const cudaStream_t other : m.streams) {
    if (!other->non_blocking && other->device == stream->device) follow(stream, other);
  }
}

}  // namespace

cudaError_t queue(cudaStream_t stream, Operation operation) {
  const Lock lock(machine().mutex);
  if (machine().sticky != cudaSuccess) return machine().sticky;
  stream = stream_of(stream);
  if (stream == nullptr) return no_stream();
  may_hang(operation);
  if (stream->recording != nullptr) {
    stream->recording->work_of(stream).push_back(std::move(operation));
    return cudaSuccess;
  }
  if (operation.queued) operation.queued();
  follow_order_of_calls(stream);
  stream->work.push_back(std::move(operation));
  machine().mutex.changed();
  return cudaSuccess;
}

cudaStream_t stream_of(cudaStream_t stream) {
  Machine& m = machine();
  if (stream != nullptr && stream != cudaStreamLegacy) return is_alive(stream) ? stream : nullptr;
  if (!has_devices()) return nullptr;
  cudaStream_t& own = m.default_streams[current_device()];
  if (own == nullptr) own = new CUstream_st{.device = current_device(), .work = {}};
  return own;
}

// A queued wait refers to an event recorded earlier, so this terminates.
bool advance(cudaStream_t stream, const Marker* until) {
  while (!stream->work.empty() && (until == nullptr || !until->done)) {
    Operation operation = std::move(stream->work.front());
    stream->work.pop_front();
    if (run_one(operation, stream->device)) continue;
    stream->work.push_front(std::move(operation));
    return false;
  }
  return true;
}

void advance_all() {
  for (const cudaStream_t stream : all_streams())
    if (is_alive(stream)) advance(stream);
}

void run(cudaStream_t stream, const Marker* until) {
  Machine& m = machine();
  while (is_alive(stream) && !advance(stream, until)) {
    const uint64_t before = m.operations;
    advance_all();
    if (m.operations == before) m.mutex.pause();
  }
}

void run_all(int device) {
  for (const cudaStream_t stream : all_streams())
    if (is_alive(stream) && stream->device == device) run(stream);
}

cudaError_t enqueue(cudaStream_t stream, std::string name, std::function<void()> work) {
  return queue(stream, {.name = std::move(name),
                        .work =
                            [work = std::move(work)] {
                              work();
                              return machine().sticky;
                            },
                        .wait = nullptr,
                        .mark = nullptr});
}

cudaError_t queue_copy(cudaStream_t stream, const char* name, std::function<cudaError_t()> work) {
  return queue(stream, {.name = name, .work = std::move(work), .wait = nullptr, .mark = nullptr});
}

}  // namespace cuda_shim

using namespace cuda_shim;

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithFlags(stream, 0); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  const Lock lock(machine().mutex);
  return make_stream(stream, (flags & cudaStreamNonBlocking) != 0);
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return cudaStreamCreateWithFlags(stream, flags);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  Machine& m = machine();
  const Lock lock(m.mutex);
  if (std::ranges::count(m.streams, stream) == 0) return no_stream();
  if (stream->recording != nullptr) problem("a stream was destroyed while its work is recorded");
  if (!stream->work.empty()) {
    problem(fmt::format("a stream was destroyed with work queued: {}, the first of them '{}'",
                        stream->work.size(), stream->work.front().name));
    run(stream);
  }
  std::erase(m.streams, stream);
  delete stream;
  return m.sticky;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  Machine& m = machine();
  const Lock lock(m.mutex);
  stream = stream_of(stream);
  if (stream == nullptr) return no_stream();
  if (const cudaError_t error = refuse_recording_stream("cudaStreamSynchronize", stream);
      error != cudaSuccess)
    return error;
  run(stream);
  return m.sticky;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  Machine& m = machine();
  const Lock lock(m.mutex);
  stream = stream_of(stream);
  if (stream == nullptr) return no_stream();
  if (const cudaError_t error = refuse_recording_stream("cudaStreamQuery", stream);
      error != cudaSuccess)
    return error;
  if (m.sticky != cudaSuccess) return m.sticky;
  return stream->work.empty() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaDeviceSynchronize() {
  Machine& m = machine();
  const Lock lock(m.mutex);
  if (!has_devices()) return cudaErrorNoDevice;
  if (const cudaError_t error = refuse_while_recording("cudaDeviceSynchronize", true);
      error != cudaSuccess)
    return error;
  run_all(current_device());
  return m.sticky;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const Lock lock(machine().mutex);
  if (!machine().events.contains(event)) return no_event("cudaStreamWaitEvent");
  stream = stream_of(stream);
  if (stream == nullptr) return no_stream();
  if (event->recorded || stream->recording != nullptr) return record_wait(stream, event);
  if (event->marker == nullptr) {
    problem("a stream waits for an event that was never recorded, which is no wait");
    return cudaSuccess;
  }
  return queue(stream,
               {.name = "wait for an event", .work = {}, .wait = event->marker, .mark = nullptr});
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return enqueue(stream, "function of the host", [function, data] { function(data); });
}

cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  const Lock lock(machine().mutex);
  if (!has_devices()) return cudaErrorNoDevice;
  *event = new CUevent_st{.device = current_device(),
                          .timing = (flags & cudaEventDisableTiming) == 0,
                          .marker = nullptr};
  machine().events.insert(*event);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const Lock lock(machine().mutex);
  if (machine().events.erase(event) == 0) return no_event("cudaEventDestroy");
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const Lock lock(machine().mutex);
  if (!machine().events.contains(event)) return no_event("cudaEventRecord");
  stream = stream_of(stream);
  if (stream == nullptr) return no_stream();
  if (stream->device != event->device)
    return refuse(cudaErrorInvalidResourceHandle,
                  fmt::format("an event of device {} is recorded in a stream of device {}",
                              event->device, stream->device));
  event->recorded = stream->recording != nullptr;
  event->recording = stream->recording;
  event->marker = std::make_shared<Marker>();
  event->marker->stream = stream;
  return queue(stream, {.name = "event", .work = {}, .wait = nullptr, .mark = event->marker});
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  Machine& m = machine();
  const Lock lock(m.mutex);
  if (!m.events.contains(event)) return no_event("cudaEventQuery");
  if (const cudaError_t error = refuse_recorded_event("cudaEventQuery", event);
      error != cudaSuccess)
    return error;
  if (const cudaError_t error = refuse_while_recording("cudaEventQuery"); error != cudaSuccess)
    return error;
  if (m.sticky != cudaSuccess) return m.sticky;
  Marker* const marker = event->marker.get();
  if (marker != nullptr && !marker->done && ++marker->queries >= kMaxQueries &&
      !advance(marker->stream, marker))
    advance_all();
  return marker == nullptr || marker->done ? m.sticky : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  Machine& m = machine();
  const Lock lock(m.mutex);
  if (!m.events.contains(event)) return no_event("cudaEventSynchronize");
  if (const cudaError_t error = refuse_recorded_event("cudaEventSynchronize", event);
      error != cudaSuccess)
    return error;
  if (const cudaError_t error = refuse_while_recording("cudaEventSynchronize");
      error != cudaSuccess)
    return error;
  if (event->marker == nullptr)
    problem("the host waits for an event that was never recorded, which is no wait");
  else if (!event->marker->done) run(event->marker->stream, event->marker.get());
  return m.sticky;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  Machine& m = machine();
  const Lock lock(m.mutex);
  if (!m.events.contains(begin) || !m.events.contains(end)) return no_event("cudaEventElapsedTime");
  if (!begin->timing || !end->timing || begin->marker == nullptr || end->marker == nullptr)
    return refuse(cudaErrorInvalidResourceHandle, "time between events that have none");
  if (!begin->marker->done || !end->marker->done) return cudaErrorNotReady;
  *milliseconds = static_cast<float>((end->marker->seconds - begin->marker->seconds) * 1e3);
  return cudaSuccess;
}
