#include "inference/stage_flow.h"

namespace megatron::inference {
namespace {

constexpr const char* kCallName = "activation";

}  // namespace

Bundle receive_hidden(const models::Stage& stage, Runtime& runtime, int64_t tokens,
                      comm::Group* stages) {
  if (stage.part().embedding) return {};
  const DType type = stage.parameters()[0]->parameter.value.dtype();
  const Tensor hidden =
      Tensor::empty(runtime.arena(MemoryClass::activations), {tokens, stage.model()->hidden_size()},
                    type, "pass.received");
  stages->recv(hidden, stages->rank() - 1, runtime.stream(), kCallName).wait(runtime.stream());
  return {{"hidden", Var(hidden)}};
}

void send_hidden(const models::Stage& stage, Tape& tape, const Bundle& out, comm::Group* stages) {
  if (stage.part().head) return;
  const Tensor hidden = models::flowing(tape, out).value;
  stages->send(hidden, stages->rank() + 1, tape.stream(), kCallName).wait(tape.stream());
}

}  // namespace megatron::inference
