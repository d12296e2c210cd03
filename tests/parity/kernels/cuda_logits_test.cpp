// Rows of logits with padding between them, as in CUDA's output layer: the bits equal those of
// contiguous rows, and the padding is not written.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cases/inputs.h"

namespace megatron::kernels {
namespace {

constexpr int64_t kRows = 5;

class CudaLogits : public ::testing::TestWithParam<int64_t> {
 protected:
  int64_t columns() const { return GetParam(); }
  // Rows filled with NaN. If `apart`, each is padded to a multiple of 128 elements.
  Tensor rows(DType type, bool apart) {
    const int64_t length = apart ? (columns() + 127) / 128 * 128 : columns();
    Tensor whole =
        Tensor::empty(runtime_.arena(MemoryClass::activations), {kRows, length}, type, "");
    table(stream()).fill({.out = whole, .value = NAN}, stream());
    return whole;
  }
  Tensor seen(const Tensor& whole) const { return whole.slice(1, 0, columns()); }
  Tensor logits(bool apart) {
    Tensor whole = rows(DType::f32, apart);
    table(stream()).copy(
        {.x = inputs_.normal("logits", {kRows, columns()}, DType::f32, 4), .out = seen(whole)},
        stream());
    return whole;
  }
  Tensor labels() {
    std::vector<double> values;
    for (int64_t t = 0; t < kRows; ++t)
      values.push_back(t == 3 ? -100 : static_cast<double>(t * 37 % columns()));
    return inputs_.values("labels", {kRows}, DType::i32, values);
  }
  Tensor weights() {
    return inputs_.values("weights", {kRows}, DType::f32,
                          std::vector<double>{0.5, 0.25, 1, 0, 0.5});
  }
  Tensor make(Shape shape) {
    return Tensor::empty(runtime_.arena(MemoryClass::activations), shape, DType::f32, "test");
  }
  Stream& stream() { return runtime_.stream(); }
  void expect_rows(const Tensor& whole, const Tensor& dense) {
    EXPECT_EQ(to_doubles(seen(whole)), to_doubles(dense));
    for (const double between : to_doubles(whole.slice(1, columns(), whole.size(1) - columns())))
      ASSERT_TRUE(std::isnan(between)) << between;
  }

  Runtime runtime_{{DeviceKind::cuda, 0}, 1};
  Inputs inputs_{runtime_};
};

TEST_P(CudaLogits, MayLieApartInCrossEntropy) {
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    Tensor losses[2], gradients[2];
    for (const bool apart : {false, true}) {
      losses[apart] = make({kRows});
      gradients[apart] = rows(type, apart);
      table(stream()).cross_entropy({.logits = seen(logits(apart)),
                                     .labels = labels(),
                                     .weights = weights(),
                                     .loss = losses[apart],
                                     .dlogits = seen(gradients[apart])},
                                    stream());
    }
    EXPECT_EQ(to_doubles(losses[1]), to_doubles(losses[0]));
    expect_rows(gradients[1], gradients[0]);
  }
}

// In place. The label of some rows is the first column of the next rank.
TEST_P(CudaLogits, MayLieApartInPartsOfTheVocabulary) {
  Tensor losses[2], all_stats[2], gradients[2];
  for (const bool apart : {false, true}) {
    losses[apart] = make({kRows});
    all_stats[apart] = make({1, kRows, 3});
    gradients[apart] = logits(apart);
    const Tensor part = seen(gradients[apart]);
    std::vector<double> of_rows(kRows, static_cast<double>(columns()));
    of_rows[1] = 0;
    const Tensor label = inputs_.values("labels", {kRows}, DType::i32, of_rows);
    table(stream()).vocabulary_stats({.logits = part,
                                      .labels = label,
                                      .weights = weights(),
                                      .exponentials = part,
                                      .stats = all_stats[apart].select(0, 0)},
                                     stream());
    table(stream()).vocabulary_cross_entropy({.stats = all_stats[apart],
                                              .exponentials = part,
                                              .labels = label,
                                              .weights = weights(),
                                              .loss = losses[apart],
                                              .dlogits = part},
                                             stream());
  }
  EXPECT_EQ(to_doubles(all_stats[1]), to_doubles(all_stats[0]));
  EXPECT_EQ(to_doubles(all_stats[1])[2], -INFINITY);
  EXPECT_EQ(to_doubles(losses[1]), to_doubles(losses[0]));
  expect_rows(gradients[1], gradients[0]);
}

INSTANTIATE_TEST_SUITE_P(Columns, CudaLogits, ::testing::Values(1, 6, 127, 130, 5001));

TEST(HostLogits, AreContiguous) {
  Runtime runtime({DeviceKind::cpu, 0}, 1);
  Inputs inputs(runtime);
  const Tensor logits = inputs.normal("logits", {2, 8}, DType::f32).slice(1, 0, 7),
               labels = inputs.integers("labels", {2}, DType::i32, 0, 7),
               weights = inputs.normal("weights", {2}, DType::f32);
  EXPECT_THROW(
      table(DeviceKind::cpu)
          .cross_entropy({.logits = logits, .labels = labels, .weights = weights, .loss = weights},
                         runtime.stream()),
      InternalError);
}

}  // namespace
}  // namespace megatron::kernels
