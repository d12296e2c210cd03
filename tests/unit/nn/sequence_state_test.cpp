#include "nn/sequence_state.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "nn/attention.h"

namespace megatron::nn {
namespace {

constexpr int64_t kHidden = 16, kHeads = 4, kKeyHeads = 2, kHeadSize = 4, kPositions = 100;

class State : public ::testing::Test {
 protected:
  State()
      : builder_(runtime_, DType::f32,
                 [](const std::string& name, const Shape& shape) {
                   parallel::Placement placement;
                   placement.tensors = {{.name = name, .global = shape}};
                   return placement;
                 }),
        rotary_(runtime_, DType::f32, kPositions, kHeadSize, {}),
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
    return {.layers = {layer, layer}, .block_size = 32, .pages = {8}};
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
  std::vector<float> run(const Tensor& x, const std::vector<int32_t>& positions,
                         const Continuation& continuation = {},
                         Tape::Mode mode = Tape::Mode::infer) {
    Tensor at = Tensor::empty(runtime_.arena(MemoryClass::activations), {x.size(0)}, DType::i32,
                              "positions");
    copy_from(at, std::span<const int32_t>(positions));
    Batch batch{.layout = {.sequences = 1, .length = x.size(0)}, .positions = at};
    batch.continuation = continuation;
    Tape tape(runtime_, mode);
    return to_floats(attention_(tape, x, batch, false).value);
  }
  static std::vector<int32_t> counting(int64_t begin, int64_t count) {
    std::vector<int32_t> values;
    for (int64_t i = begin; i < begin + count; ++i) values.push_back(static_cast<int32_t>(i));
    return values;
  }
  std::vector<float> whole(const Tensor& x) { return run(x, counting(0, x.size(0))); }
  // Reads tokens of x for the sequence with these pages.
  std::vector<float> next(const Tensor& x, const std::vector<int32_t>& pages, int64_t begin,
                          int64_t count) {
    const SequencePart part{.begin = begin, .count = count, .tables = {pages}};
    return run(x.slice(0, begin, count), counting(begin, count), state_.next({&part, 1}));
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
  const Tensor x = floats(75, 1);
  const std::vector<float> expected = whole(x);
  int64_t begin = 0;
  for (const int64_t count : {1, 30, 2, 40, 1, 1}) {
    EXPECT_EQ(next(x, {6, 1, 3}, begin, count), rows(expected, begin, count)) << begin;
    begin += count;
  }
}

// Sequences that have read 2, 33 and 40 tokens read 3, 3 and 1 more in one pass.
TEST_F(State, PartsOfSeveralSequencesDoNotMeet) {
  const Tensor x = floats(9, 1), y = floats(36, 2), z = floats(41, 3);
  const std::vector<float> of_x = whole(x), of_y = whole(y), of_z = whole(z);
  const std::vector<int32_t> pages[] = {{5}, {7, 0}, {2, 4, -1}};
  next(x, pages[0], 0, 2);
  next(y, pages[1], 0, 33);
  next(z, pages[2], 0, 40);
  const std::vector<SequencePart> parts = {{.begin = 2, .count = 3, .tables = {pages[0]}},
                                           {.begin = 33, .count = 3, .tables = {pages[1]}},
                                           {.begin = 40, .count = 1, .tables = {pages[2]}}};
  std::vector<float> values = to_floats(x.slice(0, 2, 3));
  for (const Tensor& more : {y.slice(0, 33, 3), z.slice(0, 40, 1)}) {
    const std::vector<float> of_more = to_floats(more);
    values.insert(values.end(), of_more.begin(), of_more.end());
  }
  Tensor all =
      Tensor::empty(runtime_.arena(MemoryClass::activations), {7, kHidden}, DType::f32, "all");
  copy_from(all, std::span<const float>(values));
  const Continuation continuation = state_.next(parts);
  EXPECT_EQ(continuation.groups.at(0).calls.size(), 2u) << "two of three tokens, one of one";
  const std::vector<float> out = run(all, {2, 3, 4, 33, 34, 35, 40}, continuation);
  EXPECT_EQ(rows(out, 0, 3), rows(of_x, 2, 3));
  EXPECT_EQ(rows(out, 3, 3), rows(of_y, 33, 3));
  EXPECT_EQ(rows(out, 6, 1), rows(of_z, 40, 1));
}

// Block tables are wider than any sequence needs, and in memory of the caller.
TEST_F(State, PaddingSeesNothingAndIsPutNowhere) {
  const Tensor x = floats(4, 1);
  const std::vector<float> expected = whole(x);
  const std::vector<int32_t> pages = {0};
  next(x, pages, 0, 3);
  const std::vector<float> before = to_floats(state_.keys(1));
  const SequencePart padding{.begin = -1, .count = 1, .tables = {}};
  const std::vector<SequencePart> parts = {
      padding, {.begin = 3, .count = 1, .tables = {pages}}, padding};
  const std::vector<int32_t> indices = state_.indices(parts, {.blocks = 4});
  EXPECT_EQ(indices,
            (std::vector<int32_t>{-1, 3, -1, -1, 3, -1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}));
  Tensor place = Tensor::empty(runtime_.arena(MemoryClass::activations), {20}, DType::i32, "place");
  std::vector<int32_t> filled = indices;
  filled.resize(20);
  copy_from(place, std::span<const int32_t>(filled));
  Tensor all =
      Tensor::empty(runtime_.arena(MemoryClass::activations), {3, kHidden}, DType::f32, "all");
  std::vector<float> values(3 * kHidden, 0.5f);
  std::ranges::copy(to_floats(x.slice(0, 3, 1)), values.begin() + kHidden);
  copy_from(all, std::span<const float>(values));
  const std::vector<SequencePart> counts(3, padding);
  const std::vector<float> out = run(all, {0, 3, 0}, state_.over(place, counts, {.blocks = 4}));
  EXPECT_EQ(rows(out, 1, 1), rows(expected, 3, 1));
  EXPECT_EQ(rows(out, 0, 1), rows(out, 2, 1));
  std::vector<float> after = to_floats(state_.keys(1));
  int64_t changed = 0;
  for (size_t i = 0; i < after.size(); ++i) changed += after[i] != before[i] ? 1 : 0;
  EXPECT_EQ(changed, kKeyHeads * kHeadSize) << "the keys of one token";
}

TEST_F(State, APageIsReadByAllWhoName) {
  const Tensor x = floats(50, 1);
  const std::vector<float> expected = whole(x);
  next(x, {3}, 0, 32);
  EXPECT_EQ(next(x, {3, 1}, 32, 18), rows(expected, 32, 18));
  EXPECT_EQ(next(x, {3, 2}, 32, 18), rows(expected, 32, 18));
}

TEST_F(State, LayersHaveTheirOwn) {
  next(floats(9, 1), {0}, 0, 4);
  for (const float value : to_floats(state_.keys(0))) EXPECT_EQ(value, 0);
  for (const float value : to_floats(state_.values(0))) EXPECT_EQ(value, 0);
  EXPECT_NE(to_floats(state_.values(1))[0], 0);
}

TEST_F(State, IsNotForTraining) {
  const Tensor x = floats(2, 1);
  const std::vector<int32_t> pages = {0};
  const SequencePart part{.begin = 0, .count = 2, .tables = {pages}};
  EXPECT_THROW(run(x, {0, 1}, state_.next({&part, 1}), Tape::Mode::record), InternalError);
  const SequencePart beyond{.begin = 31, .count = 2, .tables = {pages}};
  EXPECT_THROW(state_.next({&beyond, 1}), InternalError);
}

TEST_F(State, LayersOfOneWindowAreAGroup) {
  const std::vector<LayerCache> layers = {{.kv_heads = 2, .head_size = 4, .window = 7},
                                          {},
                                          {.kv_heads = 1, .head_size = 8},
                                          {.kv_heads = 1, .head_size = 4, .window = 7}};
  const std::vector<CacheGroup> groups = cache_groups(layers);
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].layers, (std::vector<int64_t>{0, 3}));
  EXPECT_EQ(groups[0].token_elements, 2 * (8 + 4));
  EXPECT_EQ(groups[1].layers, std::vector<int64_t>{2});
  EXPECT_EQ((SequenceStateShape{layers, 32, {3, 2}}).bytes(DType::bf16),
            2 * 32 * (3 * 24 + 2 * 16));
}

TEST_F(State, LayersWithSlotsAreAGroup) {
  const LayerCache slots{.slot = {{{3, 4}, DType::f32}, {{5}, DType::bf16}}};
  const std::vector<LayerCache> layers = {
      slots, {.kv_heads = 1, .head_size = 8, .window = 2}, slots};
  const std::vector<CacheGroup> groups = cache_groups(layers);
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].layers, (std::vector<int64_t>{0, 2}));
  EXPECT_EQ(groups[0].slot_bytes, 2 * (12 * 4 + 5 * 2));
  EXPECT_FALSE(groups[1].slots) << "a layer whose window is as long as that of slots";
  const SequenceStateShape shape{layers, 32, {5, 1}};
  EXPECT_EQ(shape.bytes(DType::f16), 5 * 2 * 58 + 32 * 16 * 2);
  const SequenceState state(shape, DType::f16, runtime_);
  EXPECT_EQ(state.slots(2).shape(), (Shape{5, 3, 4}));
  EXPECT_EQ(state.slots(2, 1).dtype(), DType::bf16);
}

// A layer that keeps both is in a group of either.
TEST_F(State, PagesAndSlotsOfALayerAreInTwoGroups) {
  const LayerCache both{
      .kv_heads = 1, .head_size = 8, .slot = {{{3, 4}, DType::f32}, {{5}, DType::f32}}};
  const std::vector<LayerCache> layers = {{.kv_heads = 1, .head_size = 4}, both};
  const std::vector<CacheGroup> groups = cache_groups(layers);
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].layers, (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(groups[0].token_elements, 2 * (4 + 8));
  EXPECT_EQ(groups[0].slot_bytes, 0);
  EXPECT_EQ(groups[1].layers, (std::vector<int64_t>{1}));
  EXPECT_EQ(groups[1].token_elements, 0);
  EXPECT_EQ(groups[1].slot_bytes, (12 + 5) * 4);
  SequenceState state({layers, 32, {3, 2}}, DType::f32, runtime_);
  EXPECT_EQ(state.keys(1).size(0), 3);
  EXPECT_EQ(state.slots(1, 1).shape(), (Shape{2, 5}));
  const std::vector<int32_t> pages = {2}, slots = {1};
  const SequencePart part{.begin = 0, .count = 4, .tables = {pages, slots}};
  const Continuation at = state.next({&part, 1});
  EXPECT_EQ(state.group(at, 1).calls[0].block_table.span<int32_t>()[0], 2);
  EXPECT_EQ(state.slot_group(at, 1).calls[0].block_table.span<int32_t>()[0], 1);
  const auto fill = [&](const Tensor& t, float value) {
    kernels::table(runtime_.stream()).fill({.out = t, .value = value}, runtime_.stream());
  };
  fill(state.slots(1).select(0, 1), 5);
  fill(state.keys(1).transpose(1, 2).select(0, 1), 6);
  const std::vector<int32_t> from = {1}, to = {0};
  state.copy_pages(1, from, to);
  EXPECT_EQ(to_floats(state.slots(1).select(0, 0))[0], 5);
  EXPECT_EQ(to_floats(state.keys(1).select(0, 0))[0], 0) << "of the other group";
  state.copy_pages(0, from, to);
  EXPECT_EQ(to_floats(state.keys(1).select(0, 0))[0], 6);
}

TEST_F(State, SaysWhenTheMachineIsTooSmall) {
  SequenceStateShape huge = shape();
  huge.pages = {int64_t{1} << 45};
  try {
    SequenceState state(huge, DType::f32, runtime_);
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("--inference-dynamic-batching-max-requests"),
              std::string::npos)
        << e.what();
  }
}

}  // namespace
}  // namespace megatron::nn
