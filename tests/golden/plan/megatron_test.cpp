// Compares with all golden vectors of Megatron-LM's own figures.
#include <gtest/gtest.h>

#include "base/error.h"
#include "golden/plan/megatron_arguments.h"
#include "golden/plan/megatron_report.h"
#include "plan/flops.h"
#include "plan/megatron_flops.h"

namespace megatron::plan {
namespace {

Json::Array vectors(const std::string& name) {
  return Json::read(MEGATRON_GOLDEN "/megatron/flops/" + name + ".json").as_array();
}

std::string all_digits(const FlopTerms& terms, const Tokens& tokens) {
  Tokens::Wide rest =
      static_cast<Tokens::Wide>(terms.token) * static_cast<Tokens::Wide>(tokens.count) +
      static_cast<Tokens::Wide>(terms.pair) * tokens.squares;
  std::string digits;
  for (; rest != 0 || digits.empty(); rest /= 10)
    digits.insert(digits.begin(), static_cast<char>('0' + static_cast<int>(rest % 10)));
  return digits;
}

TEST(MegatronFlops, Batches) {
  int count = 0;
  for (const Json& c : vectors("flops")) {
    SCOPED_TRACE(c["name"].as_string());
    const FlopTerms terms = megatron_flops(shape_from(c["args"]), Attention::causal);
    const Tokens tokens =
        Tokens::alike(c["batch_size"].as_integer(), c["args"]["seq_length"].as_integer());
    EXPECT_EQ(all_digits(terms, tokens), c["flops_exact"].as_string());
    EXPECT_EQ(terms.total(tokens), c["flops"].as_number());
    ++count;
  }
  EXPECT_EQ(count, 24);
}

TEST(MegatronFlops, PackedBatches) {
  for (const Json& c : vectors("flops")) {
    SCOPED_TRACE(c["name"].as_string());
    const Json& packed = c["packed"];
    Tokens tokens;
    for (const Json& length : packed["lengths"].as_array()) {
      tokens.count += length.as_integer();
      tokens.squares += static_cast<Tokens::Wide>(length.as_integer() * length.as_integer());
    }
    EXPECT_EQ(tokens.count, packed["total_real_tokens"].as_integer());
    EXPECT_EQ(static_cast<int64_t>(tokens.squares), packed["seqlen_squared_sum"].as_integer());
    const FlopTerms terms = megatron_flops(shape_from(c["args"]), Attention::causal);
    EXPECT_EQ(terms.total(tokens), packed["flops"].as_number());
  }
}

// Narayanan et al. 2021 (arXiv 2104.04473), equation 2, without the recompute that turns the factor
// 72 into 96: 72 B s l h^2 (1 + s / (6 h) + V / (12 h l)).
TEST(MegatronFlops, FullAttentionIsThePapers) {
  const double batch = 1536, s = 2048, layers = 96, h = 12288, vocabulary = 51200;
  for (const Json& c : vectors("flops")) {
    if (c["name"].as_string() != "gpt3_175b") continue;
    const double expected =
        72 * batch * s * layers * h * h * (1 + s / (6 * h) + vocabulary / (12 * h * layers));
    EXPECT_NEAR(
        megatron_flops(shape_from(c["args"]), Attention::full).total(Tokens::alike(1536, 2048)) /
            expected,
        1, 1e-14);
    return;
  }
  FAIL() << "gpt3_175b is not there";
}

// 3 x 2^87, which exceeds a 64-bit count.
TEST(MegatronFlops, TheLargestBatch) {
  const Tokens tokens = Tokens::alike(1LL << 31, 1LL << 28);
  EXPECT_EQ(FlopTerms({.token = 0, .pair = 3}).total(tokens), 464227514732017603087171584.0);
}

TEST(MegatronFlops, WhatIsMissingIsNamed) {
  MegatronShape shape;
  shape.num_layers = 2;
  shape.hidden_size = 64;
  shape.num_attention_heads = 4;
  const auto expect_error = [](const MegatronShape& s, const std::string& text) {
    try {
      megatron_flops(s, Attention::causal);
      FAIL() << text;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(text), std::string::npos) << e.what();
    }
  };
  MegatronShape s = shape;
  s.multi_latent_attention = true;
  expect_error(s, "--qk-head-dim");
  s = shape;
  s.num_experts = 4;
  s.moe_layer_freq.layers = {1, 0, 1};
  expect_error(s, "--moe-layer-freq");
  s = shape;
  s.linear_attention = LinearAttention::gated_delta_net;
  expect_error(s, "--linear-attention-freq");
  s = shape;
  s.hybrid_layer_pattern = "M*Q";
  expect_error(s, "'Q'");
}

TEST(MegatronMemory, BytesAndReport) {
  int count = 0, refused = 0;
  for (const Json& c : vectors("memory")) {
    SCOPED_TRACE(c["name"].as_string());
    const MegatronShape shape = shape_from(c["args"]);
    const MegatronLayout layout = layout_from(c["args"], c["num_microbatches"]);
    ++count;
    if (c["weight_and_optimizer_bytes"].is_string()) {
      ++refused;
      EXPECT_THROW(megatron_memory(shape, layout), Error);
      continue;
    }
    const MegatronMemory memory = megatron_memory(shape, layout);
    EXPECT_DOUBLE_EQ(memory.weights_and_optimizer, c["weight_and_optimizer_bytes"].as_number());
    EXPECT_DOUBLE_EQ(memory.activations_sequence_parallel,
                     c["activation_bytes_sp_selective"].as_number());
    EXPECT_DOUBLE_EQ(memory.activations, c["activation_bytes_no_sp"].as_number());
    EXPECT_EQ(megatron_report(shape, layout), c["report_text"].as_string());
  }
  EXPECT_EQ(count, 14);
  EXPECT_EQ(refused, 1);
}

}  // namespace
}  // namespace megatron::plan
