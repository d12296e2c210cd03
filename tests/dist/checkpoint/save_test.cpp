// Saves by several ranks, which are threads here.
#include "checkpoint/save.h"

#include <sys/wait.h>

#include <atomic>

#include "base/log.h"
#include "checkpoint/agreement.h"
#include "checkpoint/safetensors.h"
#include "faulty_files.h"
#include "saved.h"
#include "unit/checkpoint/trained_model.h"

namespace megatron::checkpoint {
namespace {

using megatron::testing::each_rank;
using megatron::testing::Fault;
using megatron::testing::FaultyFiles;

constexpr int64_t kShard = 1500;

// Each rank holds equal values in its own tensors, and saves with its own file system.
void save_by(int ranks, const std::string& path, DType type, bool tied, uint64_t seed,
             std::span<const FileSystem* const> files, Save::Snapshot snapshot) {
  each_rank(ranks, [&](comm::Group& world, Runtime& runtime) {
    const TrainedModel model(type, tied, seed);
    Save save(path, model.contents(3, kShard), world, runtime.stream(),
              *files[static_cast<size_t>(world.rank())], snapshot);
    save.write();
    save.finish();
  });
}

void save_by(int ranks, const std::string& path, DType type, bool tied, uint64_t seed,
             Save::Snapshot snapshot = Save::Snapshot::none) {
  const FaultyFiles clean;
  const std::vector<const FileSystem*> files(static_cast<size_t>(ranks), &clean);
  save_by(ranks, path, type, tied, seed, files, snapshot);
}

TEST(Ranks, SaveTheSameBytesAndLoadThem) {
  const TemporaryDirectory folder;
  for (const DType type : {DType::bf16, DType::f32}) {
    for (const bool tied : {true, false}) {
      std::map<std::string, std::string> first;
      for (const int ranks : {1, 2, 3, 4}) {
        const std::string path = folder / fmt::format("{}_{}_{}", name(type), tied, ranks);
        save_by(ranks, path, type, tied, 5,
                ranks % 2 == 0 ? Save::Snapshot::copy : Save::Snapshot::none);
        if (ranks == 1) first = texts(path);
        EXPECT_TRUE(texts(path) == first) << ranks << " ranks";
        EXPECT_GT(first.size(), 8u);
        each_rank(5 - ranks, [&](comm::Group& world, Runtime& runtime) {
          TrainedModel loaded(type, tied, 77), saved(type, tied, 5);
          const CheckpointDirectory directory(path);
          directory.verify(runtime.pool(), world.rank(), world.size());
          loaded.load(directory);
          EXPECT_EQ(loaded.bits(), saved.bits());
        });
      }
    }
  }
}

TEST(Ranks, ShareTheBytes) {
  const TemporaryDirectory folder;
  constexpr int kRanks = 3;
  class Counting final : public FileSystem {
   public:
    int64_t write_at(int file, std::span<const std::byte> bytes, int64_t offset) const override {
      written += static_cast<int64_t>(bytes.size());
      return FileSystem::write_at(file, bytes, offset);
    }
    mutable int64_t written = 0;
  };
  const Counting counting[kRanks];
  const FileSystem* const files[] = {&counting[0], &counting[1], &counting[2]};
  save_by(kRanks, folder / "m", DType::bf16, false, 5, files, Save::Snapshot::none);
  int64_t heads = 0;
  const CheckpointDirectory directory(folder / "m");
  for (const ListedFile& file : directory.files()) {
    if (file.has_tensors)
      heads += static_cast<int64_t>(SafetensorsFile(folder / "m/" + file.name).head().size());
  }
  const int64_t a = counting[0].written - heads, b = counting[1].written, c = counting[2].written;
  EXPECT_EQ(a + b + c, static_cast<int64_t>(12 * (2 * 160 + 2 * (8 + 192 + 192))));
  EXPECT_LE(std::max({a, b, c}) - std::min({a, b, c}), 160 * 4);
}

TEST(Ranks, OfDifferentModelsSaveNothing) {
  const TemporaryDirectory folder;
  const auto saved = [&](DType type, int layers, comm::Group& world, Runtime& runtime) {
    const TrainedModel model(type, true, 1, layers);
    Save save(folder / "m", model.contents(3, kShard), world, runtime.stream(), system_files(),
              Save::Snapshot::none);
  };
  EXPECT_TRUE(contains(error_of_ranks(3,
                                      [&](comm::Group& world, Runtime& runtime) {
                                        saved(DType::f32, world.rank() == 2 ? 1 : 2, world,
                                              runtime);
                                      }),
                       "ranks 0 and 2 would save different tensors"));
  EXPECT_TRUE(folder.names().empty());
}

TEST(Ranks, ATensorThatOneRankHoldsInPartIsAnErrorOnAll) {
  const TemporaryDirectory folder;
  const auto body = [&](comm::Group& world, Runtime& runtime) {
    Model model;
    const int64_t rows = world.rank() == 1 ? 2 : 4;
    model.add(Shape{rows, 3}, DType::f32, {{"w", Shape{4, 3}, {{0, {{0, 0, rows}}}}}});
    Save save(folder / "m", {.config = Json(Json::Object{}), .model = held(model.parameters())},
              world, runtime.stream(), system_files(), Save::Snapshot::none);
  };
  EXPECT_TRUE(contains(error_of_ranks(3, body),
                       "'w': elements [0, 6) of its 12 are held 3 times, and others 2 times"));
  EXPECT_TRUE(folder.names().empty());
}

// Every operation of each of two ranks fails once. All ranks report it, and the older checkpoint
// survives.
TEST(Ranks, AFailureOfOneIsAnErrorOnAll) {
  log::set_level(log::Level::error);
  const TemporaryDirectory folder;
  save_by(1, folder / "m", DType::bf16, true, 1);
  const auto older = texts(folder / "m");
  FaultyFiles counted[2];
  const FileSystem* const counting[] = {&counted[0], &counted[1]};
  save_by(2, folder / "m", DType::bf16, true, 9, counting, Save::Snapshot::none);
  const auto newer = texts(folder / "m");
  int points = 0;
  for (const size_t rank : {0u, 1u}) {
    const std::vector<std::string> operations = counted[rank].operations();
    for (size_t at = 0; at < operations.size(); ++at) {
      SCOPED_TRACE(fmt::format("rank {}, operation {} ({})", rank, at, operations[at]));
      save_by(1, folder / "m", DType::bf16, true, 1);
      const FaultyFiles faulty(at % 2 == 0 ? Fault::io_error : Fault::no_space,
                               static_cast<int64_t>(at)),
          clean;
      const FileSystem* files[] = {&clean, &clean};
      files[rank] = &faulty;
      const std::string error = error_of_ranks(2, [&](comm::Group& world, Runtime& runtime) {
        const TrainedModel model(DType::bf16, true, 9);
        Save save(folder / "m", model.contents(3, kShard), world, runtime.stream(),
                  *files[world.rank()], Save::Snapshot::none);
        save.write();
        save.finish();
      });
      EXPECT_TRUE(texts(folder / "m") == (error.empty() ? newer : older)) << error;
      EXPECT_EQ(faulty.open_files() + clean.open_files(), 0);
      if (operations[at] != "remove") {
        EXPECT_EQ(folder.names(), std::set<std::string>{"m"}) << error;
      }
      ++points;
      ASSERT_FALSE(::testing::Test::HasFailure());
    }
  }
  fmt::print("{} points of failure\n", points);
  log::set_level(log::Level::info);
}

// The process of both ranks ends during an operation of one of them. A run may continue after a
// save that all ranks abandon, but not after a failure of one rank while the others wait.
TEST(Ranks, AgreeOnWhatFailedAndOnNothingElse) {
  each_rank(2, [](comm::Group& world, Runtime& runtime) {
    EXPECT_THROW(agree(world, runtime.stream(), world.rank() == 1 ? "a full disk" : "", 0, "test"),
                 AgreedError);
    EXPECT_THROW(agree(world, runtime.stream(), "", static_cast<uint64_t>(world.rank()), "test"),
                 AgreedError);
  });
  std::atomic<int> agreed = 0;
  EXPECT_THROW(each_rank(2,
                         [&](comm::Group& world, Runtime& runtime) {
                           if (world.rank() == 0) runtime.arena(MemoryClass::scratch).set_limit(0);
                           try {
                             agree(world, runtime.stream(), "", 0, "test");
                           } catch (const AgreedError&) {
                             ++agreed;
                             throw;
                           }
                         }),
               Error);
  EXPECT_EQ(agreed, 0);
}

TEST(Ranks, ThatEndLeaveAWholeCheckpoint) {
  const TemporaryDirectory folder;
  FaultyFiles counted[2];
  const FileSystem* const counting[] = {&counted[0], &counted[1]};
  save_by(2, folder / "m", DType::bf16, true, 1, counting, Save::Snapshot::none);
  const auto older = texts(folder / "m");
  save_by(1, folder / "m", DType::bf16, true, 9);
  const auto newer = texts(folder / "m");
  int points = 0;
  for (const size_t rank : {0u, 1u}) {
    for (size_t at = 0; at < counted[rank].operations().size(); at += 2) {
      save_by(1, folder / "m", DType::bf16, true, 1);
      const pid_t child = ::fork();
      if (child == 0) {
        const FaultyFiles ending(Fault::end, static_cast<int64_t>(at)), clean;
        const FileSystem* files[] = {&clean, &clean};
        files[rank] = &ending;
        save_by(2, folder / "m", DType::bf16, true, 9, files, Save::Snapshot::none);
        ::_exit(0);
      }
      int status = -1;
      ASSERT_EQ(::waitpid(child, &status, 0), child);
      ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == megatron::testing::kEnded) << status;
      const auto here = texts(folder / "m");
      ASSERT_TRUE(here == older || here == newer) << "rank " << rank << ", operation " << at;
      ++points;
    }
  }
  save_by(2, folder / "m", DType::bf16, true, 9);
  EXPECT_EQ(folder.names(), std::set<std::string>{"m"});
  EXPECT_TRUE(texts(folder / "m") == newer);
  fmt::print("{} points of an end\n", points);
}

}  // namespace
}  // namespace megatron::checkpoint
