// Sends hidden states from a pipeline stage to the next.
#pragma once

#include "autograd/tape.h"
#include "comm/group.h"
#include "models/stage.h"

namespace megatron::inference {

// Returns the input of a stage's layers for the given number of tokens: empty if the stage has the
// embedding, otherwise what the previous stage has sent. stages: null means a single stage.
Bundle receive_hidden(const models::Stage& stage, Runtime& runtime, int64_t tokens,
                      comm::Group* stages);
// Sends to the next stage, if there is one.
void send_hidden(const models::Stage& stage, Tape& tape, const Bundle& out, comm::Group* stages);

}  // namespace megatron::inference
