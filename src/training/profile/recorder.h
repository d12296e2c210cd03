// Records the events of a step with their times: kernels, spans of the model, collectives, and
// parts of the step.
#pragma once

#include <string>
#include <vector>

#include "autograd/tape.h"
#include "comm/traffic.h"
#include "kernels/observer.h"
#include "training/profile/trace_file.h"
#include "training/step.h"

namespace megatron::training {

// Rows of the trace, from top to bottom.
enum class Track { step, data, span, kernel, communication };
inline constexpr int kTracks = 5;
std::string_view name(Track track);

// Listens while it is `on`; all calls come from one thread. Times are those of the steady clock
// (base/clock.h). Kernel times are host times, which are only correct if the stream is the host's.
class Recorder final : public kernels::Observer, public StepListener, public comm::TrafficListener {
 public:
  // base: time 0 of the trace; events that begin earlier are moved to it.
  void start(double base, const TrainStep& step);
  void stop() { on_ = false; }
  bool on() const { return on_; }

  // Adds an event of the run from `begin` to now. arguments: a JSON object.
  void add(Track track, std::string name, double begin, std::string arguments = "{}");

  void before(const kernels::Call& call) override;
  void after(const kernels::Call& call) override;
  void enter(const Span& span, Pass pass) override;
  void leave(const Span& span, Pass pass) override;
  void began(StepPart part) override;
  void ended(StepPart part) override;
  void communicated(const comm::Traffic& traffic) override;

  // Moves the recorded events to the file, each track in chronological order.
  void write(TraceFile& file, int rank);

 private:
  struct Seen {
    std::string_view name;
    kernels::Access access;
    DType type;
    Shape shape;
  };
  struct Event {
    Track track = Track::step;
    std::string name;
    double begin = 0, end = 0;
    kernels::Cost cost;          // of a kernel
    std::vector<Seen> operands;  // of a kernel
    int micro_batch = -1;
    std::string inside;     // the span of the model that contains a kernel
    std::string arguments;  // of other events: a JSON object
  };
  struct Open {
    std::string name;
    double begin;
  };
  static std::string arguments_of(const Event& event);

  bool on_ = false;
  double base_ = 0, kernel_begin_ = 0, part_begin_ = 0;
  const TrainStep* step_ = nullptr;
  std::vector<Open> spans_;
  std::vector<Event> events_;
};

}  // namespace megatron::training
