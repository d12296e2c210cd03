// A causal convolution of texts that are read in pieces.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "base/divide.h"
#include "base/error.h"
#include "device/cuda_plugin.h"
#include "kernels/cases/inputs.h"

namespace megatron::kernels {
namespace {

class CausalConv : public ::testing::TestWithParam<DeviceKind> {};

struct Cut {
  int64_t width, block_size;
  std::vector<int64_t> pieces;  // their lengths, which are repeated
};

// Two texts that are read together, the second two tokens ahead of the first.
class TwoTexts {
 public:
  static constexpr int64_t kTokens = 150, kAhead = 2, kChannels = 40;

  TwoTexts(Runtime& runtime, DType type, const Cut& cut)
      : stream_(runtime.stream()),
        inputs_(runtime),
        x_(inputs_.normal("x", {2, kTokens, kChannels}, type)),
        weight_(inputs_.normal("weight", {kChannels, cut.width}, type)),
        bias_(inputs_.normal("bias", {kChannels}, type)),
        block_size_(cut.block_size) {
    const int64_t blocks = ceil_div(kTokens, cut.block_size);
    std::vector<double> slots;
    for (int64_t i = 0; i < 2 * blocks; ++i) slots.push_back(static_cast<double>(i));
    block_table_ = inputs_.values("block_table", {2, blocks}, DType::i32, slots);
    // Slots hold anything before their first use.
    tails_ = inputs_.normal("tails", {2 * blocks, cut.width - 1, kChannels}, type);
    const auto output = [&] {
      return Tensor::empty(runtime.arena(MemoryClass::activations), x_.shape(), type, "out");
    };
    whole_ = output(), out_ = output();
    table(stream_).causal_conv(
        {.x = x_, .weight = weight_, .bias = bias_, .starts = {}, .out = whole_}, stream_);
  }

  // Reads `tokens` from index `begin` on, of the second text kAhead later.
  void read(int64_t begin, int64_t tokens) { read(begin, tokens, 0, 2); }
  // The same of the texts [first, first + count).
  void read(int64_t begin, int64_t tokens, int64_t first, int64_t count) {
    std::vector<double> positions;
    for (int64_t b = first; b < first + count; ++b)
      for (int64_t t = 0; t < tokens; ++t)
        positions.push_back(static_cast<double>(begin + t + b * kAhead));
    const auto piece = [&](const Tensor& of) {
      const std::array<int64_t, 3> strides = {of.stride(0) + kAhead * of.stride(1), of.stride(1),
                                              1};
      return of.as_strided({count, tokens, kChannels}, strides,
                           first * strides[0] + begin * strides[1]);
    };
    table(stream_).causal_conv_continued(
        {.x = piece(x_),
         .weight = weight_,
         .bias = bias_,
         .positions = inputs_.values("positions", {count, tokens}, DType::i32, positions),
         .block_table = block_table_.slice(0, first, count),
         .block_size = block_size_,
         .tails = tails_,
         .out = piece(out_)},
        stream_);
  }
  void expect_bits_of_the_whole() {
    stream_.synchronize();
    EXPECT_EQ(to_doubles(out_), to_doubles(whole_));
  }

 private:
  Stream& stream_;
  Inputs inputs_;
  Tensor x_, weight_, bias_, block_table_, tails_, whole_, out_;
  int64_t block_size_;
};

TEST_P(CausalConv, OfPiecesHasTheBitsOfTheWhole) {
  if (GetParam() == DeviceKind::cuda) {
    ASSERT_NE(cuda_state().plugin, nullptr) << cuda_state().why_not;
  }
  Runtime runtime({GetParam()}, 2);
  for (const DType type : {DType::f32, DType::bf16}) {
    for (const Cut& cut : std::vector<Cut>{{4, 64, {1}},
                                           {4, 64, {7}},
                                           {4, 64, {64}},
                                           {3, 64, {100, 1, 40}},
                                           {8, 2, {3, 1, 5}},
                                           {2, 16, {1, 7, 40}},
                                           {1, 64, {30, 1}}}) {
      SCOPED_TRACE(testing::Message() << name(type) << " width " << cut.width << " blocks of "
                                      << cut.block_size << " first piece " << cut.pieces[0]);
      TwoTexts texts(runtime, type, cut);
      const int64_t together = TwoTexts::kTokens - TwoTexts::kAhead;
      texts.read(-TwoTexts::kAhead, TwoTexts::kAhead, 1, 1);
      size_t piece = 0;
      for (int64_t begin = 0; begin < together; ++piece) {
        const int64_t tokens = std::min(cut.pieces[piece % cut.pieces.size()], together - begin);
        texts.read(begin, tokens);
        begin += tokens;
      }
      texts.read(together, TwoTexts::kAhead, 0, 1);
      texts.expect_bits_of_the_whole();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, CausalConv,
                         ::testing::Values(DeviceKind::reference, DeviceKind::cpu,
                                           DeviceKind::cuda),
                         [](const auto& info) { return std::string(name(info.param)); });

TEST(CausalConvErrors, ABlockWithoutASlotIsNamed) {
  Runtime runtime({DeviceKind::cpu}, 1);
  Inputs inputs(runtime);
  const auto read = [&](double slot) {
    table(runtime.stream())
        .causal_conv_continued(
            {.x = inputs.normal("x", {1, 1, 8}, DType::f32),
             .weight = inputs.normal("weight", {8, 4}, DType::f32),
             .bias = {},
             .positions = inputs.values("positions", {1, 1}, DType::i32, std::array{9.0}),
             .block_table = inputs.values("block_table", {1, 1}, DType::i32, std::array{slot}),
             .block_size = 16,
             .tails = inputs.normal("tails", {2, 3, 8}, DType::f32),
             .out = inputs.output("out", {1, 1, 8}, DType::f32)},
            runtime.stream());
  };
  EXPECT_NO_THROW(read(1));
  EXPECT_THROW(read(-1), Error);
  EXPECT_THROW(read(2), Error);
}

}  // namespace
}  // namespace megatron::kernels
