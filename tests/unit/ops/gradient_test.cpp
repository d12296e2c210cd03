// Checks the gradient of every op by central differences, and the CPU's attention with the
// reference.
#include <gtest/gtest.h>

#include <cmath>

#include "base/philox.h"
#include "base/tolerances.h"
#include "ops/attention.h"
#include "ops/gradient_check.h"
#include "ops/linear.h"
#include "ops/linear_cross_entropy.h"

namespace megatron::ops {
namespace {

Tensor drawn(Runtime& runtime, Shape shape, DType type, uint64_t seed) {
  Tensor t = Tensor::empty(runtime.arena(MemoryClass::activations), shape, type, "test");
  std::vector<double> values;
  for (int64_t i = 0; i < shape.elements(); ++i)
    values.push_back(RandomStream(seed, "test").normal(static_cast<uint64_t>(i)));
  copy_from(t, std::span<const double>(values));
  return t;
}

TEST(Gradient, OfEveryOpAgreesWithCentralDifferences) {
  Runtime runtime({DeviceKind::reference, 0}, 1);
  for (const GradientCase& c : gradient_cases()) {
    const GradientError error = gradient_error(c, runtime);
    EXPECT_LE(error.worst, tolerance::kDifferenceOp) << c.name << ", " << error.tensor;
  }
}

void set_all_gradients_twice(const kernels::AddNormBackwardArgs& args, Stream& stream) {
  kernels::table(stream).add_rms_norm_backward(args, stream);
  kernels::AddNormBackwardArgs again = args;
  again.dweight.beta = 1;
  kernels::table(stream).add_rms_norm_backward(again, stream);
}

TEST(Gradient, CheckNoticesAWrongGradient) {
  Runtime runtime({DeviceKind::reference, 0}, 1);
  kernels::Table table = kernels::table(DeviceKind::reference);
  table.add_rms_norm_backward = set_all_gradients_twice;
  for (const GradientCase& c : gradient_cases()) {
    if (c.name == "add_rms_norm") {
      const GradientError error = gradient_error(c, runtime, &table);
      EXPECT_NEAR(error.worst, 1, 1e-6);
      EXPECT_EQ(error.tensor, "weight 0");
    }
  }
}

// Output of attention and gradients of q, k, v.
std::vector<std::vector<double>> attend(Runtime& runtime, DType type, bool causal, bool confined) {
  Tape tape(runtime);
  const Var q = tape.leaf(drawn(runtime, {2, 37, 6, 8}, type, 1)),
            k = tape.leaf(drawn(runtime, {2, 37, 3, 8}, type, 2)),
            v = tape.leaf(drawn(runtime, {2, 37, 3, 8}, type, 3));
  AttentionOptions options{.scale = 0.35f, .causal = causal};
  if (confined) {
    options.window_start =
        Tensor::empty(runtime.arena(MemoryClass::activations), {2, 37}, DType::i32, "begins");
    for (int32_t i = 0; i < 2 * 37; ++i)
      options.window_start.data<int32_t>()[i] = i % 37 / (i < 37 ? 5 : 36) * (i < 37 ? 5 : 36);
  }
  const Var out = attention(tape, {q, k, v}, options);
  tape.set_gradient(out, drawn(runtime, out.value.shape(), type, 4));
  tape.backward();
  return {to_doubles(out.value), to_doubles(tape.gradient(q)), to_doubles(tape.gradient(k)),
          to_doubles(tape.gradient(v))};
}

TEST(Attention, OfTheCpuIsTheReferences) {
  Runtime cpu({DeviceKind::cpu, 0}, 2), reference({DeviceKind::reference, 0}, 2);
  for (const auto& [causal, confined] : {std::pair{true, false}, {false, false}, {true, true}}) {
    const auto got = attend(cpu, DType::f32, causal, confined),
               want = attend(reference, DType::f64, causal, confined);
    for (size_t i = 0; i < got.size(); ++i) {
      double worst = 0;
      for (size_t j = 0; j < got[i].size(); ++j)
        worst = std::max(worst, std::abs(got[i][j] - want[i][j]));
      EXPECT_LE(worst, 1e-5) << "causal " << causal << " confined " << confined << " tensor " << i;
    }
  }
}

// Output and gradient of packed heads, computed by one op or by two.
std::vector<std::vector<double>> attend_packed(Runtime& runtime, DType type, bool rotates,
                                               bool split) {
  constexpr int64_t kBatch = 2, kLength = 37, kHeads = 6, kKeyHeads = 3, kSize = 8;
  Tape tape(runtime);
  const Var qkv =
      tape.leaf(drawn(runtime, {kBatch * kLength, (kHeads + 2 * kKeyHeads) * kSize}, type, 1));
  PackedHeads packed{qkv, kBatch, kHeads, kKeyHeads, {}};
  if (rotates) {
    packed.rotary = {drawn(runtime, {kLength, kSize / 2 - 1}, DType::f32, 2),
                     drawn(runtime, {kLength, kSize / 2 - 1}, DType::f32, 3),
                     Tensor::empty(runtime.arena(MemoryClass::activations), {kBatch * kLength},
                                   DType::i32, "positions")};
    for (int32_t i = 0; i < kBatch * kLength; ++i)
      packed.rotary.positions.data<int32_t>()[i] = i * 5 % kLength;
  }
  const AttentionOptions options{.scale = 0.35f};
  Var out;
  if (split) {
    const Heads heads = split_heads(tape, std::move(packed));
    for (const Var& part : {heads.q, heads.k, heads.v})
      EXPECT_TRUE(part.value.same_storage(qkv.value));
    out = attention(tape, heads, options);
  } else {
    out = attention(tape, std::move(packed), options);
  }
  tape.set_gradient(out, drawn(runtime, out.value.shape(), type, 4));
  tape.backward();
  return {to_doubles(out.value), to_doubles(tape.gradient(qkv))};
}

TEST(Attention, OfPackedHeadsIsThatOfItsParts) {
  Runtime runtime({DeviceKind::cpu, 0}, 2);
  for (const DType type : {DType::f32, DType::bf16}) {
    std::vector<std::vector<double>> plain;
    for (const bool rotates : {false, true}) {
      const auto whole = attend_packed(runtime, type, rotates, false);
      EXPECT_EQ(whole, attend_packed(runtime, type, rotates, true)) << name(type) << rotates;
      EXPECT_NE(whole, plain);
      plain = whole;
    }
  }
}

// Enough rows for several chunks of the loss: the result equals that of one chunk.
TEST(LinearCrossEntropy, ChunksDoNotShow) {
  Runtime runtime({DeviceKind::cpu, 0}, 2);
  constexpr int64_t kTokens = 4100, kVocabulary = 11, kHidden = 4;
  Parameter w{.name = "w", .value = drawn(runtime, {kVocabulary, kHidden}, DType::f32, 5)};
  w.uses[0].grad = drawn(runtime, {kVocabulary, kHidden}, DType::f32, 6);
  const Tensor x = drawn(runtime, {kTokens, kHidden}, DType::f32, 7);
  Tensor labels =
      Tensor::empty(runtime.arena(MemoryClass::activations), {kTokens}, DType::i32, "labels");
  Tensor weights =
      Tensor::empty(runtime.arena(MemoryClass::activations), {kTokens}, DType::f32, "weights");
  for (int64_t i = 0; i < kTokens; ++i) {
    labels.data<int32_t>()[i] = static_cast<int32_t>(i * 7 % kVocabulary);
    weights.data<float>()[i] = i % 5 == 0 ? 0.0f : 1.0f;
  }
  const auto run = [&](int64_t begin, int64_t count) {
    Tape tape(runtime);
    const Var in = tape.leaf(x.slice(0, begin, count));
    const Tensor loss = linear_cross_entropy(tape, in, w, labels.slice(0, begin, count),
                                             weights.slice(0, begin, count));
    tape.backward();
    return std::pair(to_doubles(loss), to_doubles(tape.gradient(in)));
  };
  w.uses[0].started = false;
  const auto whole = run(0, kTokens);
  const std::vector<double> dw = to_doubles(w.uses[0].grad);
  w.uses[0].started = false;
  std::vector<double> loss, dx;
  for (const auto& [begin, count] : {std::pair<int64_t, int64_t>{0, 4096}, {4096, 4}}) {
    const auto [l, d] = run(begin, count);
    loss.insert(loss.end(), l.begin(), l.end());
    dx.insert(dx.end(), d.begin(), d.end());
  }
  EXPECT_EQ(whole.first, loss);
  EXPECT_EQ(whole.second, dx);
  EXPECT_EQ(dw, to_doubles(w.uses[0].grad));
}

}  // namespace
}  // namespace megatron::ops
