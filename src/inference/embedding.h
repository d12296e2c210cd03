// Embedding of a text as a unit vector: the mean over all tokens of the final norm's result, which
// enters the output layer, divided by its Euclidean norm.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/group.h"
#include "inference/adapter.h"
#include "models/stage.h"

namespace megatron::inference {

// Returns the sum over all tokens [hidden_size]. tokens: at least one, at most the model's number
// of positions. adapter: null: none. Collective over the pipeline `stages`; the last stage gets the
// result, the others an empty vector.
std::vector<double> sum_of_hidden(const models::Stage& stage, Runtime& runtime,
                                  std::span<const int32_t> tokens, comm::Group* stages,
                                  const Adapter* adapter = nullptr);

// Scales a vector to length 1. Throws Error if a value is not finite or all are 0.
std::vector<float> unit_vector(std::span<const double> values);

}  // namespace megatron::inference
