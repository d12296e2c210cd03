// The encoder-decoder that Megatron-LM's flags describe.
#include <gtest/gtest.h>

#include "base/error.h"
#include "models/model.h"
#include "models/model_flags.h"

namespace megatron::models {
namespace {

ModelFlags own_t5() {
  ModelFlags f{.num_layers = 3,
               .decoder_num_layers = 2,
               .hidden_size = 16,
               .num_attention_heads = 2,
               .ffn_hidden_size = 40};
  f.vocab_size = 50;
  f.max_position_embeddings = 12;
  f.encoder_decoder = true;
  return f;
}

// Matrices of h x h with their biases; a norm has two vectors.
TEST(EncoderDecoderFlags, GiveMegatronLMsT5) {
  const Model model = model_from_flags(own_t5(), 12);
  constexpr int64_t h = 16, square = h * h + h, norm = 2 * h, mlp = 2 * h * 40 + 40 + h,
                    attention = 4 * square, encoder = attention + mlp + 2 * norm,
                    decoder = 2 * attention + mlp + 3 * norm, tables = (50 + 12) * h;
  EXPECT_EQ(model->parameter_count(), tables + 3 * encoder + 2 * decoder + 2 * norm + 50);
  EXPECT_EQ(model->family(), "megatron");
  EXPECT_EQ(model->facts().encoder_layers, 3);
  EXPECT_EQ(model->num_layers(), 5);
  EXPECT_EQ(model->max_position_embeddings(), 12);
}

TEST(EncoderDecoderFlags, ChangeBothStacks) {
  ModelFlags f = own_t5();
  const int64_t tied = model_from_flags(f, 12)->parameter_count();
  f.untie = true;  // and no bias of the output layer
  EXPECT_EQ(model_from_flags(f, 12)->parameter_count(), tied + 50 * 16 - 50);
  f = own_t5();
  f.position_embedding = PositionEmbedding::relative;
  f.relative_buckets = 8;
  EXPECT_EQ(model_from_flags(f, 12)->parameter_count(), tied - 12 * 16 + 2 * 8 * 2);
  f = own_t5();
  f.decoder_num_layers.reset();
  EXPECT_EQ(model_from_flags(f, 12)->num_layers(), 6);
}

TEST(EncoderDecoderFlags, SurviveTheirConfig) {
  for (const PositionEmbedding position : {PositionEmbedding::learned_absolute,
                                           PositionEmbedding::relative, PositionEmbedding::rope}) {
    ModelFlags f = own_t5();
    f.position_embedding = position;
    const Model model = model_from_flags(f, 12);
    const Model again = model_from_config_json(model->config_json(DType::f32));
    EXPECT_EQ(again->describe().dump(), model->describe().dump());
  }
}

TEST(EncoderDecoderFlags, RefuseWhatIsForDecoders) {
  const auto refuses = [](const auto& change) {
    ModelFlags f = own_t5();
    change(f);
    EXPECT_THROW(model_from_flags(f, 12), Error);
  };
  refuses([](ModelFlags& f) { f.multi_latent_attention = true; });
  refuses([](ModelFlags& f) { f.moe.num_experts = 4; });
  refuses([](ModelFlags& f) { f.window_size = "4,0"; });
  refuses([](ModelFlags& f) { f.mtp_num_layers = 1; });
  refuses([](ModelFlags& f) { f.model_family = "llama"; });
  refuses([](ModelFlags& f) {
    f.encoder_decoder = false;
    f.position_embedding = PositionEmbedding::relative;
  });
}

}  // namespace
}  // namespace megatron::models
