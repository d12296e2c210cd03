// A text as a vector: the mean over all tokens of what enters the output layer (the final norm's result), divided by
// its length.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/group.h"
#include "models/stage.h"

namespace megatron::inference {

// The sum over all tokens [hidden_size]. tokens: at least one, and no more than the model has positions. stages: of the
// pipeline, collective over them; the last one has the result, and the others nothing.
std::vector<double> sum_of_hidden(const models::Stage& stage, Runtime& runtime,
                                  std::span<const int32_t> tokens, comm::Group* stages);

// Of length 1. Throws Error where a value is no number, or all are 0.
std::vector<float> unit_vector(std::span<const double> values);

}  // namespace megatron::inference
