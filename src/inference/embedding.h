// Embedding of a text: the mean over all tokens of the final norm's result, which enters the output
// layer, or that of the first or the last token; as it is or divided by its Euclidean norm.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/group.h"
#include "inference/adapter.h"
#include "inference/request.h"
#include "models/stage.h"

namespace megatron::inference {

// Returns the sum over all tokens [hidden_size], or the values of one. tokens: at least one, at
// most the model's number of positions. adapter: null: none. Collective over the pipeline `stages`;
// the last stage gets the result, the others an empty vector.
std::vector<double> sum_of_hidden(const models::Stage& stage, Runtime& runtime,
                                  std::span<const int32_t> tokens, comm::Group* stages,
                                  const Adapter* adapter = nullptr,
                                  Pooling pooling = Pooling::mean);

// The same of a text with these hidden states [T,width].
std::vector<double> pooled(std::span<const float> hidden, size_t width, Pooling pooling);

// The embedding of a text of so many tokens, made from a result of pooled(). Throws Error if a
// value is not finite, or if a unit vector is wanted and all are 0.
std::vector<float> embedding_of(std::span<const double> values, size_t tokens, EmbeddingForm form);

// Scales a vector to length 1. Throws Error if a value is not finite or all are 0.
std::vector<float> unit_vector(std::span<const double> values);

}  // namespace megatron::inference
