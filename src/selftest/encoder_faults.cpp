#include "selftest/encoder_faults.h"

#include <algorithm>

#include "selftest/changed_kernel.h"

namespace megatron::selftest {
namespace {

// Changes the texts of a check of a model.
template <void (*change)(corpus::HostBatch&)>
Environment with_texts() {
  Environment environment;
  environment.pairs = [](int, corpus::HostBatch& batch) { change(batch); };
  return environment;
}

// The tokens of a row's last text also see the padding after it.
void show_padding(corpus::HostBatch& batch) {
  const auto length = static_cast<size_t>(batch.layout.length);
  for (size_t row = 0; row < batch.segment_ends.size(); row += length) {
    size_t shown = length;
    while (shown > 0 && batch.sources[row + shown - 1] < 0) --shown;
    for (size_t t = row; t < row + shown; ++t)
      if (batch.segment_ends[t] + 1 == static_cast<int32_t>(shown))
        batch.segment_ends[t] = static_cast<int32_t>(length) - 1;
  }
}

// Each token of the decoder also sees all that stands after its text in the encoder's row.
void show_padding_of_encoder(corpus::HostBatch& batch) {
  if (batch.encoder != nullptr)
    std::ranges::fill(batch.encoder_ends, static_cast<int32_t>(batch.encoder->layout.length) - 1);
}

// The label of a pair is at the second token of its text, if that has several.
void move_pairs(corpus::HostBatch& batch) {
  std::vector<int32_t> moved(batch.pair_labels.size(), -1);
  for (size_t t = 0; t < moved.size(); ++t)
    if (batch.pair_labels[t] >= 0)
      moved[batch.segment_ends[t] > batch.segment_starts[t] ? t + 1 : t] = batch.pair_labels[t];
  batch.pair_labels = std::move(moved);
}

// The same model with one rotary table for all of its layers.
Environment with_one_rotary_table() {
  Environment environment;
  environment.model = [](const models::Model& model) {
    Json config = model->config_json(DType::f32);
    const Json* tables = config.find("rope_parameters");
    if (tables == nullptr || !tables->contains("sliding_attention")) return model;
    const Json all = (*tables)["full_attention"];
    config.set("rope_parameters",
               Json::Object{{"full_attention", all}, {"sliding_attention", all}});
    return models::model_from_config_json(config);
  };
  return environment;
}

// Each distance has the bias of the distance before it.
void shifted_bias(const kernels::AttentionArgs& args, Stream& stream) {
  kernels::AttentionArgs shifted = args;
  if (const Tensor& bias = args.bias; bias.defined()) {
    const int64_t rows = bias.size(0);
    shifted.bias = Tensor::empty(stream.scratch(), bias.shape(), bias.dtype(), "bias");
    kernels::table(stream).copy({.x = bias, .out = shifted.bias}, stream);
    kernels::table(stream).copy(
        {.x = bias.slice(0, 0, rows - 1), .out = shifted.bias.slice(0, 1, rows - 1)}, stream);
  }
  kernels::table(stream).attention(shifted, stream);
}

}  // namespace

std::vector<Fault> faults_of_encoders() {
  return {{"visible-padding",
           "the tokens of an encoder's text attend to the padding after it",
           true,
           {},
           with_texts<show_padding>},
          {"pooler-of-second-token",
           "the head for pairs of texts reads the second token in place of the first",
           true,
           {},
           with_texts<move_pairs>},
          {"global-rotary-base",
           "an encoder's layers with a window rotate by the angles of those that see all",
           true,
           {},
           with_one_rotary_table},
          {"visible-encoder-padding",
           "cross attention reads what follows a token's own text in the encoder's row",
           true,
           {},
           with_texts<show_padding_of_encoder>},
          {"relative-bucket-off-by-one",
           "the relative position of each distance is that of the distance before it",
           true,
           {},
           with_kernel<&kernels::Table::attention, shifted_bias>}};
}

}  // namespace megatron::selftest
