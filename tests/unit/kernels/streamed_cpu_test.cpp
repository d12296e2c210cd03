// Outputs above kStreamedBytes bypass the caches (kernels/cpu/blocks.h): the bits equal those of
// smaller outputs, for any width and alignment of a tensor.
#include <hwy/targets.h>

#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/blocks.h"
#include "kernels/cpu/kernels.h"
#include "unit/kernels/cpu_maker.h"

namespace megatron::kernels::cpu {
namespace {

Tensor uniform(Maker& maker, Shape shape, DType type, int64_t shift, uint32_t seed) {
  Tensor t = maker.empty(shape, type, shift);
  for (int64_t i = 0; i < t.elements(); ++i) {
    seed = seed * 1664525u + 1013904223u;
    const float value = static_cast<float>(static_cast<int32_t>(seed)) * 0x1p-30f;
    if (type == DType::f32) {
      t.data<float>()[i] = value;
    } else {
      t.data<bf16>()[i] = bf16(value);
    }
  }
  return t;
}

// A call over rows [first, first + count) of its inputs, which writes `out`.
using Rows = std::function<void(int64_t first, int64_t count, const Tensor& out)>;

struct Layout {
  int64_t width, shift;  // offset of a tensor from an aligned address, in elements
};
class Streamed : public ::testing::TestWithParam<Layout> {
 protected:
  // The call over all rows at once, streamed if rows are whole cache lines, and in parts that are
  // not.
  void expect_same(const std::string& what, Shape row, DType type, int64_t rows, const Rows& call) {
    const Shape all = shape(rows, row);
    Tensor once = maker.empty(all, type, GetParam().shift);
    ASSERT_GE(once.bytes(), kStreamedBytes) << what;
    call(0, rows, once);
    const int64_t count = rows / 16 + 1;
    for (int64_t first = 0; first < rows; first += count) {
      const int64_t n = std::min(count, rows - first);
      Tensor part = maker.empty(shape(n, row), type);
      ASSERT_LT(part.bytes(), kStreamedBytes) << what;
      call(first, n, part);
      EXPECT_TRUE(same_bits(part, once.slice(0, first, n))) << what << " rows from " << first;
    }
  }
  static Shape shape(int64_t rows, Shape row) {
    return row.rank() == 1 ? Shape{rows, row[0]} : Shape{rows, row[0], row[1]};
  }
  Tensor make(Shape shape, DType type, uint32_t seed) {
    return uniform(maker, shape, type, GetParam().shift, seed);
  }
  static int64_t rows_for(int64_t width, DType type) {
    return kStreamedBytes / (width * size_of(type)) + 37;
  }

  Maker maker;
};

TEST_P(Streamed, ElementsHaveTheBitsOfOrdinaryStores) {
  const int64_t width = GetParam().width;
  for (const DType type : kTypes) {
    const int64_t rows = rows_for(width, type);
    const Tensor a = make({rows, width}, type, 1), b = make({rows, width}, type, 2);
    const Tensor other = make({rows, width}, type == DType::f32 ? DType::bf16 : DType::f32, 3);
    const auto part = [](const Tensor& t, int64_t first, int64_t n) {
      return t.slice(0, first, n);
    };
    Stream& stream = maker.stream();
    expect_same("add", {width}, type, rows, [&](int64_t first, int64_t n, const Tensor& out) {
      add({.a = part(a, first, n), .b = part(b, first, n), .out = out}, stream);
    });
    expect_same("add row", {width}, type, rows, [&](int64_t first, int64_t n, const Tensor& out) {
      add({.a = part(a, first, n), .b = b.slice(0, 5, 1).view({width}), .out = out}, stream);
    });
    for (const Tensor& from : {a, other}) {
      expect_same("copy", {width}, type, rows, [&](int64_t first, int64_t n, const Tensor& out) {
        copy({.x = part(from, first, n), .out = out}, stream);
      });
    }
    expect_same("fill", {width}, type, rows, [&](int64_t, int64_t, const Tensor& out) {
      fill({.out = out, .value = -1.375}, stream);
    });
    expect_same("weighted sum", {width}, type, rows,
                [&](int64_t first, int64_t n, const Tensor& out) {
                  weighted_sum({.x = part(a, first, n),
                                .y = part(b, first, n),
                                .out = out,
                                .x_weight = 0.25,
                                .y_weight = 3},
                               stream);
                });
    for (const Activation f : {Activation::gelu_tanh, Activation::silu}) {
      expect_same("activation", {width}, type, rows,
                  [&](int64_t first, int64_t n, const Tensor& out) {
                    activation({.function = f, .x = part(a, first, n), .out = out}, stream);
                  });
      expect_same(
          "activation backward", {width}, type, rows,
          [&](int64_t first, int64_t n, const Tensor& out) {
            activation_backward(
                {.function = f, .x = part(a, first, n), .dout = part(b, first, n), .dx = out},
                stream);
          });
    }
  }
}

TEST_P(Streamed, RowsHaveTheBitsOfOrdinaryStores) {
  const int64_t width = GetParam().width;
  Stream& stream = maker.stream();
  for (const DType type : kTypes) {
    const int64_t rows = rows_for(width, type);
    const Tensor wide = make({rows, 2 * width}, type, 1), x = make({rows, width}, type, 2);
    const Tensor y = make({rows, width}, type, 3), weight = make({width}, type, 4);
    expect_same("gated", {width}, type, rows, [&](int64_t first, int64_t n, const Tensor& out) {
      activation(
          {.function = Activation::silu, .gated = true, .x = wide.slice(0, first, n), .out = out},
          stream);
    });
    for (const bool gives_sum : {false, true}) {
      expect_same("norm", {width}, type, rows, [&](int64_t first, int64_t n, const Tensor& out) {
        const Tensor spare = maker.empty({n, width}, type, GetParam().shift);
        add_rms_norm({.x = x.slice(0, first, n),
                      .residual = y.slice(0, first, n),
                      .weight = weight,
                      .bias = {},
                      .sum = gives_sum ? out : spare,
                      .normed = gives_sum ? spare : out,
                      .mean = {},
                      .rstd = maker.empty({n}, DType::f32)},
                     stream);
      });
    }
    const Tensor rstd = make({rows}, DType::f32, 5);
    expect_same("norm backward", {width}, type, rows,
                [&](int64_t first, int64_t n, const Tensor& out) {
                  add_rms_norm_backward({.dnormed = y.slice(0, first, n),
                                         .dsum_in = {},
                                         .sum = x.slice(0, first, n),
                                         .weight = weight,
                                         .mean = {},
                                         .rstd = rstd.slice(0, first, n),
                                         .dsum = out,
                                         .dweight = {.out = maker.empty({width}, DType::f32)},
                                         .dbias = {}},
                                        stream);
                });
    Tensor ids = maker.empty({rows}, DType::i32);
    for (int64_t i = 0; i < rows; ++i)
      ids.data<int32_t>()[i] = static_cast<int32_t>(i * 7919 % rows);
    expect_same("embedding", {width}, type, rows, [&](int64_t first, int64_t n, const Tensor& out) {
      embedding({.ids = ids.slice(0, first, n), .table = x, .out = out}, stream);
    });
  }
}

TEST_P(Streamed, NormsOfHeadsHaveTheBitsOfOrdinaryStores) {
  const int64_t width = GetParam().width, heads = 2;
  Stream& stream = maker.stream();
  for (const DType type : kTypes) {
    const int64_t rows = rows_for(heads * width, type);
    const Tensor x = make({rows, heads, width}, type, 1),
                 dout = make({rows, heads, width}, type, 2);
    const Tensor weight = make({width}, type, 3), rstd = make({rows, heads}, DType::f32, 4);
    expect_same("head norm", {heads, width}, type, rows,
                [&](int64_t first, int64_t n, const Tensor& out) {
                  head_norm({.x = x.slice(0, first, n),
                             .weight = weight,
                             .out = out,
                             .rstd = maker.empty({n, heads}, DType::f32)},
                            stream);
                });
    expect_same("head norm backward", {heads, width}, type, rows,
                [&](int64_t first, int64_t n, const Tensor& out) {
                  head_norm_backward({.x = x.slice(0, first, n),
                                      .weight = weight,
                                      .dout = dout.slice(0, first, n),
                                      .rstd = rstd.slice(0, first, n),
                                      .dx = out},
                                     stream);
                });
  }
}

// The rows are sequences of one token.
TEST_P(Streamed, PartsOfStateSpacesHaveTheBitsOfOrdinaryStores) {
  const int64_t width = GetParam().width;
  Stream& stream = maker.stream();
  for (const DType type : kTypes) {
    const int64_t rows = rows_for(width, type);
    const Tensor x = make({rows, width}, type, 1), z = make({rows, width}, type, 2),
                 dout = make({rows, width}, type, 3), weight = make({width}, type, 4),
                 taps = make({width, 4}, type, 5), rstd = make({rows, 1}, DType::f32, 6);
    const auto sequences = [&](const Tensor& t, int64_t first, int64_t n) {
      return t.slice(0, first, n).view({n, 1, width});
    };
    expect_same("convolution", {width}, type, rows,
                [&](int64_t first, int64_t n, const Tensor& out) {
                  causal_conv({.x = sequences(x, first, n),
                               .weight = taps,
                               .bias = weight,
                               .out = sequences(out, 0, n)},
                              stream);
                });
    expect_same("convolution backward", {width}, type, rows,
                [&](int64_t first, int64_t n, const Tensor& out) {
                  causal_conv_backward({.x = sequences(x, first, n),
                                        .weight = taps,
                                        .bias = weight,
                                        .dout = sequences(dout, first, n),
                                        .dx = sequences(out, 0, n)},
                                       stream);
                });
    for (const GateOrder order : {GateOrder::gate_first, GateOrder::norm_first}) {
      expect_same("gated norm", {width}, type, rows,
                  [&](int64_t first, int64_t n, const Tensor& out) {
                    gated_norm({.order = order,
                                .x = x.slice(0, first, n),
                                .z = z.slice(0, first, n),
                                .weight = weight,
                                .out = out,
                                .rstd = maker.empty({n, 1}, DType::f32)},
                               stream);
                  });
      for (const bool gives_dx : {false, true}) {
        expect_same("gated norm backward", {width}, type, rows,
                    [&](int64_t first, int64_t n, const Tensor& out) {
                      const Tensor spare = maker.empty({n, width}, type, GetParam().shift);
                      gated_norm_backward({.order = order,
                                           .x = x.slice(0, first, n),
                                           .z = z.slice(0, first, n),
                                           .weight = weight,
                                           .rstd = rstd.slice(0, first, n),
                                           .dout = dout.slice(0, first, n),
                                           .dx = gives_dx ? out : spare,
                                           .dz = gives_dx ? spare : out},
                                          stream);
                    });
      }
    }
  }
}

TEST_P(Streamed, GradientsOfLogitsHaveTheBitsOfOrdinaryStores) {
  const int64_t vocabulary = 40 * GetParam().width, rows = rows_for(vocabulary, DType::bf16);
  Stream& stream = maker.stream();
  const Tensor logits = make({rows, vocabulary}, DType::f32, 1);
  Tensor labels = maker.empty({rows}, DType::i32), weights = maker.empty({rows}, DType::f32);
  for (int64_t i = 0; i < rows; ++i) {
    labels.data<int32_t>()[i] = static_cast<int32_t>(i * 7919 % vocabulary);
    weights.data<float>()[i] = i % 5 == 0 ? 0.0f : 1.0f;
  }
  expect_same("cross entropy", {vocabulary}, DType::bf16, rows,
              [&](int64_t first, int64_t n, const Tensor& out) {
                cross_entropy({.logits = logits.slice(0, first, n),
                               .labels = labels.slice(0, first, n),
                               .weights = weights.slice(0, first, n),
                               .loss = maker.empty({n}, DType::f32),
                               .dlogits = out},
                              stream);
              });
}

INSTANTIATE_TEST_SUITE_P(Layouts, Streamed,
                         ::testing::Values(Layout{768, 0}, Layout{768, 3}, Layout{771, 0},
                                           Layout{33, 1}),
                         [](const auto& info) {
                           return std::to_string(info.param.width) + "from" +
                                  std::to_string(info.param.shift);
                         });

// Only large outputs are streamed that are not also inputs and whose rows begin at cache lines.
TEST(StreamedOutputs, AreLargeAlignedAndNoInputs) {
  Maker maker;
  const int64_t elements = kStreamedBytes / 4;
  const Tensor large = maker.empty({elements}, DType::f32);
  EXPECT_TRUE(is_streamed(large, 16, {}));
  EXPECT_FALSE(is_streamed(large, 8, {}));
  EXPECT_FALSE(is_streamed(large, 16, {nullptr, large.raw()}));
  EXPECT_FALSE(is_streamed(maker.empty({elements}, DType::f32, 1), 16, {}));
  EXPECT_FALSE(is_streamed(maker.empty({elements - 1}, DType::f32), 16, {}));
}

}  // namespace
}  // namespace megatron::kernels::cpu
