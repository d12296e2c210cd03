#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "amx_emulator.h"
#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/products/bf16_products.h"

namespace megatron::kernels::cpu {
namespace {

struct PagedShape {
  int64_t keys, heads, kv_heads, width, page, window = 0;
  int64_t radius = -1;  // of the bias by distance; -1: none
  int64_t latent = 0;   // values are so many first elements of the keys; 0: they are apart
};

// Keys and values of one sample, contiguous and in pages of reversed order. Other pages of the
// pool, and the memory after the last key, are NaN.
class PagedKeys {
 public:
  PagedKeys(const PagedShape& shape, DType type, int threads = 2)
      : shape_(shape), type_(type), runtime_({DeviceKind::cpu, 0}, threads) {
    const Shape by_query{1, shape.keys, shape.heads, shape.width},
        by_key{1, shape.keys, shape.kv_heads, shape.width};
    all_.q = normal(by_query);
    all_.k = normal(by_key);
    all_.v = shape.latent > 0 ? all_.k.slice(3, 0, shape.latent) : normal(by_key);
    all_.scale = 1 / std::sqrt(static_cast<double>(shape.width));
    all_.window = shape.window;
    if (shape.radius >= 0) all_.bias = normal({2 * shape.radius + 1, shape.heads}, DType::f32);
    blocks_ = (shape.keys + shape.page - 1) / shape.page;
    table_ = Tensor::empty(arena(), {1, blocks_}, DType::i32, "test");
    for (int64_t i = 0; i < blocks_; ++i)
      table_.data<int32_t>()[i] = static_cast<int32_t>(2 * (blocks_ - i) - 1);
    pages_k_ = paged(all_.k);
    pages_v_ = shape.latent > 0 ? pages_k_.slice(3, 0, shape.latent) : paged(all_.v);
  }

  AttentionArgs all() { return outputs(all_, shape_.keys); }
  // Arguments for queries [first, first + count).
  AttentionArgs in_pages(int64_t first, int64_t count) {
    AttentionArgs args = all_;
    args.q = all_.q.slice(1, first, count);
    args.k = pages_k_;
    args.v = pages_v_;
    args.block_table = table_.slice(1, 0, (first + count + shape_.page - 1) / shape_.page);
    args.q_positions = Tensor::empty(arena(), {1, count}, DType::i32, "test");
    for (int64_t i = 0; i < count; ++i)
      args.q_positions.data<int32_t>()[i] = static_cast<int32_t>(first + i);
    return outputs(args, count);
  }
  void run(const AttentionArgs& args) { attention(args, runtime_.stream()); }

 private:
  Arena& arena() { return runtime_.arena(MemoryClass::activations); }
  Tensor normal(const Shape& shape) { return normal(shape, type_); }
  Tensor normal(const Shape& shape, DType type) {
    Tensor t = Tensor::empty(arena(), shape, type, "test");
    std::vector<double> values(static_cast<size_t>(t.elements()));
    std::normal_distribution<double> normal;
    for (double& x : values) x = normal(random_);
    copy_from(t, std::span<const double>(values));
    return t;
  }
  Tensor paged(const Tensor& rows) {
    Tensor pool = Tensor::empty(arena(), {2 * blocks_, shape_.page, rows.size(2), rows.size(3)},
                                type_, "test");
    const std::vector<double> nan(static_cast<size_t>(pool.elements()),
                                  std::numeric_limits<double>::quiet_NaN());
    copy_from(pool, std::span<const double>(nan));
    for (int64_t i = 0; i < blocks_; ++i) {
      const int64_t count = std::min(shape_.page, shape_.keys - i * shape_.page);
      Tensor to = pool.select(0, table_.data<int32_t>()[i]).slice(0, 0, count);
      copy_from(to, std::span<const double>(
                        to_doubles(rows.select(0, 0).slice(0, i * shape_.page, count))));
    }
    return pool;
  }
  AttentionArgs outputs(AttentionArgs args, int64_t queries) {
    args.out = Tensor::empty(arena(), {1, queries, shape_.heads, args.v.size(3)}, type_, "test");
    args.lse = Tensor::empty(arena(), {1, shape_.heads, queries}, DType::f32, "test");
    return args;
  }

  PagedShape shape_;
  DType type_;
  Runtime runtime_;
  std::mt19937_64 random_{7};
  int64_t blocks_ = 0;
  AttentionArgs all_;
  Tensor table_, pages_k_, pages_v_;
};

void expect_bits_of_pages(const PagedShape& shape, DType type) {
  PagedKeys keys(shape, type);
  const AttentionArgs all = keys.all();
  keys.run(all);
  for (const int64_t count : {int64_t{1}, int64_t{2}, int64_t{33}, int64_t{90}, shape.keys}) {
    for (const int64_t first : {shape.keys - count, (shape.keys - count) / 2}) {
      const AttentionArgs args = keys.in_pages(first, count);
      keys.run(args);
      EXPECT_EQ(to_doubles(args.out), to_doubles(all.out.slice(1, first, count)))
          << name(type) << " " << str(bf16_products()) << ", " << count << " from " << first
          << " of " << shape.keys << ", width " << shape.width << ", pages of " << shape.page;
    }
  }
}

TEST(PagedAttention, HasTheBitsOfKeysInARow) {
  const PagedShape shapes[] = {
      {.keys = 200, .heads = 4, .kv_heads = 2, .width = 32, .page = 32},
      {.keys = 259, .heads = 2, .kv_heads = 2, .width = 64, .page = 64},
      {.keys = 131, .heads = 8, .kv_heads = 1, .width = 72, .page = 96},
      {.keys = 300, .heads = 5, .kv_heads = 1, .width = 19, .page = 256},
      {.keys = 290, .heads = 2, .kv_heads = 1, .width = 32, .page = 32, .window = 50},
      {.keys = 290, .heads = 4, .kv_heads = 2, .width = 32, .page = 32, .radius = 70}};
  for (const PagedShape& shape : shapes) {
    for (const auto& [type, products] : types_and_ways()) {
      const UseBf16Products use(products);
      expect_bits_of_pages(shape, type);
    }
  }
}

// Ranges of latents are merged in the same order whether threads share them or not.
TEST(PagedAttention, OfLatentsHasTheSameBitsInAnyNumberOfThreads) {
  for (const int64_t window : {0, 1500}) {
    const PagedShape shape{.keys = 2100,
                           .heads = 3,
                           .kv_heads = 1,
                           .width = 40,
                           .page = 64,
                           .window = window,
                           .latent = 24};
    for (const auto& [type, products] : types_and_ways()) {
      const UseBf16Products use(products);
      PagedKeys one(shape, type, 1);
      const AttentionArgs many = one.in_pages(2000, 100);
      one.run(many);
      for (const int threads : {1, 2, 5}) {
        PagedKeys keys(shape, type, threads);
        for (const auto& [first, count] : {std::pair<int64_t, int64_t>{2099, 1}, {2030, 20}}) {
          const AttentionArgs args = keys.in_pages(first, count);
          keys.run(args);
          EXPECT_EQ(to_doubles(args.out), to_doubles(many.out.slice(1, first - 2000, count)))
              << name(type) << " " << str(bf16_products()) << ", " << count << " queries, "
              << threads << " threads";
          EXPECT_EQ(to_doubles(args.lse), to_doubles(many.lse.slice(2, first - 2000, count)));
        }
      }
    }
  }
}

}  // namespace
}  // namespace megatron::kernels::cpu
