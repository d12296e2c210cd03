// Scratch memory that CUDA's products and attention request, and which attention calls go to a
// library or to the kernels of latents.
#include <gtest/gtest.h>

#include <array>

#include "kernels/cuda_scratch/attention.h"
#include "kernels/cuda_scratch/gemm.h"
#include "kernels/cuda_scratch/library_attention.h"

namespace megatron::kernels::cuda {
namespace {

class CudaScratch : public ::testing::Test {
 protected:
  Tensor tensor(Shape shape, DType type) {
    return Tensor::empty(runtime.arena(MemoryClass::activations), shape, type, "t");
  }
  GemmArgs product(int64_t m, int64_t k, int64_t n, DType in, DType out) {
    GemmArgs args;
    args.a = tensor({m, k}, in);
    args.b = tensor({k, n}, in);
    args.out = tensor({m, n}, out);
    return args;
  }
  // Arguments as a model's layer passes them: parts of one tensor.
  AttentionBackwardArgs attention(int64_t samples, int64_t length, int64_t heads, int64_t kv_heads,
                                  int64_t width, DType type) {
    const auto all = [&](int64_t count) { return tensor({samples, length, count, width}, type); };
    const Tensor qkv = all(heads + 2 * kv_heads), gradients = all(heads + 2 * kv_heads);
    AttentionBackwardArgs args;
    args.q = qkv.slice(2, 0, heads);
    args.k = qkv.slice(2, heads, kv_heads);
    args.v = qkv.slice(2, heads + kv_heads, kv_heads);
    args.out = all(heads);
    args.dout = all(heads);
    args.lse = tensor({samples, heads, length}, DType::f32);
    args.dq = gradients.slice(2, 0, heads);
    args.dk = gradients.slice(2, heads, kv_heads);
    args.dv = gradients.slice(2, heads + kv_heads, kv_heads);
    return args;
  }

  // Queries of latents of `width` elements in pages.
  AttentionArgs latents(int64_t samples, int64_t queries, int64_t keys, int64_t heads,
                        int64_t width, int64_t values, DType type = DType::bf16) {
    AttentionArgs args{.q = tensor({samples, queries, heads, width}, type),
                       .k = tensor({keys / 32, 32, 1, width}, type)};
    args.v = args.k.slice(3, 0, values);
    args.q_positions = tensor({samples, queries}, DType::i32);
    args.block_table = tensor({samples, keys / 32}, DType::i32);
    return args;
  }

  static constexpr int64_t kMax = int64_t{768} << 20;
  Runtime runtime{{DeviceKind::meta}, 1};
};

TEST_F(CudaScratch, ProductsHaveRoomForPartsOfTheirSums) {
  EXPECT_EQ(product_workspace(1, 3, 5), 1 << 20);
  EXPECT_EQ(product_workspace(4, 64, 64), 64 * 4 * 4 * 64 * 64);
  EXPECT_EQ(product_workspace(1, 8192, 128256), 64 << 20);
}

TEST_F(CudaScratch, ProductsCopyWhatCublasLtCannotRead) {
  GemmArgs args = product(6, 8, 16, DType::bf16, DType::bf16);
  args.bias = tensor({16}, DType::bf16);
  const GemmScratch plain = gemm_scratch(args, runtime.stream());
  EXPECT_TRUE(plain.workspace.defined());
  EXPECT_FALSE(plain.a.defined() || plain.b.defined() || plain.bias.defined() ||
               plain.zeros.defined());

  args.bias = tensor({19}, DType::bf16).slice(0, 3, 16);
  EXPECT_TRUE(gemm_scratch(args, runtime.stream()).bias.defined()) << "6 bytes behind a block";
  args = product(6, 8, 16, DType::bf16, DType::f32);
  args.bias = tensor({16}, DType::bf16);
  EXPECT_EQ(gemm_scratch(args, runtime.stream()).bias.dtype(), DType::f32);
  const std::array<int64_t, 2> windows{1, 1};
  args.a = args.a.as_strided({6, 8}, windows);
  EXPECT_EQ(gemm_scratch(args, runtime.stream()).a.shape(), (Shape{6, 8}));
}

TEST_F(CudaScratch, ProductsHaveRoomForTheBiasGradientThatCublasLtCannotAdd) {
  GemmArgs args;
  args.a = tensor({4096, 48}, DType::bf16);
  args.b = tensor({4096, 32}, DType::bf16);
  args.out = tensor({48, 32}, DType::f32);
  args.transpose_a = true;
  args.bias_gradient = {tensor({48}, DType::f32), 0};
  EXPECT_FALSE(gemm_scratch(args, runtime.stream()).bias_gradient.defined());
  args.bias_gradient.beta = 1;
  EXPECT_EQ(gemm_scratch(args, runtime.stream()).bias_gradient.shape(), Shape{48});
  args.bias_gradient = {tensor({51}, DType::f32).slice(0, 3, 48), 0};
  EXPECT_TRUE(gemm_scratch(args, runtime.stream()).bias_gradient.defined()) << "12 bytes behind";
}

TEST_F(CudaScratch, ACallThatTheLibraryMayRefuseHasRoomForItsParts) {
  GemmArgs args;
  args.a = tensor({8192, 400000}, DType::bf16);
  args.b = tensor({8192, 1}, DType::bf16);
  args.out = tensor({400000, 1}, DType::f32);
  args.transpose_a = true;
  args.bias_gradient.out = tensor({400000}, DType::f32);
  gemm_scratch(args, runtime.stream());
  EXPECT_EQ(runtime.arena(MemoryClass::scratch).high_water(), int64_t{4} * 128 * 400000)
      << "of column_sum, more than the product's";
}

TEST_F(CudaScratch, ProductsOverNothingHaveZeros) {
  EXPECT_EQ(gemm_scratch(product(3, 0, 7, DType::f32, DType::f32), runtime.stream()).zeros.shape(),
            Shape{7});
  EXPECT_FALSE(
      gemm_scratch(product(0, 4, 7, DType::f32, DType::f32), runtime.stream()).workspace.defined());
}

TEST_F(CudaScratch, TheLibraryTakesAttentionOfTraining) {
  const auto takes = [](const AttentionBackwardArgs& args) { return library_takes(args); };
  AttentionBackwardArgs args = attention(2, 256, 4, 2, 64, DType::bf16);
  EXPECT_TRUE(takes(args));
  args.causal = false;
  EXPECT_TRUE(takes(args));
  args.window_start = tensor({2, 256}, DType::i32);
  EXPECT_FALSE(takes(args)) << "documents";
  args.window_start = {};
  args.window_end = tensor({2, 256}, DType::i32);
  EXPECT_FALSE(takes(args)) << "ends of documents";
  args = attention(2, 256, 4, 2, 64, DType::f16);
  EXPECT_TRUE(takes(args));
  args.dropout.p = 0.1f;
  EXPECT_FALSE(takes(args));
  EXPECT_FALSE(takes(attention(2, 256, 4, 2, 64, DType::f32)));
  const auto takes_with = [&](const auto& change) {
    AttentionBackwardArgs changed = attention(2, 256, 4, 2, 64, DType::bf16);
    change(changed);
    return takes(changed);
  };
  EXPECT_FALSE(takes_with([](auto& a) { a.window = 255; }));
  EXPECT_TRUE(takes_with([](auto& a) { a.window = 256; })) << "a window that hides nothing";
  EXPECT_FALSE(takes_with([](auto& a) {
    a.causal = false;
    a.window = 255;
  })) << "a two-sided window";
  EXPECT_FALSE(takes_with([](auto& a) { a.chunk = 128; }));
  EXPECT_FALSE(takes_with([](auto& a) { a.soft_cap = 50; }));
  EXPECT_FALSE(takes_with([&](auto& a) { a.sinks = tensor({4}, DType::f32); }));
  EXPECT_FALSE(takes_with([&](auto& a) { a.bias = tensor({5, 4}, DType::f32); }));
  EXPECT_FALSE(takes_with([](auto& a) { a.beta_q = 1; }));
  EXPECT_FALSE(takes_with([](auto& a) { a.beta_kv = 1; }));
  EXPECT_FALSE(takes_with([&](auto& a) {
    for (Tensor* t : {&a.dq, &a.dk, &a.dv}) *t = tensor(t->shape(), DType::f32);
  }));
  EXPECT_FALSE(takes(attention(2, 200, 4, 2, 64, DType::bf16))) << "not a multiple of 64";
  EXPECT_FALSE(takes(attention(2, 64, 4, 2, 64, DType::bf16))) << "too short";
  EXPECT_FALSE(takes(attention(2, 256, 4, 2, 20, DType::bf16))) << "rows of 40 bytes";
  EXPECT_FALSE(takes(attention(2, 256, 4, 2, 264, DType::bf16))) << "too wide";
  EXPECT_FALSE(takes(attention(1, 65536, 8, 1, 128, DType::bf16))) << "64 GiB of scores a key head";
  args = attention(2, 256, 4, 4, 64, DType::bf16);
  args.dq = tensor({2 * 256 * 4 * 64 + 4}, DType::bf16)
                .slice(0, 4, 2 * 256 * 4 * 64)
                .view({2, 256, 4, 64});
  EXPECT_FALSE(takes(args)) << "8 bytes behind a block";
}

TEST_F(CudaScratch, BackwardInAnyOrderKeepsSumsOfDqInsteadOfScores) {
  const AttentionBackwardArgs args = attention(1, 8192, 32, 8, 128, DType::bf16);
  const LibraryAttentionPart ordered = library_part(args, kMax),
                             any = library_part(args, kMax, true);
  EXPECT_EQ(ordered.kv_heads, 1);
  EXPECT_EQ(ordered.dq_sums, 0);
  EXPECT_EQ(any.kv_heads, 8);
  EXPECT_EQ(any.ordered, 0);
  EXPECT_EQ(any.dq_sums, int64_t{32} * 8192 * 128);
  EXPECT_LT(any.workspace, ordered.workspace / 2);
  EXPECT_TRUE(library_takes(attention(1, 65536, 8, 1, 128, DType::bf16), true));
  EXPECT_FALSE(library_attention_scratch(args, runtime.stream()).dq_sums.defined());
  runtime.stream().allow_nondeterministic(true);
  EXPECT_EQ(library_attention_scratch(args, runtime.stream()).dq_sums.elements(), any.dq_sums);
}

TEST_F(CudaScratch, BackwardIsCutWhereTheScoresAreLarge) {
  const auto part = [&](int64_t samples, int64_t length, int64_t heads, int64_t kv_heads) {
    return library_part(attention(samples, length, heads, kv_heads, 128, DType::bf16), kMax);
  };
  const LibraryAttentionPart small = part(6, 1024, 12, 12);  // 144 MiB of scores
  EXPECT_EQ(small.samples, 6);
  EXPECT_EQ(small.kv_heads, 12);
  const LibraryAttentionPart many = part(40, 1024, 12, 12);  // 24 MiB a sample
  EXPECT_EQ(many.samples, 20) << "the largest divisor of 40 below 768 / 24";
  const LibraryAttentionPart llama = part(1, 4096, 32, 8);  // 128 MiB a key head
  EXPECT_EQ(llama.samples, 1);
  EXPECT_EQ(llama.kv_heads, 4);
  EXPECT_EQ(llama.ordered, int64_t{2} * 16 * 4096 * 4096);
  EXPECT_GE(llama.workspace, llama.ordered);
  EXPECT_LE(llama.workspace, kMax);
  EXPECT_EQ(part(1, 16384, 32, 8).kv_heads, 1) << "2 GiB a key head";
}

TEST_F(CudaScratch, AttentionAsksForOnePart) {
  const AttentionBackwardArgs args = attention(1, 4096, 32, 8, 128, DType::bf16);
  const LibraryAttentionScratch scratch = library_attention_scratch(args, runtime.stream());
  EXPECT_EQ(scratch.workspace.bytes(), library_part(args, kMax).workspace);
  EXPECT_EQ(scratch.delta.shape(), (Shape{1, 16, 4096}));
  const int64_t larger = int64_t{1280} << 20;
  runtime.stream().limit_attention_workspace(larger);
  const LibraryAttentionScratch whole = library_attention_scratch(args, runtime.stream());
  EXPECT_EQ(whole.workspace.bytes(), library_part(args, larger).workspace);
  EXPECT_GT(whole.workspace.bytes(), scratch.workspace.bytes());
  EXPECT_EQ(whole.delta.shape(), (Shape{1, 32, 4096})) << "1 GiB of scores";
}

TEST_F(CudaScratch, LatentsArePagesWhoseValuesAreAPartOfTheirKeys) {
  const AttentionArgs args = latents(2, 1, 64, 16, 576, 512);
  EXPECT_TRUE(is_latent(args));
  const auto changed = [&](const auto& change) {
    AttentionArgs other = args;
    change(other);
    return is_latent(other);
  };
  EXPECT_FALSE(changed([&](auto& a) { a.bias = tensor({3, 16}, DType::f32); }));
  EXPECT_FALSE(changed([&](auto& a) { a.v = a.k.slice(3, 64, 512); })) << "the last elements";
  EXPECT_FALSE(changed([&](auto& a) { a.v = tensor(a.v.shape(), DType::bf16); }));
  EXPECT_FALSE(changed([&](auto& a) { a.block_table = {}; }));
  EXPECT_FALSE(is_latent(latents(2, 1, 64, 16, 256, 192))) << "other kernels are as wide";
  EXPECT_FALSE(is_latent(latents(2, 1, 64, 16, 577, 512)));
  EXPECT_FALSE(is_latent(latents(2, 1, 64, 16, 576, 513)));
  EXPECT_TRUE(supports_latents(576, 512) && supports_latents(256, 256));
  EXPECT_FALSE(supports_latents(577, 512) || supports_latents(576, 513));
}

TEST_F(CudaScratch, LatentsOfLongTextsHaveRoomForTheResultsOfRanges) {
  EXPECT_FALSE(
      attention_scratch(latents(64, 1, 1024, 128, 576, 512), runtime.stream()).sums.defined());
  // 64 texts of two blocks of 64 rows: those of 32 are computed at a time.
  const AttentionArgs many = latents(64, 1, 8192, 128, 576, 512);
  EXPECT_EQ(latent_parts(many).ranges, 8);
  EXPECT_EQ(latent_parts(many).units, 64);
  const AttentionScratch scratch = attention_scratch(many, runtime.stream());
  EXPECT_EQ(scratch.sums.shape(), (Shape{64 * 8, 64, 512}));
  EXPECT_EQ(scratch.sums.bytes(), int64_t{64} << 20);
  EXPECT_EQ(scratch.weights.shape(), (Shape{64 * 8, 64, 2}));
  const AttentionArgs few = latents(3, 1, 1056, 16, 576, 512);
  EXPECT_EQ(attention_scratch(few, runtime.stream()).sums.shape(), (Shape{3 * 2, 16, 512}));
  const AttentionArgs longest = latents(1, 1, int64_t{1} << 20, 128, 576, 512);
  EXPECT_EQ(latent_parts(longest).units, 1) << "128 MiB";
}

}  // namespace
}  // namespace megatron::kernels::cuda
