#include "parallel/pipeline.h"

#include <array>
#include <string>
#include <utility>

#include "base/error.h"
#include "parallel/simulate.h"

namespace megatron::parallel {
namespace {

// Maximum number of messages in flight from a stage.
constexpr size_t kSendsUnderWay = 4;

bool is_send(Transfer::Kind kind) {
  return kind == Transfer::Kind::send_activation || kind == Transfer::Kind::send_gradient;
}

bool is_gradient(Transfer::Kind kind) {
  return kind == Transfer::Kind::send_gradient || kind == Transfer::Kind::receive_gradient;
}

// Both ends identify a message by the chunk that made it.
std::string message_name(const PipelineShape& shape, int stage, const Transfer& transfer) {
  int made_by = shape.virtual_stage(stage, transfer.chunk);
  if (transfer.kind == Transfer::Kind::receive_activation) --made_by;
  if (transfer.kind == Transfer::Kind::receive_gradient) ++made_by;
  return fmt::format("{}, micro-batch {}, chunk {}",
                     is_gradient(transfer.kind) ? "gradient" : "activation", transfer.micro_batch,
                     shape.chunk_of(made_by));
}

// The name of a call for one tensor of a message.
std::string part_name(const std::string& message, size_t index) {
  return index == 0 ? message : fmt::format("{}, tensor {}", message, index + 1);
}

}  // namespace

// The steps for one number of micro-batches, and the storage for tensors between them.
struct Pipeline::Prepared {
  struct Named {
    Step step;
    std::string name;      // name of a transfer
    bool weights = false;  // a backward that includes weight gradients
  };
  // Input of a chunk's action for a micro-batch: in flight, or received.
  struct Place {
    Payload tensors;
    std::vector<comm::Work> works;
  };

  int micro_batches = 0;
  std::vector<Named> steps;
  std::vector<Place> inputs, gradients;  // by chunk and micro-batch

  Place& place(bool gradient, int chunk, int micro_batch) {
    return (gradient ? gradients
                     : inputs)[static_cast<size_t>(chunk * micro_batches + micro_batch)];
  }
};

// One execution of a prepared list.
class Pipeline::Execution {
 public:
  Execution(Pipeline& pipeline, Prepared& prepared, StageWork& work)
      : shape_(pipeline.shape_),
        runtime_(pipeline.runtime_),
        overlap_(pipeline.overlaps()),
        first_trained_(pipeline.options_.first_trained),
        group_(overlap_ ? pipeline.async_ : pipeline.stages_),
        stage_(pipeline.stage()),
        prepared_(prepared),
        work_(work) {
    // Releases what a failed run has left.
    for (auto& place : prepared_.inputs) place = {};
    for (auto& place : prepared_.gradients) place = {};
  }

  void run(const std::function<void(const Action&)>& executed) {
    for (const Prepared::Named& named : prepared_.steps) {
      if (!named.step.is_transfer) {
        act(named.step.action, named.weights);
        if (executed) executed(named.step.action);
      } else if (is_send(named.step.transfer.kind)) {
        send(named.step.transfer, named.name);
      } else {
        receive(named.step.transfer, named.name);
      }
    }
    // Waits in the order of sending, so that the sequence of memory operations is the same however
    // many are in flight.
    for (size_t i = 0; i < kSendsUnderWay; ++i) wait(sent_[(sends_ + i) % kSendsUnderWay]);
  }

 private:
  void act(const Action& action, bool weights) {
    const int virtual_stage = shape_.virtual_stage(stage_, action.chunk);
    switch (action.kind) {
      case Action::Kind::forward: {
        const Payload input = take(false, virtual_stage == 0, action);
        put(false, work_.forward(action, input), virtual_stage, virtual_stage + 1, action);
        return;
      }
      case Action::Kind::backward: {
        const bool has_none =
            virtual_stage + 1 == shape_.virtual_stages() || virtual_stage < first_trained_;
        const Payload gradient = take(true, has_none, action);
        put(true, work_.backward(action, gradient, weights), virtual_stage, virtual_stage - 1,
            action);
        return;
      }
      case Action::Kind::weight: return work_.weight(action.chunk, action.micro_batch);
    }
  }

  // Returns an action's input once it has arrived; empty at the model's ends.
  Payload take(bool gradient, bool at_end, const Action& action) {
    if (at_end || !action.begins()) return {};
    Prepared::Place place =
        std::exchange(prepared_.place(gradient, action.chunk, action.micro_batch), {});
    for (comm::Work& work : place.works) work.wait(runtime_.stream());
    MG_ASSERT(!place.tensors.empty());
    return std::move(place.tensors);
  }

  // Stores an action's result for the next virtual stage: kept if that one is on this stage;
  // otherwise until it is sent, which is the next thing this stage does with it.
  void put(bool gradient, Payload made, int virtual_stage, int next, const Action& action) {
    const bool at_end = next == shape_.virtual_stages() || next < (gradient ? first_trained_ : 0);
    MG_ASSERT(made.empty() != (action.ends() && !at_end));
    if (made.empty()) return;
    if (shape_.stage_of(next) == stage_)
      prepared_.place(gradient, shape_.chunk_of(next), action.micro_batch).tensors =
          std::move(made);
    else made_ = {std::move(made), gradient, shape_.chunk_of(virtual_stage), action.micro_batch};
  }

  void send(const Transfer& transfer, const std::string& name) {
    const bool gradient = is_gradient(transfer.kind);
    MG_ASSERT(!made_.tensors.empty() && made_.gradient == gradient &&
              made_.chunk == transfer.chunk && made_.micro_batch == transfer.micro_batch);
    std::vector<comm::Work>& sent = sent_[sends_++ % kSendsUnderWay];
    wait(sent);
    for (size_t i = 0; i < made_.tensors.size(); ++i)
      sent.push_back(group_->send(std::move(made_.tensors[i]), transfer.peer, runtime_.stream(),
                                  part_name(name, i)));
    made_.tensors.clear();
    if (!overlap_) wait(sent);
  }

  void wait(std::vector<comm::Work>& sent) {
    for (comm::Work& work : sent) work.wait(runtime_.stream());
    sent.clear();
  }

  void receive(const Transfer& transfer, const std::string& name) {
    const bool gradient = is_gradient(transfer.kind);
    auto& place = prepared_.place(gradient, transfer.chunk, transfer.micro_batch);
    place.tensors = work_.receive_into(transfer.chunk, transfer.micro_batch, gradient);
    for (size_t i = 0; i < place.tensors.size(); ++i)
      place.works.push_back(
          group_->recv(place.tensors[i], transfer.peer, runtime_.stream(), part_name(name, i)));
  }

  // Result of the last action, not sent yet.
  struct Made {
    Payload tensors;
    bool gradient = false;
    int chunk = 0, micro_batch = 0;
  };

  const PipelineShape& shape_;
  Runtime& runtime_;
  const bool overlap_;
  const int first_trained_;
  comm::Group* group_;
  const int stage_;
  Prepared& prepared_;
  StageWork& work_;
  Made made_;
  std::array<std::vector<comm::Work>, kSendsUnderWay> sent_;
  size_t sends_ = 0;
};

Pipeline::Pipeline(const PipelineShape& shape, comm::Group* stages, comm::Group* async,
                   Runtime& runtime, const PipelineOptions& options)
    : shape_(shape), stages_(stages), async_(async), runtime_(runtime), options_(options) {
  MG_ASSERT(shape.stages == (stages == nullptr ? 1 : stages->size()));
  MG_ASSERT(async == nullptr || (stages != nullptr && async->size() == stages->size() &&
                                 async->rank() == stages->rank()));
}

Pipeline::~Pipeline() = default;

int Pipeline::stage() const { return stages_ == nullptr ? 0 : stages_->rank(); }

Pipeline::Prepared& Pipeline::prepare(int micro_batches, bool forward_only) {
  auto& prepared = prepared_[{micro_batches, forward_only}];
  if (prepared != nullptr) return *prepared;

  std::vector<Schedule> stages;
  for (int s = 0; s < shape_.stages; ++s) {
    stages.push_back(forward_only ? shape_.forward_only(s, micro_batches)
                                  : shape_.schedule(s, micro_batches));
  }
  auto made = std::make_unique<Prepared>();
  made->micro_batches = micro_batches;
  const std::vector<bool> deferred =
      deferred_weights(shape_, stages[static_cast<size_t>(stage())], micro_batches);
  const Receives receives = overlaps() ? Receives::begun_ahead : Receives::waited_for;
  for (const Step& step :
       with_transfers(shape_, stages, stage(), receives, options_.first_trained)) {
    Prepared::Named named{step, {}, false};
    if (step.is_transfer) {
      named.name = message_name(shape_, stage(), step.transfer);
    } else {
      named.weights = !deferred[static_cast<size_t>(step.action.chunk * micro_batches +
                                                    step.action.micro_batch)];
    }
    made->steps.push_back(std::move(named));
  }
  made->inputs.resize(deferred.size());
  made->gradients.resize(deferred.size());
  prepared = std::move(made);
  return *prepared;
}

void Pipeline::run(int micro_batches, StageWork& work,
                   const std::function<void(const Action&)>& executed) {
  Execution(*this, prepare(micro_batches, false), work).run(executed);
}

void Pipeline::run_forward(int micro_batches, StageWork& work) {
  Execution(*this, prepare(micro_batches, true), work).run({});
}

}  // namespace megatron::parallel
