// The ring of context-parallel ranks with a GPU each: blocks are sent on a separate stream.
#include <gtest/gtest.h>

#include <cstdlib>

#include "comm/async.h"
#include "comm/gpu/staged.h"
#include "comm/threads.h"
#include "device/cuda_plugin.h"
#include "hang_limit.h"
#include "kernels/observer.h"
#include "parallel/context_attention.h"

namespace megatron::parallel {
namespace {

[[maybe_unused]] const int kDevices = ::setenv("CUDA_SHIM_DEVICES", "4", 1);

constexpr int kRanks = 2;

void hang(const char* text) {
  using Hang = void(const char*);
  reinterpret_cast<Hang*>(cuda_symbol("shim_hang"))(text);
}

// True if the work before the event has ended, or ends while it is polled.
bool ends(const Event& event) {
  for (int look = 0; look < 100; ++look)
    if (event.reached()) return true;
  return false;
}

// Records an event of the stream after each call of attention.
class AfterAttention final : public kernels::Observer {
 public:
  explicit AfterAttention(Stream& stream) : stream_(stream) { stream.watch(this); }
  ~AfterAttention() override { stream_.watch(nullptr); }
  void after(const kernels::Call& call) override {
    if (call.kernel == "attention") points.push_back(stream_.record());
  }
  std::vector<Event> points;

 private:
  Stream& stream_;
};

TEST(RingStreams, AttentionToABlockEndsWhileTheNextOneIsStuck) {
  const auto body = [](comm::Group& world) {
    const Device device{DeviceKind::cuda, world.rank()};
    Runtime runtime(device, 1);
    Stream& stream = runtime.stream();
    std::unique_ptr<comm::Group> made;
    comm::Group& ranks = comm::for_device(world, device, made, comm::GpuBackend::nccl);
    const auto async = comm::async(ranks.split(0, world.rank(), kRanks));
    const auto filled = [&](Shape shape) {
      Tensor t = Tensor::empty(runtime.arena(MemoryClass::activations), shape, DType::f32, "test");
      copy_from(t, std::vector<double>(static_cast<size_t>(shape.elements()), world.rank() + 1));
      return t;
    };
    const TokenLayout layout{1, 16 * kRanks, world.rank(), kRanks};
    ContextTokens tokens;
    tokens.layout = layout;
    tokens.rank_indices =
        Tensor::empty(runtime.arena(MemoryClass::activations), {layout.length}, DType::i32, "test");
    copy_from(tokens.rank_indices, std::span<const int32_t>(tokens_by_rank(layout)));
    Tape tape(runtime);
    const auto heads = [&] { return tape.leaf(filled({1, layout.held(), 2, 16})); };
    const ops::Heads in{heads(), heads(), heads(), {}};
    const auto attend = [&] {
      return context_attention(tape, in, {.scale = 0.25}, tokens,
                               {.group = &ranks, .async = async.get()});
    };
    const std::vector<double> expected = to_doubles(attend().value);
    world.barrier("communicators are open");
    if (world.rank() == 0) hang("NCCL");
    world.barrier("exchanges are stuck");
    AfterAttention after(stream);
    const Var out = attend();
    ASSERT_EQ(after.points.size(), 2U);
    EXPECT_TRUE(ends(after.points[0]));
    EXPECT_FALSE(ends(after.points[1]));
    world.barrier("everybody has looked");
    if (world.rank() == 0) hang("");
    EXPECT_EQ(to_doubles(out.value), expected);
  };
  comm::run_ranks(kRanks, body, testing::kHangSeconds);
}

}  // namespace
}  // namespace megatron::parallel
