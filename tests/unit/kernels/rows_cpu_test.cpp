// Compares the host's row-wise kernels (norms, rotary embedding, tables, cross entropy, dropout)
// with plain fp64 loops.
#include <limits>

#include "base/error.h"
#include "base/philox.h"
#include "kernels/cpu/kernels.h"
#include "unit/kernels/cpu_maker.h"

namespace megatron::kernels::cpu {
namespace {

struct NormSetup {
  bool layer, residual;
  DType type;
  int64_t rows, width;
};

void check_norm(const NormSetup& setup) {
  const auto [layer, has_residual, type, rows, width] = setup;
  Maker maker;
  AddNormArgs args;
  args.x = maker.normal({rows, width}, type, 5);
  if (has_residual) args.residual = maker.normal({rows, width}, type);
  args.weight = maker.normal({width}, type);
  if (layer) args.bias = maker.normal({width}, type);
  if (layer) args.mean = maker.empty({rows}, DType::f32);
  args.eps = 0.01f;
  args.sum = maker.empty({rows, width}, type);
  args.normed = maker.empty({rows, width}, type);
  args.rstd = maker.empty({rows}, DType::f32);
  layer ? add_layer_norm(args, maker.stream()) : add_rms_norm(args, maker.stream());

  AddNormBackwardArgs back;
  back.dnormed = maker.normal({rows, width}, type),
  back.dsum_in = maker.normal({rows, width}, type);
  back.sum = args.sum, back.weight = args.weight, back.mean = args.mean, back.rstd = args.rstd;
  back.dsum = maker.empty({rows, width}, type);
  back.dweight = {maker.normal({width}, DType::f32), 1};
  if (layer) back.dbias = {maker.empty({width}, DType::f32), 0};
  Doubles dweight = to_doubles(back.dweight.out), dbias(static_cast<size_t>(width));
  layer ? add_layer_norm_backward(back, maker.stream())
        : add_rms_norm_backward(back, maker.stream());

  const Doubles s = to_doubles(args.sum), w = to_doubles(args.weight), x = to_doubles(args.x);
  const Doubles r = has_residual ? to_doubles(args.residual) : Doubles(x.size());
  const Doubles b = layer ? to_doubles(args.bias) : Doubles(w.size());
  const Doubles d = to_doubles(back.dnormed), d_in = to_doubles(back.dsum_in);
  Doubles sum(x), normed(x.size()), dsum(x.size());
  for (size_t i = 0; i < x.size(); ++i) sum[i] += r[i];
  for (int64_t t = 0; t < rows; ++t) {
    double mean = 0, square = 0, g_mean = 0, gx_mean = 0;
    for (int64_t i = 0; i < width && layer; ++i)
      mean += at(s, t * width + i) / static_cast<double>(width);
    for (int64_t i = 0; i < width; ++i)
      square += std::pow(at(s, t * width + i) - mean, 2) / static_cast<double>(width);
    const double rstd = 1 / std::sqrt(square + static_cast<double>(args.eps));
    for (int64_t i = 0; i < width; ++i) {
      const int64_t j = t * width + i;
      const double xhat = (at(s, j) - mean) * rstd, g = at(d, j) * at(w, i);
      normed[static_cast<size_t>(j)] = xhat * at(w, i) + at(b, i);
      g_mean += layer ? g / static_cast<double>(width) : 0;
      gx_mean += g * xhat / static_cast<double>(width);
      dweight[static_cast<size_t>(i)] += at(d, j) * xhat;
      dbias[static_cast<size_t>(i)] += at(d, j);
    }
    for (int64_t i = 0; i < width; ++i) {
      const int64_t j = t * width + i;
      const double xhat = (at(s, j) - mean) * rstd;
      dsum[static_cast<size_t>(j)] =
          rstd * (at(d, j) * at(w, i) - g_mean - xhat * gx_mean) + at(d_in, j);
    }
  }
  expect_near(args.sum, sum, "sum");
  expect_near(args.normed, normed, "normed");
  expect_near(back.dsum, dsum, "dsum");
  expect_near(back.dweight.out, dweight, "dweight");
  if (layer) expect_near(back.dbias.out, dbias, "dbias");
}

TEST(CpuNorms, MatchFp64) {
  for (const DType type : kTypes) {
    for (const bool layer : {false, true}) {
      for (const bool residual : {false, true}) {
        check_norm({layer, residual, type, 7, 33});
        check_norm({layer, residual, type, 71, 48});
        check_norm({layer, residual, type, 1, 5});
        check_norm({layer, residual, type, 3, 1027});
      }
    }
  }
}

TEST(CpuNorms, NoRowsGiveNoGradient) {
  Maker maker;
  AddNormBackwardArgs args;
  args.sum = args.dsum = args.dnormed = maker.empty({0, 4}, DType::f32);
  args.weight = maker.normal({4}, DType::f32);
  args.rstd = maker.empty({0}, DType::f32);
  args.dweight = {maker.normal({4}, DType::f32), 0};
  add_rms_norm_backward(args, maker.stream());
  EXPECT_EQ(to_doubles(args.dweight.out), Doubles(4));
}

TEST(CpuRope, RotatesPairs) {
  Maker maker;
  for (const DType type : kTypes) {
    for (const bool interleaved : {false, true}) {
      const int64_t tokens = 5, heads = 3, dim = 46, half = 21;
      const Tensor cos = maker.normal({9, half}, DType::f32),
                   sin = maker.normal({9, half}, DType::f32);
      const Tensor positions = maker.integers({8, 0, 3, 3, 1});
      const Tensor x = maker.normal({heads, tokens, dim}, type).transpose(0, 1);
      Tensor out = maker.empty({tokens, heads, dim}, type);
      const Doubles c = to_doubles(cos), s = to_doubles(sin), v = to_doubles(x);
      for (const bool inverse : {false, true}) {
        rope({x, out, cos, sin, positions, interleaved, inverse}, maker.stream());
        Doubles want(v);
        for (int64_t row = 0; row < tokens * heads; ++row) {
          const int64_t angle = positions.data<int32_t>()[row / heads] * half;
          for (int64_t i = 0; i < half; ++i) {
            const int64_t a = row * dim + (interleaved ? 2 * i : i),
                          b = interleaved ? a + 1 : a + half;
            const double sine = inverse ? -at(s, angle + i) : at(s, angle + i),
                         cosine = at(c, angle + i);
            want[static_cast<size_t>(a)] = at(v, a) * cosine - at(v, b) * sine;
            want[static_cast<size_t>(b)] = at(v, b) * cosine + at(v, a) * sine;
          }
        }
        expect_near(out, want, "rope");
      }
      Tensor in_place = maker.empty({tokens, heads, dim}, type);
      copy({x, in_place}, maker.stream());
      rope({in_place, in_place, cos, sin, positions, interleaved, true}, maker.stream());
      EXPECT_TRUE(same_bits(in_place, out));
    }
  }
  const Tensor x = maker.normal({1, 1, 4}, DType::f32), table = maker.normal({2, 2}, DType::f32);
  EXPECT_THROW(rope({x, x, table, table, maker.integers({2})}, maker.stream()), Error);
}

TEST(CpuEmbedding, LooksUpAndAddsGradientsByRow) {
  Maker maker;
  for (const DType type : kTypes) {
    const int64_t rows = 11, width = 1027;
    const std::vector<int32_t> ids{3, 10, 3, 0, 3, 7, 0};
    const Tensor table = maker.normal({rows, width}, type), dout = maker.normal({7, width}, type);
    Tensor out = maker.empty({7, width}, type);
    embedding({maker.integers(ids), table, out}, maker.stream());
    const Doubles entries = to_doubles(table), d = to_doubles(dout), found = to_doubles(out);
    for (const float beta : {0.0f, 1.0f}) {
      Tensor dtable = maker.normal({rows, width}, DType::f32);
      std::vector<float> want = to_floats(dtable);
      for (float& v : want) v *= beta;
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t i = 0; i < width; ++i) {
          float sum = 0;
          for (size_t t = 0; t < ids.size(); ++t) {
            if (ids[t] == row)
              sum += static_cast<float>(at(d, static_cast<int64_t>(t) * width + i));
          }
          want[static_cast<size_t>(row * width + i)] += sum;
        }
      }
      embedding_backward({maker.integers(ids), dout, {dtable, beta}}, maker.stream());
      EXPECT_EQ(to_floats(dtable), want);
    }
    for (int64_t i = 0; i < 7 * width; ++i) {
      EXPECT_EQ(at(found, i), at(entries, ids[static_cast<size_t>(i / width)] * width + i % width));
    }
    Tensor dtable = maker.normal({rows, width}, DType::f32);
    EXPECT_THROW(embedding({maker.integers({0, 0, 0, 0, 0, 0, 11}), table, out}, maker.stream()),
                 Error);
    EXPECT_THROW(embedding_backward({maker.integers({0, 0, 0, 0, 0, 0, -1}), dout, {dtable, 0}},
                                    maker.stream()),
                 Error);
  }
}

TEST(CpuCrossEntropy, MatchesFp64) {
  Maker maker;
  for (const DType type : kTypes) {
    for (const DType gradient : kTypes) {
      for (const int64_t vocabulary : {1, 19, 4099}) {
        const int64_t rows = 6;
        const Tensor logits = maker.normal({rows, vocabulary}, type, 1);
        const std::vector<int32_t> labels{0, static_cast<int32_t>(vocabulary - 1), -100, 0, 0, 0};
        const Tensor weights = maker.values({1, 1, 0, 0.5, 1, 2}, DType::f32);
        Tensor loss = maker.empty({rows}, DType::f32),
               dlogits = maker.empty({rows, vocabulary}, gradient);
        cross_entropy({logits, maker.integers(labels), weights, loss, dlogits}, maker.stream());
        const Doubles x = to_doubles(logits), w = to_doubles(weights);
        Doubles want_loss(rows), want(x.size());
        for (int64_t t = 0; t < rows; ++t) {
          if (at(w, t) == 0) continue;
          double sum = 0;
          for (int64_t v = 0; v < vocabulary; ++v) sum += std::exp(at(x, t * vocabulary + v));
          for (int64_t v = 0; v < vocabulary; ++v) {
            const bool hit = v == labels[static_cast<size_t>(t)];
            want[static_cast<size_t>(t * vocabulary + v)] =
                at(w, t) * (std::exp(at(x, t * vocabulary + v)) / sum - hit);
            if (hit) want_loss[static_cast<size_t>(t)] = std::log(sum) - at(x, t * vocabulary + v);
          }
        }
        if (vocabulary > 1) expect_near(loss, want_loss, "loss");
        expect_near(dlogits, want, "dlogits");
        if (type == gradient) {
          Tensor in_place = maker.empty({rows, vocabulary}, type);
          copy({logits, in_place}, maker.stream());
          cross_entropy({in_place, maker.integers(labels), weights, loss, in_place},
                        maker.stream());
          EXPECT_TRUE(same_bits(in_place, dlogits));
        }
      }
    }
  }
}

TEST(CpuCrossEntropy, LogitsOfMinusInfinityHaveNoShare) {
  Maker maker;
  const double none = -std::numeric_limits<double>::infinity();
  const Tensor logits = maker.values({300, none, 300, none, -1000}, DType::f32).view({1, 5});
  Tensor loss = maker.empty({1}, DType::f32), dlogits = maker.empty({1, 5}, DType::f32);
  const Tensor weights = maker.values({1}, DType::f32);
  cross_entropy({logits, maker.integers({2}), weights, loss, dlogits}, maker.stream());
  EXPECT_EQ(to_doubles(dlogits), (Doubles{0.5, 0, -0.5, 0, 0}));
  EXPECT_FLOAT_EQ(loss.data<float>()[0], std::log(2.0f));
  EXPECT_THROW(cross_entropy({logits, maker.integers({5}), weights, loss, dlogits}, maker.stream()),
               Error);
}

TEST(CpuDropout, IsTheMaskOfItsContract) {
  Maker maker;
  for (const DType type : kTypes) {
    for (const int64_t width : {1, 6, 16, 75}) {
      const int64_t samples = 2, positions = 3;
      Tensor numbers = maker.empty({samples}, DType::i64);
      numbers.data<int64_t>()[0] = 5;
      numbers.data<int64_t>()[1] = (int64_t{9} << 32) + 1;
      const Tensor x = maker.normal({samples * positions, width}, type);
      Tensor out = maker.empty(x.shape(), type);
      const DropoutArgs::Mask mask{0.3f, 1234567890123ull, 42, numbers};
      dropout({mask, x, out}, maker.stream());
      Doubles want = to_doubles(x);
      const uint64_t key = mask.seed * 0x9E3779B97F4A7C15ull ^ mask.stream;
      for (int64_t i = 0; i < x.elements(); ++i) {
        const int64_t row = i / width, channel = i % width;
        const auto sample = static_cast<uint64_t>(numbers.data<int64_t>()[row / positions]);
        const PhiloxCounter words =
            philox({static_cast<uint32_t>(channel / 4), static_cast<uint32_t>(row % positions),
                    static_cast<uint32_t>(sample), static_cast<uint32_t>(sample >> 32)},
                   {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)});
        const bool kept =
            words[static_cast<size_t>(channel % 4)] >= static_cast<double>(0.3f) * 4294967296.0;
        want[static_cast<size_t>(i)] *= kept ? 1 / (1 - static_cast<double>(0.3f)) : 0;
      }
      expect_near(out, want, "dropout");
      for (size_t i = 0; i < want.size(); ++i) EXPECT_EQ(want[i] == 0, to_doubles(out)[i] == 0);
    }
  }
}

}  // namespace
}  // namespace megatron::kernels::cpu
