// Cached and uncached logits are bit-identical, whatever the batch and the pieces.
#include "golden/inference/bits.h"

#include "amx_emulator.h"

namespace megatron::testing {
namespace {

const std::vector<int64_t> kPieces = {1, 7, 64, 512};

TEST(Bits, TinyGpt2) {
  for (const auto& [type, products] : kernels::cpu::types_and_ways()) {
    const kernels::cpu::UseBf16Products use(products);
    RandomModel m(gpt2_shape(2, 64, 4, 97, 320), type);
    if (slow(products)) {
      expect_bits_of_one_pass(m, {33, 130}, {1, 9}, {1, 64});
      continue;
    }
    expect_bits_of_one_pass(m, {1, 2, 33, 130}, {1, 9}, kPieces);
    expect_bits_of_one_pass(m, {300}, {2}, {64, 512});
  }
}

TEST(Bits, TinyLlama) {
  for (const auto& [type, products] : kernels::cpu::types_and_ways()) {
    const kernels::cpu::UseBf16Products use(products);
    RandomModel m(llama_shape(2, 64, 8, 2, 97, 320), type);
    if (slow(products)) {
      expect_bits_of_one_pass(m, {1, 65}, {9}, {7});
      continue;
    }
    expect_bits_of_one_pass(m, {1, 3, 65, 128}, {1, 4}, kPieces);
    expect_bits_of_one_pass(m, {300}, {9}, {64, 512});
  }
}

// Experts with a single row and experts with many rows.
TEST(Bits, TinyExperts) {
  for (const auto& [type, products] : kernels::cpu::types_and_ways()) {
    const kernels::cpu::UseBf16Products use(products);
    models::ModelFlags flags = llama_shape(2, 64, 4, 2, 97, 320);
    flags.moe.num_experts = 8;
    flags.moe.topk = 3;
    flags.moe.ffn_hidden_size = 48;
    RandomModel m(flags, type);
    if (slow(products)) {
      expect_bits_of_one_pass(m, {33}, {3}, {7});
      continue;
    }
    expect_bits_of_one_pass(m, {1, 2, 65}, {1, 9}, kPieces);
    expect_bits_of_one_pass(m, {300}, {3}, {64, 512});
  }
}

// Matrices of the size of GPT-2 124M, in two of its twelve layers.
TEST(Bits, WidthsOf124M) {
  for (const DType type : {DType::f32, DType::bf16}) {
    RandomModel m(gpt2_shape(2, 768, 12, 1027, 320), type);
    expect_bits_of_one_pass(m, {1, 60}, {1, 3}, {1, 512});
    expect_bits_of_one_pass(m, {300}, {4}, {64});
  }
}

}  // namespace
}  // namespace megatron::testing
