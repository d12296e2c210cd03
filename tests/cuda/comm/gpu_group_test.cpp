// Groups on NCCL, on the CUDA plugin compiled for the CPU with a stand-in for NCCL. Ranks are
// threads, each with its own GPU.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "comm/async.h"
#include "comm/doing.h"
#include "comm/gpu/communicator.h"
#include "comm/gpu/group.h"
#include "comm/gpu/staged.h"
#include "comm/threads.h"
#include "device/cuda_plugin.h"
#include "hang_limit.h"

namespace megatron::comm {
namespace {

[[maybe_unused]] const int kDevices = ::setenv("CUDA_SHIM_DEVICES", "4", 1);

struct Rank {
  Group& host;   // between threads
  Group& group;  // the same ranks, on NCCL
  Runtime& runtime;
  Runtime& cpu;
  int rank() const { return host.rank(); }
  int size() const { return host.size(); }
  Stream& stream() const { return runtime.stream(); }

  Tensor made(Runtime& where, const Shape& shape, DType type) const {
    return Tensor::empty(where.arena(MemoryClass::activations), shape, type, "test");
  }
  Tensor filled(Runtime& where, int64_t n, DType type,
                const std::function<double(int64_t)>& f) const {
    Tensor t = made(where, Shape{n}, type);
    std::vector<double> values;
    for (int64_t i = 0; i < n; ++i) values.push_back(f(i));
    if (is_floating(type)) {
      copy_from(t, std::span<const double>(values));
    } else {
      std::vector<std::byte> bytes(static_cast<size_t>(t.bytes()));
      const auto size = static_cast<size_t>(size_of(type));
      for (size_t i = 0; i < values.size(); ++i) {
        const auto value = static_cast<int64_t>(values[i]);
        std::memcpy(bytes.data() + i * size, &value, size);
      }
      copy_bytes_from(t, bytes);
    }
    return t;
  }
};

std::string problems() {
  using Problems = const char*();
  return reinterpret_cast<Problems*>(cuda_symbol("shim_problems"))();
}

void each_rank(int ranks, const std::function<void(Rank&)>& body, WaitLimits limits = 60) {
  run_ranks(
      ranks,
      [&](Group& world) {
        const Device device{DeviceKind::cuda, world.rank()};
        Runtime cpu({DeviceKind::cpu, 0}, 1);
        Runtime runtime(device, 1);
        std::unique_ptr<Group> made;
        Rank rank{world, for_device(world, device, made), runtime, cpu};
        ASSERT_TRUE(rank.group.queued());
        body(rank);
      },
      limits);
}

std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "(nothing was thrown)";
}

std::vector<std::byte> bytes_of_any(const Tensor& t) {
  std::vector<std::byte> bytes(static_cast<size_t>(t.bytes()));
  copy_bytes_to(t, bytes);
  return bytes;
}

// Integers have exact sums; sums of floats need many roundings.
double value(int rank, int64_t i, DType type) {
  const auto x = static_cast<double>((i * 2654435761 + rank * 40503) % 1009);
  return is_floating(type) ? (x - 500) / 7 : std::fmod(x, 60);
}

// NCCL sums in another order; everything else is bit-identical to the groups of threads.
void expect_same(const Tensor& gpu, const Tensor& cpu, bool exact) {
  if (exact) {
    EXPECT_EQ(bytes_of_any(gpu), bytes_of_any(cpu));
    return;
  }
  const std::vector<double> a = to_doubles(gpu), b = to_doubles(cpu);
  for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-4) << i;
}

// NCCL calls complete immediately, after one query or after several.
class GpuGroups : public ::testing::TestWithParam<int> {
  static void set_looks(int looks) {
    using Set = bool(const char*, int64_t);
    ASSERT_TRUE(reinterpret_cast<Set*>(cuda_symbol("shim_set"))("nccl_looks", looks));
  }
  void SetUp() override { set_looks(GetParam() == 4 ? 4 : GetParam() - 2); }
  void TearDown() override { set_looks(1); }
};
INSTANTIATE_TEST_SUITE_P(Ranks, GpuGroups, ::testing::Values(2, 3, 4));

TEST_P(GpuGroups, ReductionsAreThoseOfThreads) {
  each_rank(GetParam(), [](Rank& r) {
    for (const DType type : {DType::f32, DType::f64, DType::bf16, DType::f16, DType::i32,
                             DType::i64, DType::u16, DType::u8}) {
      for (const int64_t n : {int64_t{1}, int64_t{67}, int64_t{20000}}) {
        for (const Reduce op : {Reduce::sum, Reduce::max}) {
          const bool exact = op == Reduce::max || (type != DType::f32 && type != DType::f64);
          const auto number = [&](int64_t i) { return value(r.rank(), i, type); };
          const Tensor gpu = r.filled(r.runtime, n, type, number),
                       cpu = r.filled(r.cpu, n, type, number);
          r.group.all_reduce(gpu, op, r.stream(), "gpu").wait(r.stream());
          r.host.all_reduce(cpu, op, r.cpu.stream(), "cpu").wait(r.cpu.stream());
          expect_same(gpu, cpu, exact);
          const Tensor all_gpu = r.filled(r.runtime, n * r.size(), type, number),
                       all_cpu = r.filled(r.cpu, n * r.size(), type, number);
          const Tensor part_gpu = r.made(r.runtime, {n}, type), part_cpu = r.made(r.cpu, {n}, type);
          r.group.reduce_scatter(all_gpu, part_gpu, op, r.stream(), "gpu").wait(r.stream());
          r.host.reduce_scatter(all_cpu, part_cpu, op, r.cpu.stream(), "cpu");
          expect_same(part_gpu, part_cpu, exact);
        }
      }
    }
  });
}

TEST_P(GpuGroups, CopiesAreThoseOfThreads) {
  each_rank(GetParam(), [](Rank& r) {
    for (const DType type : {DType::f32, DType::bf16, DType::i64, DType::u8}) {
      const auto number = [&](int64_t i) { return value(r.rank(), i, type); };
      const Tensor one = r.filled(r.runtime, 1000, type, number);
      const Tensor all = r.made(r.runtime, {1000 * r.size()}, type);
      r.group.all_gather(one, all, r.stream(), "gather").wait(r.stream());
      for (int from = 0; from < r.size(); ++from)
        expect_same(all.slice(0, from * 1000, 1000),
                    r.filled(r.cpu, 1000, type, [&](int64_t i) { return value(from, i, type); }),
                    true);
      const int root = r.size() - 1;
      r.group.broadcast(one, root, r.stream(), "broadcast").wait(r.stream());
      expect_same(one, all.slice(0, root * 1000, 1000), true);
      // Rank a gives rank b a + b rows of three elements; rank 0 gives itself none.
      std::vector<int64_t> counts;
      int64_t rows = 0;
      for (int b = 0; b < r.size(); ++b) rows += counts.emplace_back(r.rank() + b);
      const Tensor in = r.filled(r.runtime, rows * 3, type, number), host = on_host(in);
      const Tensor out = r.made(r.runtime, {rows, 3}, type),
                   expected = r.made(r.cpu, {rows, 3}, type);
      r.group.all_to_all(in.view({rows, 3}), out, counts, counts, r.stream(), "rows")
          .wait(r.stream());
      r.host.all_to_all(host.view({rows, 3}), expected, counts, counts, r.cpu.stream(), "rows");
      expect_same(out, expected, true);
    }
  });
}

TEST_P(GpuGroups, TheMaximumWithANanIsNan) {
  each_rank(GetParam(), [](Rank& r) {
    const Tensor t = r.filled(r.runtime, 3, DType::f32, [&](int64_t i) {
      return i == 1 && r.rank() == 1 ? NAN : static_cast<double>(r.rank());
    });
    r.group.all_reduce(t, Reduce::max, r.stream(), "max").wait(r.stream());
    const std::vector<double> found = to_doubles(t);
    EXPECT_EQ(found[0], r.size() - 1);
    EXPECT_TRUE(std::isnan(found[1]));
  });
}

// All ranks send in both directions before any receives, and then modify what they sent.
TEST_P(GpuGroups, MessagesWaitForTheirReceivers) {
  each_rank(GetParam(), [](Rank& r) {
    const int next = (r.rank() + 1) % r.size(), before = (r.rank() + r.size() - 1) % r.size();
    std::vector<Work> works;
    const Tensor t = r.filled(r.runtime, 500, DType::f32, [&](int64_t) { return r.rank(); });
    for (int k = 0; k < 3; ++k) {
      r.group.send(t, next, r.stream(), "on").wait(r.stream());
      r.group.send(t.slice(0, 0, 10), before, r.stream(), "back").wait(r.stream());
      r.group.all_reduce(t, Reduce::max, r.stream(), "between").wait(r.stream());
    }
    for (int k = 0; k < 3; ++k) {
      const Tensor long_one = r.made(r.runtime, {500}, DType::f32),
                   short_one = r.made(r.runtime, {10}, DType::f32);
      r.group.recv(long_one, before, r.stream(), "on").wait(r.stream());
      r.group.recv(short_one, next, r.stream(), "back").wait(r.stream());
      const double top = r.size() - 1;
      EXPECT_EQ(to_doubles(long_one), std::vector<double>(500, k == 0 ? before : top));
      EXPECT_EQ(to_doubles(short_one), std::vector<double>(10, k == 0 ? next : top));
    }
  });
}

// Many groups on one GPU are called in turn without waiting, with host tensors in between.
TEST_P(GpuGroups, PartsRunBesideEachOther) {
  each_rank(GetParam(), [](Rank& r) {
    auto pairs = r.group.split(r.rank() / 2, r.rank(), r.size() == 3 && r.rank() == 2 ? 1 : 2);
    pairs->set_name("pairs");
    auto again = async(r.group.split(0, -r.rank(), r.size()));
    EXPECT_TRUE(again->queued());
    EXPECT_EQ(again->rank(), r.size() - 1 - r.rank());
    const auto number = [&](int64_t) { return r.rank() + 1.0; };
    const Tensor a = r.filled(r.runtime, 40, DType::f32, number),
                 b = r.filled(r.runtime, 40, DType::bf16, number),
                 c = r.filled(r.cpu, 4, DType::f32, number);
    const Work late = again->all_reduce(b, Reduce::sum, r.stream(), "async");
    pairs->all_reduce(a, Reduce::sum, r.stream(), "pair").wait(r.stream());
    r.group.all_reduce(c, Reduce::sum, r.stream(), "host").wait(r.stream());
    late.wait(r.stream());
    late.wait(r.stream());
    const double all = r.size() * (r.size() + 1) / 2.0;
    const int first = r.rank() / 2 * 2;
    EXPECT_EQ(to_doubles(a)[0], first + 1 + (first + 1 < r.size() ? first + 2 : 0));
    EXPECT_EQ(to_doubles(b)[39], all);
    EXPECT_EQ(to_doubles(c)[3], all);
    r.group.barrier("end");
  });
}

// --- Ends.

TEST(GpuGroupEnds, WhereOneRankFailsTheOthersAreToldSoon) {
  const double began = now_seconds();
  const std::string text = error_of([] {
    each_rank(3, [](Rank& r) {
      const Tensor t = r.filled(r.runtime, 40, DType::f32, [](int64_t) { return 1; });
      r.group.all_reduce(t, Reduce::sum, r.stream(), "first").wait(r.stream());
      MG_CHECK(r.rank() != 1, "rank 1 has had enough");
      r.group.all_reduce(t, Reduce::sum, r.stream(), "second").wait(r.stream());
      const std::string mine = error_of([&] { r.stream().synchronize(); });
      EXPECT_NE(mine.find("rank 1 has had enough"), std::string::npos) << mine;
      fail("{}", mine);
    });
  });
  EXPECT_EQ(text, "rank 1 has had enough");
  EXPECT_LT(now_seconds() - began, testing::kHangSeconds);
}

TEST(GpuGroupEnds, ARankThatDoesNotComeIsNamed) {
  const std::string text = error_of([] {
    each_rank(
        2,
        [](Rank& r) {
          const Tensor t = r.filled(r.runtime, 40, DType::f32, [](int64_t) { return 1; });
          r.group.all_reduce(t, Reduce::sum, r.stream(), "first").wait(r.stream());
          r.stream().synchronize();
          r.group.doing()->phase("backward");
          if (r.rank() == 0)
            r.group.all_reduce(t, Reduce::sum, r.stream(), "norm").wait(r.stream());
          if (r.rank() == 0) r.stream().synchronize();
          r.host.barrier("after");
        },
        1);
  });
  EXPECT_NE(text.find("all_reduce 'norm'"), std::string::npos) << text;
  EXPECT_NE(text.find("backward"), std::string::npos) << text;
  EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
}

// An error of NCCL ends the run with NCCL's text. The test reads the stand-in's problems.
TEST(GpuGroupEnds, WhatNcclFindsIsAnError) {
  const std::string text = error_of([] {
    each_rank(2, [](Rank& r) {
      const Tensor t = r.filled(r.runtime, 40, DType::f32, [](int64_t) { return 1; });
      r.group.all_reduce(t.slice(0, 0, 20 + r.rank()), Reduce::sum, r.stream(), "uneven")
          .wait(r.stream());
      r.stream().synchronize();
      for (const double until = now_seconds() + 5; now_seconds() < until;) {
        r.group.all_reduce(t, Reduce::sum, r.stream(), "later").wait(r.stream());
        r.stream().synchronize();
      }
    });
  });
  EXPECT_NE(text.find("NCCL"), std::string::npos) << text;
  EXPECT_NE(text.find("ncclAllReduce of 20 elements"), std::string::npos) << text;
  EXPECT_NE(problems().find("ncclAllReduce of 20 elements"), std::string::npos);
}

TEST(GpuGroupEnds, TwoRanksOfOneGpuAreRefusedByNccl) {
  const CommunicatorId id = nccl().make_id();
  const std::string text = error_of([&] {
    run_ranks(
        2, [&](Group& world) { nccl().join(id, world.rank(), 2, {DeviceKind::cuda, 0}, [] {}); });
  });
  EXPECT_NE(text.find("Duplicate GPU"), std::string::npos) << text;
  problems();
}

// Rank 1 does the steps before a communicator is created, but does not create it.
void name_communicator(Rank& r) {
  const Tensor name = r.made(r.cpu, {128}, DType::u8);
  r.host.broadcast(name, 0, r.cpu.stream(), "NCCL communicator").wait(r.cpu.stream());
}

TEST(GpuGroupEnds, ARankThatFailsWhileACommunicatorIsMadeIsNamed) {
  const double began = now_seconds();
  const std::string text = error_of([] {
    each_rank(3, [](Rank& r) {
      if (r.rank() == 1) name_communicator(r);
      MG_CHECK(r.rank() != 1, "rank 1 has had enough");
      const Tensor t = r.filled(r.runtime, 40, DType::f32, [](int64_t) { return 1; });
      const std::string mine =
          error_of([&] { r.group.all_reduce(t, Reduce::sum, r.stream(), "first"); });
      EXPECT_NE(mine.find("rank 1 has had enough"), std::string::npos) << mine;
      fail("{}", mine);
    });
  });
  EXPECT_EQ(text, "rank 1 has had enough");
  EXPECT_LT(now_seconds() - began, testing::kHangSeconds);
}

TEST(GpuGroupEnds, ARankThatDoesNotComeToACommunicatorIsNamed) {
  const std::string text = error_of([] {
    each_rank(
        2,
        [](Rank& r) {
          const Tensor t = r.filled(r.runtime, 40, DType::f32, [](int64_t) { return 1; });
          if (r.rank() == 1) name_communicator(r);
          else r.group.all_reduce(t, Reduce::sum, r.stream(), "first");
          r.host.barrier("after");
        },
        1);
  });
  EXPECT_NE(text.find("all_reduce 'first'"), std::string::npos) << text;
  EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
}

// As with groups on the host: waiting ranks are logged, and the run continues.
TEST(GpuGroupWaits, ForARankThatComesLateAreLogged) {
  ::testing::internal::CaptureStderr();
  each_rank(2,
            [](Rank& r) {
              const Tensor t = r.filled(r.runtime, 40, DType::f32, [](int64_t) { return 1; });
              for (int i = 0; i < 2; ++i) {
                if (r.rank() == 1 && i == 1)
                  std::this_thread::sleep_for(std::chrono::milliseconds(800));
                r.group.all_reduce(t, Reduce::sum, r.stream(), i == 0 ? "first" : "late")
                    .wait(r.stream());
                r.stream().synchronize();
              }
              r.host.barrier("all");
            },
            {60, 0.2});
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(
      text.find("s for rank 1 in all_reduce 'late' (call 5 of 'world', 160 bytes of f32, sum)"),
      std::string::npos)
      << text;
  EXPECT_EQ(problems(), "");
}

// Calls of two communicators are in flight: each ends only when both are aborted.
TEST(GpuGroupEnds, AllCommunicatorsAreGivenUpAtOnce) {
  const double began = now_seconds();
  const std::string text = error_of([] {
    each_rank(2, [](Rank& r) {
      const auto other = r.group.split(0, r.rank(), 2);
      const Tensor a = r.filled(r.runtime, 40, DType::f32, [](int64_t) { return 1; }),
                   b = r.filled(r.runtime, 40, DType::f32, [](int64_t) { return 1; });
      for (int times = r.rank() == 0 ? 2 : 1; times > 0; --times) {
        const Work first = r.group.all_reduce(a, Reduce::sum, r.stream(), "first");
        other->all_reduce(b, Reduce::sum, r.stream(), "second").wait(r.stream());
        first.wait(r.stream());
        if (r.rank() == 1 || times == 2) r.stream().synchronize();
      }
      MG_CHECK(r.rank() != 1, "rank 1 has had enough");
      r.stream().synchronize();
    });
  });
  EXPECT_EQ(text, "rank 1 has had enough");
  EXPECT_LT(now_seconds() - began, testing::kHangSeconds);
  EXPECT_EQ(problems(), "");
}

// An aborted call ends and leaves its outputs unchanged: any wait for it reports an error.
TEST(GpuGroupEnds, NobodyReadsWhatHasNotCome) {
  const std::string text = error_of([] {
    each_rank(2, [](Rank& r) {
      const Tensor t = r.filled(r.runtime, 40, DType::f32, [](int64_t) { return 1; }),
                   letter = r.made(r.runtime, {40}, DType::f32);
      if (r.rank() == 1) r.group.send(t, 0, r.stream(), "letter").wait(r.stream());
      else r.group.recv(letter, 1, r.stream(), "letter").wait(r.stream());
      r.group.all_reduce(t, Reduce::sum, r.stream(), "both").wait(r.stream());
      r.stream().synchronize();
      MG_CHECK(r.rank() != 1, "rank 1 has had enough");
      const Work received = r.group.recv(letter, 1, r.stream(), "letter");
      const Work reduced = r.group.all_reduce(t, Reduce::sum, r.stream(), "one");
      const Event before = r.stream().record();
      received.wait(r.stream());
      reduced.wait(r.stream());
      const Event after = r.stream().record();
      Runtime other(r.runtime.device(), 1);
      other.stream().wait(after);
      const Event of_other = other.stream().record();
      const std::function<void()> ways[] = {[&] { received.done.wait_on_host(); },
                                            [&] { reduced.done.wait_on_host(); },
                                            [&] { after.wait_on_host(); },
                                            [&] { of_other.wait_on_host(); },
                                            [&] { other.stream().synchronize(); },
                                            [&] { to_doubles(letter); },
                                            [&] { to_doubles(t); },
                                            [&] { r.cpu.stream().wait(received.done); },
                                            [&] { r.stream().synchronize(); }};
      for (size_t i = 0; i < std::size(ways); ++i) {
        const std::string mine = error_of(ways[i]);
        EXPECT_NE(mine.find("rank 1 has had enough"), std::string::npos) << i << " " << mine;
      }
      fail("told");
    });
  });
  EXPECT_EQ(text, "rank 1 has had enough");
}

// --- Selection of the group.

TEST(GpuBackends, RanksThatShareAGpuGoThroughHostMemory) {
  const auto run = [](GpuBackend backend, bool share) {
    bool queued = false;
    run_ranks(2, [&](Group& world) {
      std::unique_ptr<Group> made;
      const Device device{DeviceKind::cuda, share ? 0 : world.rank()};
      const bool mine = for_device(world, device, made, backend).queued();
      if (world.rank() == 0) queued = mine;
    });
    return queued;
  };
  EXPECT_TRUE(run(GpuBackend::automatic, false));
  EXPECT_TRUE(run(GpuBackend::nccl, false));
  EXPECT_FALSE(run(GpuBackend::gloo, false));
  EXPECT_FALSE(run(GpuBackend::automatic, true));
  const std::string text = error_of([&] { run(GpuBackend::nccl, true); });
  EXPECT_NE(text.find("ranks 0 and 1 share a GPU"), std::string::npos) << text;
  EXPECT_NE(text.find("--distributed-backend gloo"), std::string::npos) << text;
}

}  // namespace
}  // namespace megatron::comm
