// Hidden states on their way from a pipeline stage to the next one.
#pragma once

#include "autograd/tape.h"
#include "comm/group.h"
#include "models/stage.h"

namespace megatron::inference {

// What enters the layers of a stage for so many tokens: nothing where it has the embedding, else what the stage before
// has sent. stages: null: one.
Bundle receive_hidden(const models::Stage& stage, Runtime& runtime, int64_t tokens,
                      comm::Group* stages);
// To the stage behind, where there is one.
void send_hidden(const models::Stage& stage, Tape& tape, const Bundle& out, comm::Group* stages);

}  // namespace megatron::inference
