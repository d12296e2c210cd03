#include "nn/sequence_state.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "nn/attention.h"

namespace megatron::nn {
namespace {

constexpr int64_t kHidden = 16, kHeads = 4, kKeyHeads = 2, kHeadSize = 4, kCapacity = 10;

class State : public ::testing::Test {
 protected:
  State()
      : builder_(runtime_, DType::f32,
                 [](const std::string& name, const Shape& shape) {
                   parallel::Placement placement;
                   placement.tensors = {{.name = name, .global = shape}};
                   return placement;
                 }),
        rotary_(runtime_, DType::f32, kCapacity, kHeadSize, {}),
        attention_(builder_, "a", {.heads = kHeads, .kv_heads = kKeyHeads, .head_size = kHeadSize},
                   {.hidden = kHidden,
                    .rotary = &rotary_,
                    .layer = 1,
                    .init = normal(0.5),
                    .output_init = normal(0.5)}),
        parameters_(builder_.take()),
        state_(shape(), DType::f32, runtime_) {
    for (const auto& p : parameters_) {
      parallel::allocate(std::vector{p.get()}, runtime_);
      parallel::initialize(*p, 3, runtime_.stream());
    }
  }

  static SequenceStateShape shape() {
    const LayerCache layer{.kv_heads = kKeyHeads, .head_size = kHeadSize};
    return {.sequences = 3, .capacity = kCapacity, .layers = {layer, layer}};
  }

  Tensor floats(int64_t tokens, int seed) {
    std::vector<float> values(static_cast<size_t>(tokens * kHidden));
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>((i * 37 + static_cast<size_t>(seed) * 101) % 64) / 32 - 1;
    Tensor t =
        Tensor::empty(runtime_.arena(MemoryClass::activations), {tokens, kHidden}, DType::f32, "x");
    copy_from(t, std::span<const float>(values));
    return t;
  }
  Tensor positions(int64_t sequences, int64_t begin, int64_t count) {
    std::vector<int32_t> values;
    for (int64_t b = 0; b < sequences; ++b)
      for (int64_t i = 0; i < count; ++i)
        values.push_back(static_cast<int32_t>(std::min(begin + i, kCapacity - 1)));
    Tensor t = Tensor::empty(runtime_.arena(MemoryClass::activations), {sequences * count},
                             DType::i32, "positions");
    copy_from(t, std::span<const int32_t>(values));
    return t;
  }
  std::vector<float> run(const Tensor& x, const Batch& batch, Tape::Mode mode = Tape::Mode::infer) {
    Tape tape(runtime_, mode);
    return to_floats(attention_(tape, x, batch, false).value);
  }
  std::vector<float> whole(const Tensor& x) {
    return run(x, {.sequences = 1, .length = x.size(0), .positions = positions(1, 0, x.size(0))});
  }
  // The next tokens of x for sequence `sequence`, at its length.
  std::vector<float> next(const Tensor& x, int64_t sequence, int64_t begin, int64_t count) {
    Batch batch{.sequences = 1, .length = count, .positions = positions(1, begin, count)};
    batch.continuation = state_.next(sequence, 1, count);
    return run(x.slice(0, begin, count), batch);
  }

  Runtime runtime_{{DeviceKind::cpu, 0}, 1};
  Builder builder_;
  RotaryTables rotary_;
  Attention attention_;
  std::vector<std::unique_ptr<parallel::ParameterSpec>> parameters_;
  SequenceState state_;
};

std::vector<float> rows(const std::vector<float>& all, int64_t begin, int64_t count) {
  return {all.begin() + begin * kHidden, all.begin() + (begin + count) * kHidden};
}

TEST_F(State, AttentionInPiecesIsAttentionAtOnce) {
  const Tensor x = floats(9, 1);
  const std::vector<float> expected = whole(x);
  int64_t begin = 0;
  for (const int64_t count : {1, 3, 2, 2, 1}) {
    EXPECT_EQ(next(x, 2, begin, count), rows(expected, begin, count)) << begin;
    state_.advance(2, std::vector<int64_t>{count});
    EXPECT_EQ(state_.lengths()[2], begin += count);
  }
  EXPECT_EQ(state_.lengths()[0], 0);
}

// A batch of two with lengths 2 and 5, three new tokens; of the first only one is true.
TEST_F(State, PaddingIsSeenByNone) {
  const Tensor x = floats(9, 1), y = floats(9, 2);
  const std::vector<float> of_x = whole(x), of_y = whole(y);
  next(x, 1, 0, 2);
  state_.advance(1, std::vector<int64_t>{2});
  next(y, 2, 0, 5);
  state_.advance(2, std::vector<int64_t>{5});
  Tensor both =
      Tensor::empty(runtime_.arena(MemoryClass::activations), {6, kHidden}, DType::f32, "both");
  std::vector<float> values = to_floats(x.slice(0, 2, 3));
  const std::vector<float> more = to_floats(y.slice(0, 5, 3));
  for (size_t i = kHidden; i < values.size(); ++i) values[i] = 1e6f;  // padding
  values.insert(values.end(), more.begin(), more.end());
  copy_from(both, std::span<const float>(values));
  Tensor at = positions(1, 0, 6);
  copy_from(at, std::span<const int32_t>(std::vector<int32_t>{2, 3, 4, 5, 6, 7}));
  Batch batch{.sequences = 2, .length = 3, .positions = at};
  batch.continuation = state_.next(1, 2, 3);
  const std::vector<float> out = run(both, batch);
  EXPECT_EQ(rows(out, 0, 1), rows(of_x, 2, 1));
  EXPECT_EQ(rows(out, 3, 3), rows(of_y, 5, 3));
  state_.advance(1, std::vector<int64_t>{1, 3});
  EXPECT_EQ(next(x, 1, 3, 4), rows(of_x, 3, 4));
  state_.advance(1, std::vector<int64_t>{4});
  EXPECT_EQ(next(y, 2, 8, 1), rows(of_y, 8, 1));
}

TEST_F(State, TokensBeyondTheCapacityArePadding) {
  const Tensor x = floats(kCapacity, 1), longer = floats(kCapacity + 4, 1);
  const std::vector<float> expected = whole(x);
  next(x, 0, 0, 7);
  state_.advance(0, std::vector<int64_t>{7});
  const std::vector<float> out = next(longer, 0, 7, 7);
  EXPECT_EQ(rows(out, 0, 3), rows(expected, 7, 3));
  for (const float value : to_floats(state_.keys(1).select(0, 1))) EXPECT_EQ(value, 0);
  EXPECT_THROW(state_.advance(0, std::vector<int64_t>{4}), InternalError);
  state_.advance(0, std::vector<int64_t>{3});
}

TEST_F(State, ForgetsAndGoesOn) {
  const Tensor x = floats(9, 1), y = floats(9, 2);
  next(y, 0, 0, 8);
  state_.advance(0, std::vector<int64_t>{8});
  state_.truncate(0, 0);
  const std::vector<float> expected = whole(x);
  EXPECT_EQ(next(x, 0, 0, 5), rows(expected, 0, 5));
  state_.advance(0, std::vector<int64_t>{5});
  state_.truncate(0, 2);
  EXPECT_EQ(next(x, 0, 2, 6), rows(expected, 2, 6));
  EXPECT_THROW(state_.truncate(0, 3), InternalError);
}

TEST_F(State, LayersHaveTheirOwn) {
  next(floats(9, 1), 0, 0, 4);
  for (const float value : to_floats(state_.keys(0))) EXPECT_EQ(value, 0);
  for (const float value : to_floats(state_.values(0))) EXPECT_EQ(value, 0);
  EXPECT_NE(to_floats(state_.values(1))[0], 0);
}

TEST_F(State, IsNotForTraining) {
  const Tensor x = floats(2, 1);
  Batch batch{.sequences = 1, .length = 2, .positions = positions(1, 0, 2)};
  batch.continuation = state_.next(0, 1, 2);
  EXPECT_THROW(run(x, batch, Tape::Mode::record), InternalError);
  EXPECT_THROW(state_.next(2, 2, 1), InternalError);
}

TEST_F(State, SaysWhenTheMachineIsTooSmall) {
  SequenceStateShape huge = shape();
  huge.capacity = int64_t{1} << 50;
  try {
    SequenceState state(huge, DType::f32, runtime_);
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("--batch-size"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace megatron::nn
