// Several ranks that compute parts of one tensor: slices of rows, of heads and of the vocabulary.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cases/inputs.h"

namespace megatron::kernels {
namespace {

class Slices : public ::testing::TestWithParam<DeviceKind> {
 protected:
  Slices() : runtime_({GetParam(), 0}, 2), inputs_(runtime_) {}
  const Table& kernels() { return table(runtime_.stream()); }
  Stream& stream() { return runtime_.stream(); }
  DType wide() const { return GetParam() == DeviceKind::reference ? DType::f64 : DType::f32; }
  Tensor make(Shape shape, DType type) {
    return Tensor::empty(runtime_.arena(MemoryClass::activations), shape, type, "test");
  }

  Runtime runtime_;
  Inputs inputs_;
};

TEST_P(Slices, DropoutOfRowsIsThatOfTheWhole) {
  for (const DType type : {wide(), DType::bf16}) {
    const Tensor x = inputs_.normal("x", {3 * 8, 37}, type);
    DropoutArgs::Mask mask{.p = 0.4f, .seed = 3, .stream = 99};
    mask.rows.sample_ids = inputs_.integers("sample_ids", {3}, DType::i64, 0, int64_t{1} << 40);
    const Tensor whole = make(x.shape(), type);
    kernels().dropout({.mask = mask, .x = x, .out = whole}, stream());
    mask.rows.length = 8;
    for (const auto& [begin, rows] : {std::pair<int64_t, int64_t>{0, 24},
                                      {0, 12},
                                      {12, 12},
                                      {7, 2},
                                      {23, 1},
                                      {24, 0},
                                      {5, 19}}) {
      mask.rows.first = begin;
      const Tensor out = make({rows, 37}, type);
      kernels().dropout({.mask = mask, .x = x.slice(0, begin, rows), .out = out}, stream());
      EXPECT_EQ(to_doubles(out), to_doubles(whole.slice(0, begin, rows))) << begin << "+" << rows;
    }
  }
}

TEST_P(Slices, RowsOutsideOfTheSamplesAreRefused) {
  const Tensor x = inputs_.normal("x", {4, 8}, wide());
  DropoutArgs::Mask mask{.p = 0.4f};
  mask.rows.sample_ids = inputs_.integers("sample_ids", {2}, DType::i64, 0, 100);
  mask.rows.length = 3;
  mask.rows.first = 3;
  EXPECT_THROW(kernels().dropout({.mask = mask, .x = x, .out = x}, stream()), std::exception);
  mask.rows.first = -1;
  EXPECT_THROW(kernels().dropout({.mask = mask, .x = x, .out = x}, stream()), std::exception);
  mask.rows.first = 1;
  mask.rows.length = 0;
  EXPECT_THROW(kernels().dropout({.mask = mask, .x = x, .out = x}, stream()), std::exception);
}

// Eight query heads and four key heads. Slices of whole key heads have the bits of the whole in
// every tensor; a slice of one key head's queries has them in tensors that are not summed over
// queries.
TEST_P(Slices, AttentionOfHeadsIsThatOfTheWhole) {
  constexpr int64_t kB = 2, kT = 70, kHeads = 8, kKeyHeads = 4, kD = 16;
  for (const DType type : {wide(), DType::bf16}) {
    const Tensor q = inputs_.normal("q", {kB, kT, kHeads, kD}, type),
                 k = inputs_.normal("k", {kB, kT, kKeyHeads, kD}, type),
                 v = inputs_.normal("v", {kB, kT, kKeyHeads, kD}, type),
                 dout = inputs_.normal("dout", {kB, kT, kHeads, kD}, type);
    const auto run = [&](int64_t begin, int64_t heads, int64_t key_begin, int64_t kv_heads) {
      DropoutArgs::Mask mask{.p = 0.3f, .seed = 5, .stream = 17};
      mask.rows.sample_ids = inputs_.integers("sample_ids", {kB}, DType::i64, 0, int64_t{1} << 40);
      mask.first_head = begin;
      AttentionArgs args{.q = q.slice(2, begin, heads),
                         .k = k.slice(2, key_begin, kv_heads),
                         .v = v.slice(2, key_begin, kv_heads),
                         .scale = 0.25,
                         .dropout = mask};
      args.out = make({kB, kT, heads, kD}, type);
      args.lse = make({kB, heads, kT}, accumulator(type));
      kernels().attention(args, stream());
      AttentionBackwardArgs back{.q = args.q, .k = args.k, .v = args.v, .out = args.out};
      back.lse = args.lse;
      back.dout = dout.slice(2, begin, heads);
      back.scale = args.scale;
      back.dropout = mask;
      back.dq = make(args.q.shape(), type);
      back.dk = make(args.k.shape(), type);
      back.dv = make(args.v.shape(), type);
      kernels().attention_backward(back, stream());
      return std::vector<Tensor>{args.out, back.dq, back.dk, back.dv};
    };
    const std::vector<Tensor> whole = run(0, kHeads, 0, kKeyHeads);
    for (const auto& [begin, heads] : {std::pair<int64_t, int64_t>{0, 4}, {4, 4}, {2, 2}, {5, 1}}) {
      const int64_t key_begin = begin / 2, kv_heads = std::max<int64_t>(1, heads / 2);
      const std::vector<Tensor> part = run(begin, heads, key_begin, kv_heads);
      for (size_t i = 0; i < 4; ++i) {
        if (i >= 2 && heads == 1) continue;
        const Tensor expected =
            i < 2 ? whole[i].slice(2, begin, heads) : whole[i].slice(2, key_begin, kv_heads);
        EXPECT_EQ(to_doubles(part[i]), to_doubles(expected)) << "heads from " << begin << ", " << i;
      }
    }
  }
}

TEST_P(Slices, PartsOfATableAddUpToTheWhole) {
  const Tensor table = inputs_.normal("table", {11, 9}, wide()),
               ids = inputs_.integers("ids", {30}, DType::i32, 0, 11),
               dout = inputs_.normal("dout", {30, 9}, wide());
  const Tensor whole = make({30, 9}, wide()), dwhole = make({11, 9}, wide());
  kernels().embedding({.ids = ids, .table = table, .out = whole}, stream());
  kernels().embedding_backward({.ids = ids, .dout = dout, .dtable = {dwhole, 0}}, stream());
  std::vector<double> sum(30 * 9);
  for (const auto& [begin, rows] : {std::pair<int64_t, int64_t>{0, 4}, {4, 7}, {11, 0}}) {
    const Tensor out = make({30, 9}, wide()), dtable = make({rows, 9}, wide());
    kernels().embedding({.ids = ids,
                         .table = table.slice(0, begin, rows),
                         .out = out,
                         .first = begin,
                         .part = true},
                        stream());
    const std::vector<double> values = to_doubles(out);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
    kernels().embedding_backward(
        {.ids = ids, .dout = dout, .dtable = {dtable, 0}, .first = begin, .part = true}, stream());
    EXPECT_EQ(to_doubles(dtable), to_doubles(dwhole.slice(0, begin, rows)));
  }
  EXPECT_EQ(sum, to_doubles(whole));
}

// Computes the loss and gradient of cross_entropy from parts of the vocabulary, with exponentials
// in place.
void expect_cross_entropy(Runtime& runtime, Inputs& inputs, DType type,
                          const std::vector<int64_t>& parts) {
  constexpr int64_t kRows = 9, kColumns = 130;
  const Table& kernels = table(runtime.stream());
  Stream& stream = runtime.stream();
  const auto make = [&](Shape shape, DType of) {
    return Tensor::empty(runtime.arena(MemoryClass::activations), shape, of, "test");
  };
  const Tensor logits = inputs.normal("logits", {kRows, kColumns}, type, 4);
  std::vector<double> labels, weights;
  for (int64_t t = 0; t < kRows; ++t) {
    labels.push_back(t == 4 ? -100 : static_cast<double>(t * 37 % kColumns));
    weights.push_back(t == 4 ? 0 : 0.5);
  }
  const Tensor label = inputs.values("labels", {kRows}, DType::i32, labels),
               weight = inputs.values("weights", {kRows}, type, weights);
  const Tensor loss = make({kRows}, type), dlogits = make({kRows, kColumns}, type);
  kernels.cross_entropy(
      {.logits = logits, .labels = label, .weights = weight, .loss = loss, .dlogits = dlogits},
      stream);
  const auto count = static_cast<int64_t>(parts.size());
  const Tensor stats = make({count, kRows, 3}, type);
  std::vector<Tensor> exponentials;
  int64_t first = 0;
  for (int64_t rank = 0; rank < count; ++rank) {
    const Tensor part = make({kRows, parts[static_cast<size_t>(rank)]}, type);
    kernels.copy({.x = logits.slice(1, first, part.size(1)), .out = part}, stream);
    kernels.vocabulary_stats({.logits = part,
                              .labels = label,
                              .weights = weight,
                              .first = first,
                              .exponentials = part,
                              .stats = stats.select(0, rank)},
                             stream);
    exponentials.push_back(part);
    first += part.size(1);
  }
  ASSERT_EQ(first, kColumns);
  const double bound = type == DType::f64 ? 1e-14 : 1e-6;
  const auto expect_near = [&](const Tensor& a, const Tensor& b) {
    const std::vector<double> x = to_doubles(a), y = to_doubles(b);
    ASSERT_EQ(x.size(), y.size());
    for (size_t i = 0; i < x.size(); ++i)
      ASSERT_NEAR(x[i], y[i], bound * std::max(1.0, std::abs(y[i])));
  };
  first = 0;
  for (int64_t rank = 0; rank < count; ++rank) {
    const Tensor part = exponentials[static_cast<size_t>(rank)], of_rank = make({kRows}, type);
    kernels.vocabulary_cross_entropy({.stats = stats,
                                      .exponentials = part,
                                      .labels = label,
                                      .weights = weight,
                                      .first = first,
                                      .rank = rank,
                                      .loss = of_rank,
                                      .dlogits = part},
                                     stream);
    expect_near(of_rank, loss);
    expect_near(part, dlogits.slice(1, first, part.size(1)));
    first += part.size(1);
  }
}

TEST_P(Slices, PartsOfTheVocabularyGiveTheCrossEntropy) {
  for (const std::vector<int64_t>& parts :
       {std::vector<int64_t>{130}, {65, 65}, {50, 50, 30}, {1, 128, 1, 0}}) {
    expect_cross_entropy(runtime_, inputs_, wide(), parts);
  }
}

// A NaN logit on any rank reaches every rank.
TEST_P(Slices, NaNReachesEveryRank) {
  const Tensor logits = inputs_.normal("logits", {1, 40}, wide());
  Tensor one = logits.slice(1, 7, 1);
  copy_from(one, std::vector<double>{NAN});
  const Tensor label = inputs_.values("labels", {1}, DType::i32, std::vector<double>{30}),
               weight = inputs_.values("weights", {1}, wide(), std::vector<double>{1}),
               stats = make({2, 1, 3}, wide());
  const Tensor parts[] = {make({1, 20}, wide()), make({1, 20}, wide())};
  for (int64_t rank = 0; rank < 2; ++rank) {
    kernels().copy({.x = logits.slice(1, 20 * rank, 20), .out = parts[rank]}, stream());
    kernels().vocabulary_stats({.logits = parts[rank],
                                .labels = label,
                                .weights = weight,
                                .first = 20 * rank,
                                .exponentials = parts[rank],
                                .stats = stats.select(0, rank)},
                               stream());
  }
  for (int64_t rank = 0; rank < 2; ++rank) {
    const Tensor loss = make({1}, wide());
    kernels().vocabulary_cross_entropy({.stats = stats,
                                        .exponentials = parts[rank],
                                        .labels = label,
                                        .weights = weight,
                                        .first = 20 * rank,
                                        .rank = rank,
                                        .loss = loss,
                                        .dlogits = parts[rank]},
                                       stream());
    EXPECT_TRUE(std::isnan(to_doubles(loss)[0]));
    for (const double d : to_doubles(parts[rank])) EXPECT_TRUE(std::isnan(d));
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, Slices, ::testing::Values(DeviceKind::reference, DeviceKind::cpu),
                         [](const auto& info) { return std::string(name(info.param)); });

}  // namespace
}  // namespace megatron::kernels
