// Sends hidden states from a pipeline stage to the next.
#pragma once

#include "autograd/tape.h"
#include "comm/group.h"
#include "models/stage.h"

namespace megatron::inference {

// Returns the input of a stage's layers for the given numbers of tokens: empty if the stage has the
// embedding, otherwise what the previous stage has sent. stages: null means a single stage.
Bundle receive_hidden(const models::Stage& stage, Runtime& runtime,
                      const models::BoundaryRows& rows, comm::Group* stages);
// Sends to the next stage, if there is one.
void send_hidden(const models::Stage& stage, Tape& tape, const Bundle& out, comm::Group* stages);

// The experts of a pass's tokens in all layers, i32 [T,n], flow the same way: each stage writes the
// columns of its own layers. The first stage fills them with -1.
Tensor receive_expert_choices(const models::Stage& stage, Runtime& runtime, const Shape& shape,
                              comm::Group* stages);
void send_expert_choices(const models::Stage& stage, Tape& tape, const Tensor& choices,
                         comm::Group* stages);

}  // namespace megatron::inference
