#include "device/cuda/waited.h"

#include <algorithm>
#include <mutex>
#include <vector>

namespace megatron::cuda {

namespace {

constexpr char kKey = 0;  // its address is the key of the streams' slots

}  // namespace

struct WaitedStreams::State {
  std::mutex mutex;
  std::vector<std::vector<CudaStream*>> streams;  // by device
};

WaitedStreams::WaitedStreams(int devices) : state_(std::make_shared<State>()) {
  state_->streams.resize(static_cast<size_t>(devices));
}
WaitedStreams::~WaitedStreams() = default;

void WaitedStreams::add(CudaStream& stream) {
  const auto device = static_cast<size_t>(stream.device().index);
  {
    const std::lock_guard lock(state_->mutex);
    state_->streams[device].push_back(&stream);
  }
  stream.state(&kKey) = std::shared_ptr<void>(&stream, [state = state_, device](void* gone) {
    const std::lock_guard lock(state->mutex);
    std::erase(state->streams[device], gone);
  });
}

void WaitedStreams::wait(int device) {
  std::vector<Event> events;
  {
    const std::lock_guard lock(state_->mutex);
    for (CudaStream* stream : state_->streams[static_cast<size_t>(device)])
      events.push_back(stream->record());
  }
  for (const Event& event : events) event.wait_on_host();
}

void set_aside(CudaStream& stream) { stream.state(&kKey).reset(); }

}  // namespace megatron::cuda
