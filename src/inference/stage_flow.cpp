#include "inference/stage_flow.h"

namespace megatron::inference {
namespace {

constexpr const char* kCallName = "activation";
constexpr const char* kChoices = "expert choices of stages";

}  // namespace

Bundle receive_hidden(const models::Stage& stage, Runtime& runtime,
                      const models::BoundaryRows& rows, comm::Group* stages) {
  if (stage.part().embedding) return {};
  const DType type = stage.parameters()[0]->parameter.value.dtype();
  const models::BoundaryRows without_depths = {
      .tokens = rows.tokens, .of_encoder = rows.of_encoder, .predicts = false};
  const parallel::Payload payload =
      models::make_payload(models::boundary_forms(stage, models::Edge::entry, without_depths, type),
                           runtime, "pass.received");
  for (const Tensor& tensor : payload)
    stages->recv(tensor, stages->rank() - 1, runtime.stream(), kCallName).wait(runtime.stream());
  return models::entering(stage, payload);
}

void send_hidden(const models::Stage& stage, Tape& tape, const Bundle& out, comm::Group* stages) {
  if (stage.part().head) return;
  for (const Tensor& tensor : models::leaving_values(stage, tape, out))
    stages->send(tensor, stages->rank() + 1, tape.stream(), kCallName).wait(tape.stream());
}

Tensor receive_expert_choices(const models::Stage& stage, Runtime& runtime, const Shape& shape,
                              comm::Group* stages) {
  Stream& stream = runtime.stream();
  Tensor choices =
      Tensor::empty(runtime.arena(MemoryClass::activations), shape, DType::i32, kChoices);
  if (!stage.part().embedding) {
    stages->recv(choices, stages->rank() - 1, stream, kChoices).wait(stream);
  } else if (runtime.device().has_data()) {
    const std::vector<int32_t> none(static_cast<size_t>(choices.elements()), -1);
    copy_from(choices, std::span<const int32_t>(none), stream);
  }
  return choices;
}

void send_expert_choices(const models::Stage& stage, Tape& tape, const Tensor& choices,
                         comm::Group* stages) {
  if (stage.part().head) return;
  stages->send(choices, stages->rank() + 1, tape.stream(), kChoices).wait(tape.stream());
}

}  // namespace megatron::inference
