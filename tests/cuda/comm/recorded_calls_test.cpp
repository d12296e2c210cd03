// Collectives that are recorded together with the work between them and launched as a whole. Ranks
// are threads with a GPU each.
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>

#include "base/clock.h"
#include "base/error.h"
#include "comm/gpu/group.h"
#include "comm/gpu/staged.h"
#include "comm/threads.h"
#include "device/cuda_plugin.h"

namespace megatron::comm {
namespace {

struct RecordingRank {
  Group& group;
  Runtime& runtime;
  Stream& stream() const { return runtime.stream(); }

  Tensor empty(int64_t n, DType type) const {
    return Tensor::empty(runtime.arena(MemoryClass::activations), {n}, type, "test");
  }
  void fill(Tensor t, double first) const {
    std::vector<double> values(static_cast<size_t>(t.elements()));
    for (size_t i = 0; i < values.size(); ++i)
      values[i] =
          first + static_cast<double>((7 * i + 13 * static_cast<size_t>(group.rank())) % 29) / 3;
    copy_from(t, std::span<const double>(values));
  }
};

void each_rank(int ranks, const std::function<void(RecordingRank&)>& body) {
  run_ranks(
      ranks,
      [&](Group& world) {
        const Device device{DeviceKind::cuda, world.rank()};
        Runtime runtime(device, 1);
        std::unique_ptr<Group> made;
        RecordingRank rank{for_device(world, device, made, GpuBackend::nccl), runtime};
        body(rank);
      },
      20);
}

// A chain of calls, each of which needs the previous call's result.
struct Chain {
  Tensor x, all, sum, part, moved;

  Chain(const RecordingRank& r, int64_t n, DType type)
      : x(r.empty(n, type)),
        all(r.empty(n * r.group.size(), type)),
        sum(r.empty(n * r.group.size(), type)),
        part(r.empty(n, type)),
        moved(r.empty(n, type)) {}

  void run(RecordingRank& r) const {
    Stream& s = r.stream();
    r.group.all_reduce(x, Reduce::sum, s, "sum").wait(s);
    r.group.all_gather(x, all, s, "gather").wait(s);
    cuda_plugin().copy(sum.address(), all.address(), all.bytes(), s);
    r.group.reduce_scatter(sum, part, Reduce::sum, s, "scatter").wait(s);
    const auto size = static_cast<size_t>(r.group.size());
    const std::vector<int64_t> counts(size, part.elements() / r.group.size());
    r.group.all_to_all(part, moved, counts, counts, s, "move").wait(s);
  }
  std::vector<double> result() const { return to_doubles(moved); }
};

// Sums by NCCL, and in rank order, both at once and in slices.
TEST(RecordedCalls, HaveTheBitsOfCallsThatAreNot) {
  each_rank(2, [](RecordingRank& r) {
    for (const auto& [type, n] :
         {std::pair(DType::f32, 512), std::pair(DType::bf16, 512), std::pair(DType::f16, 40000)}) {
      const Chain eager(r, n, type), recorded(r, n, type);
      r.fill(eager.x, 1);
      eager.run(r);
      r.fill(recorded.x, 5);
      recorded.run(r);  // initializes like a first call
      std::unique_ptr<StreamRecording> recording = cuda_plugin().record(r.stream());
      recorded.run(r);
      const std::unique_ptr<RecordedWork> work = recording->finish();
      for (int i = 0; i < 3; ++i) {
        r.fill(recorded.x, 1);
        work->queue();
        r.group.queued_again(r.stream(), "chain");
        EXPECT_EQ(recorded.result(), eager.result());
        r.fill(eager.x, 1);  // alternates calls of both kinds
        eager.run(r);
      }
    }
  });
}

// A call that begins in one recording may be waited for in the next.
TEST(RecordedCalls, ThatAreOverNeedNoWaiting) {
  each_rank(2, [](RecordingRank& r) {
    const Tensor x = r.empty(512, DType::f32), out = r.empty(512, DType::f32);
    r.fill(x, 1);
    r.group.all_reduce(x, Reduce::sum, r.stream(), "sum").wait(r.stream());
    const std::vector<double> sums = to_doubles(x);
    std::unique_ptr<StreamRecording> recording = cuda_plugin().record(r.stream());
    const Work begun = r.group.all_reduce(x, Reduce::sum, r.stream(), "sum");
    const std::unique_ptr<RecordedWork> first = recording->finish();
    recording = cuda_plugin().record(r.stream());
    begun.wait(r.stream());
    cuda_plugin().copy(out.address(), x.address(), x.bytes(), r.stream());
    const std::unique_ptr<RecordedWork> second = recording->finish();
    r.fill(x, 1);
    first->queue();
    second->queue();
    EXPECT_EQ(to_doubles(out), sums);
  });
}

// NCCL requires that all ranks record together and launch parts of the same recording.
TEST(RecordedCalls, AreRecordedByAllRanksOrByNone) {
  const auto differ = [&](RecordingRank& r) {
    const Chain chain(r, 64, DType::f32);
    r.fill(chain.x, 1);
    chain.run(r);
    r.stream().synchronize();
    std::unique_ptr<RecordedWork> work;
    if (r.group.rank() == 0) {
      std::unique_ptr<StreamRecording> recording = cuda_plugin().record(r.stream());
      r.group.all_reduce(chain.x, Reduce::sum, r.stream(), "differs").wait(r.stream());
      work = recording->finish();
      work->queue();
    } else {
      r.group.all_reduce(chain.x, Reduce::sum, r.stream(), "differs").wait(r.stream());
    }
    r.stream().synchronize();
    for (const double until = now_seconds() + 5; now_seconds() < until;) {
      r.group.all_reduce(chain.x, Reduce::sum, r.stream(), "later").wait(r.stream());
      r.stream().synchronize();
    }
  };
  EXPECT_THROW(each_rank(2, differ), Error);
  using Problems = const char*();
  const std::string output = reinterpret_cast<Problems*>(cuda_symbol("shim_problems"))();
  EXPECT_NE(output.find("recorded 1"), std::string::npos) << output;
}

// Messages are copied and sent by other threads, so they are not recorded.
TEST(RecordedCalls, AreNoMessages) {
  each_rank(2, [](RecordingRank& r) {
    const Tensor x = r.empty(4, DType::f32);
    const std::unique_ptr<StreamRecording> recording = cuda_plugin().record(r.stream());
    if (r.group.rank() == 0) EXPECT_THROW(r.group.send(x, 1, r.stream(), "message"), InternalError);
    else EXPECT_THROW(r.group.recv(x, 0, r.stream(), "message"), InternalError);
  });
}

}  // namespace
}  // namespace megatron::comm
