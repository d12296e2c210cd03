// Scans of states on CUDA, beyond their Cases.
#include <gtest/gtest.h>

#include <numeric>

#include "kernels/cases/inputs.h"

namespace megatron::kernels {
namespace {

// Texts of which two heads share a group, read at once and in pieces.
class CudaScan : public ::testing::TestWithParam<DType> {
 protected:
  static constexpr int64_t kTexts = 2, kTokens = 333, kHeads = 4, kWidth = 24, kGroups = 2,
                           kStates = 72, kBlock = 128, kBlocks = 3;

  CudaScan() {
    const DType type = GetParam();
    args_ = {.x = inputs_.normal("x", {kTexts, kTokens, kHeads, kWidth}, type),
             .dt = inputs_.normal("dt", {kTexts, kTokens, kHeads}, type),
             .b = inputs_.normal("b", {kTexts, kTokens, kGroups, kStates}, type),
             .c = inputs_.normal("c", {kTexts, kTokens, kGroups, kStates}, type),
             .numbers = {.a_log = inputs_.normal("a_log", {kHeads}, DType::f32),
                         .dt_bias = inputs_.normal("dt_bias", {kHeads}, DType::f32),
                         .d = inputs_.normal("d", {kHeads}, DType::f32)},
             .out = make({kTexts, kTokens, kHeads, kWidth}, type)};
    const int64_t slots = kTexts * kBlocks;
    slots_ = {.state = make({slots, kHeads, kWidth, kStates}, DType::f32),
              .x = make({slots, kScanChunk, kHeads, kWidth}, type),
              .b = make({slots, kScanChunk, kGroups, kStates}, type),
              .steps = make({slots, kScanChunk, kHeads}, DType::f32)};
  }
  Tensor make(Shape shape, DType type) {
    return Tensor::empty(runtime_.arena(MemoryClass::activations), shape, type, "test");
  }

  // Reads the tokens [begin, begin + count) of each text, before and after paddings.
  void read(int64_t begin, int64_t count, const Tensor& out) {
    std::vector<double> positions(static_cast<size_t>(kTexts * count));
    for (size_t i = 0; i < positions.size(); ++i)
      positions[i] = static_cast<double>(begin + static_cast<int64_t>(i) % count);
    std::vector<double> table(static_cast<size_t>(kTexts * kBlocks));
    std::iota(table.rbegin(), table.rend(), 0.0);
    const auto part = [&](const Tensor& t) { return t.slice(1, begin, count); };
    kernels::table(runtime_.stream())
        .state_scan_continued(
            {.x = part(args_.x),
             .dt = part(args_.dt),
             .b = part(args_.b),
             .c = part(args_.c),
             .numbers = args_.numbers,
             .positions = inputs_.values("positions", {kTexts, count}, DType::i32, positions),
             .block_table = inputs_.values("table", {kTexts, kBlocks}, DType::i32, table),
             .block_size = kBlock,
             .slots = slots_,
             .out = part(out)},
            runtime_.stream());
  }

  Runtime runtime_{{DeviceKind::cuda, 0}, 2};
  Inputs inputs_{runtime_};
  StateScanArgs args_;
  ScanSlots slots_;
};

TEST_P(CudaScan, PiecesHaveTheBitsOfTheWhole) {
  table(runtime_.stream()).state_scan(args_, runtime_.stream());
  const std::vector<double> whole = to_doubles(args_.out);
  for (const std::vector<int64_t>& pieces : {std::vector<int64_t>{333},
                                             {64, 64, 128, 77},
                                             {1, 7, 100, 130, 20, 1, 1, 73},
                                             {63, 1, 1, 62, 2, 65, 139}}) {
    const Tensor out = make(args_.out.shape(), GetParam());
    int64_t begin = 0;
    for (const int64_t count : pieces) {
      read(begin, count, out);
      begin += count;
    }
    ASSERT_EQ(begin, kTokens);
    EXPECT_EQ(to_doubles(out), whole) << "from a piece of " << pieces[0];
  }
}

INSTANTIATE_TEST_SUITE_P(Types, CudaScan, ::testing::Values(DType::f32, DType::bf16, DType::f16),
                         [](const auto& info) { return std::string(name(info.param)); });

TEST(CudaScans, PlansKnowTheScratch) {
  const auto taken = [](const Case& c, Runtime& runtime) {
    const Case::Call call = c.make(runtime);
    call.run(runtime.stream(), table(runtime.stream()));
    runtime.stream().synchronize();
    return runtime.stream().scratch().high_water();
  };
  int64_t most = 0;
  for (const Case& c : cases()) {
    if (c.real || c.dtype == DType::f64 || !c.kernel.starts_with("state_scan")) continue;
    Runtime cuda({DeviceKind::cuda, 0}, 1), planned({DeviceKind::meta}, 1, DeviceKind::cuda);
    const int64_t bytes = taken(c, cuda);
    EXPECT_EQ(bytes, taken(c, planned)) << c.kernel << " " << c.name;
    most = std::max(most, bytes);
  }
  EXPECT_GT(most, 0);
}

}  // namespace
}  // namespace megatron::kernels
