// Every layout writes the same bytes as one rank, and loads what any other layout wrote.
#include <atomic>
#include <thread>

#include "checkpoint/reshard.h"
#include "checkpoint/save.h"
#include "checkpoint/tensor_copy.h"
#include "checkpoint/writers.h"
#include "comm/traffic.h"
#include "dist/launch.h"
#include "divided_model.h"
#include "faulty_files.h"
#include "hang_limit.h"
#include "processes.h"
#include "saved.h"

namespace megatron::checkpoint {
namespace {

using megatron::testing::each_rank;
using megatron::testing::Fault;
using megatron::testing::FaultyFiles;

// Files written by a single rank that holds all tensors and does not know the whole model.
std::map<std::string, std::string> reference(const std::string& path, const WholeModel& model) {
  Runtime runtime({DeviceKind::reference, 0}, 1);
  const DividedModel all(model, {}, 0, runtime);
  Contents contents = contents_of(all, WholeLists(model));
  contents.whole_model.clear();
  contents.whole_optimizer.clear();
  save(path, std::move(contents), runtime.stream());
  return texts(path);
}

void save_by(const TestLayout& layout, const WholeModel& model, const std::string& path,
             Save::Snapshot snapshot) {
  const WholeLists whole(model);
  each_rank(layout.ranks(), [&](comm::Group& world, Runtime& runtime) {
    const DividedModel held(model, layout, world.rank(), runtime);
    Save save(path, contents_of(held, whole), world, runtime.stream(), system_files(), snapshot);
    save.write();
    save.finish();
  });
}

void expect_loaded(const TestLayout& layout, const WholeModel& model, const std::string& path) {
  const WholeLists whole(model);
  each_rank(layout.ranks(), [&](comm::Group& world, Runtime& runtime) {
    DividedModel held(model, layout, world.rank(), runtime);
    const std::string bits = held.bits();
    held.clear();
    const CheckpointDirectory directory(path);
    load(directory.model(), held.weights(), whole.weights);
    directory.load_optimizer(held.optimizer(), whole.optimizer);
    EXPECT_TRUE(held.bits() == bits) << layout.text() << ", rank " << world.rank();
  });
}

TEST(Layouts, WriteTheBytesOfOneRankAndLoadThem) {
  const TemporaryDirectory folder;
  std::mt19937_64 random(1);
  int layouts = 0;
  for (const DType type : {DType::bf16, DType::f32}) {
    for (const bool tied : {true, false}) {
      const WholeModel model(type, tied, random());
      const std::string one = fmt::format("{}/{}_{}", folder.path(), name(type), tied);
      const auto expected = reference(one, model);
      ASSERT_GT(expected.size(), 6u);
      for (const int ranks : {1, 2, 3, 4, 8}) {
        for (int i = 0; i < (ranks == 1 ? 1 : 10); ++i, ++layouts) {
          const TestLayout layout = TestLayout::any(ranks, random);
          SCOPED_TRACE(layout.text());
          save_by(layout, model, folder / "m",
                  i % 2 == 0 ? Save::Snapshot::copy : Save::Snapshot::none);
          ASSERT_TRUE(texts(folder / "m") == expected);
          expect_loaded(TestLayout::any(ranks, random), model, folder / "m");
        }
      }
    }
  }
  fmt::print("{} layouts\n", layouts);
}

TEST(Layouts, AreTheSameAsProcesses) {
  if (!testing::has_mpi()) GTEST_SKIP() << testing::kNoMpi;
  const TemporaryDirectory folder, one;
  const auto expected = reference(one / "one", model_of_processes());
  constexpr int kRanks = 4;
  const testing::Launched run = testing::launch(
      kRanks, testing::this_program(), "--save-to=" + folder.path(), testing::kHangSeconds);
  ASSERT_EQ(run.code, 0) << run.text;
  for (const TestLayout& layout : layouts_of_processes(kRanks))
    EXPECT_TRUE(texts(folder / std::to_string(layout.seed)) == expected) << layout.text();
}

TEST(Layouts, ACopyDoesNotChangeWithTheModel) {
  const TemporaryDirectory folder;
  const WholeModel model(DType::bf16, true, 7);
  const WholeLists whole(model);
  const auto expected = reference(folder / "one", model);
  const TestLayout layout{.tp = 2, .dp = 2, .pp = 1, .shard_optimizer = true, .seed = 5};
  each_rank(4, [&](comm::Group& world, Runtime& runtime) {
    DividedModel held(model, layout, world.rank(), runtime);
    Save save(folder / "m", contents_of(held, whole), world, runtime.stream(), system_files(),
              Save::Snapshot::copy);
    std::thread writer([&] { save.write(); });
    held.clear();
    writer.join();
    save.finish();
  });
  EXPECT_TRUE(texts(folder / "m") == expected);
}

// Tensors assembled on each rank, in rounds of a few bytes.
TEST(Reshard, InManyRoundsGivesTheSame) {
  std::mt19937_64 random(3);
  const WholeModel model(DType::bf16, true, 7);
  const WholeLists whole(model);
  std::atomic<int64_t> brought = 0;
  for (const int ranks : {1, 2, 4, 8}) {
    for (const int64_t limit : {int64_t{8}, int64_t{100}, kMinOfRank}) {
      const TestLayout layout = TestLayout::any(ranks, random);
      SCOPED_TRACE(layout.text());
      each_rank(ranks, [&](comm::Group& world, Runtime& runtime) {
        const DividedModel held(model, layout, world.rank(), runtime);
        const DividedModel all(model, {}, 0, runtime);
        const Contents mine = contents_of(held, whole), everything = contents_of(all, whole);
        SavePlan plan = plan_save(mine), reference = plan_save(everything);
        attach_pieces(plan, mine);
        attach_pieces(reference, everything);
        const std::vector<PlannedTensor*> tensors = plan.tensors(), full = reference.tensors();
        for (size_t i = 0; i < tensors.size(); ++i)
          tensors[i]->writer = static_cast<int>(i) % world.size();
        const std::vector<Bytes> bytes = reshard(tensors, world, runtime.stream(), limit, limit);
        for (size_t i = 0; i < tensors.size(); ++i) {
          const bool comes = tensors[i]->writer == world.rank() && !tensors[i]->whole;
          ASSERT_EQ(bytes[i] != nullptr, comes);
          if (!comes) continue;
          std::string expected(static_cast<size_t>(full[i]->bytes()), '\0');
          for (const Piece& piece : full[i]->pieces)
            write_block(piece.block, piece.value, std::as_writable_bytes(std::span(expected)),
                        full[i]->dtype);
          EXPECT_EQ(std::memcmp(bytes[i].get(), expected.data(), expected.size()), 0)
              << tensors[i]->name;
          ++brought;
        }
      });
    }
  }
  EXPECT_GT(brought, 100);
}

// For each rank, the larger of the bytes that it sends and receives in pieces of tensors.
std::vector<int64_t> moved(const TestLayout& layout, const WholeModel& model) {
  class Listener final : public comm::TrafficListener {
   public:
    void communicated(const comm::Traffic& traffic) override {
      if (traffic.call == "checkpoint: pieces") bytes += traffic.bytes;
    }
    int64_t bytes = 0;
  };
  const TemporaryDirectory folder;
  const WholeLists whole(model);
  std::vector<int64_t> bytes(static_cast<size_t>(layout.ranks()));
  each_rank(layout.ranks(), [&](comm::Group& world, Runtime& runtime) {
    Listener listener;
    const auto seen = comm::observed(world, listener);
    const DividedModel held(model, layout, world.rank(), runtime);
    Save save(folder / "m", contents_of(held, whole), *seen, runtime.stream(), system_files(),
              Save::Snapshot::none);
    bytes[static_cast<size_t>(world.rank())] = listener.bytes;
  });
  return bytes;
}

TEST(Reshard, MovesNoMoreThanItMust) {
  const WholeModel model(DType::f32, false, 7);
  int64_t total = 0;
  for (const WholeModel::Parameter& p : model.parameters()) {
    for (const WholeModel::Value& value : p.values)
      total += static_cast<int64_t>(value.bits.size());
  }
  EXPECT_EQ(moved({.dp = 4}, model), std::vector<int64_t>(4));
  // Each of four ranks holds a half. The writer already has one half, and all share the sending.
  for (const int64_t bytes : moved({.tp = 2, .dp = 2}, model)) {
    EXPECT_GT(bytes, total / 4 / 2 * 7 / 10);
    EXPECT_LT(bytes, total / 4 / 2 * 13 / 10);
  }
  for (const int64_t bytes : moved({.dp = 4, .shard_optimizer = true, .seed = 3}, model))
    EXPECT_LT(bytes, total / 2);
}

TEST(Writers, HoldTheirTensorsWhereStagesAreEqual) {
  each_rank(4, [&](comm::Group& world, Runtime& runtime) {
    std::vector<PlannedTensor> planned(40);
    std::vector<PlannedTensor*> tensors;
    for (size_t i = 0; i < planned.size(); ++i) {
      planned[i].shape = Shape{10};
      planned[i].whole = world.rank() / 2 == static_cast<int>(i % 2);  // two stages, two replicas
      tensors.push_back(&planned[i]);
    }
    const WholeHolders holders(tensors, world, runtime.stream());
    EXPECT_FALSE(holders.all());
    assign_writers(tensors, world.size(), holders);
    std::vector<int> of_rank(4);
    for (size_t i = 0; i < planned.size(); ++i) {
      EXPECT_EQ(planned[i].writer / 2, static_cast<int>(i % 2));
      EXPECT_TRUE(holders.holds(planned[i].writer, i));
      ++of_rank[static_cast<size_t>(planned[i].writer)];
    }
    EXPECT_EQ(of_rank, std::vector<int>(4, 10));
    // One rank holds everything, but it does not write everything.
    for (PlannedTensor& tensor : planned) tensor.whole = world.rank() == 1;
    assign_writers(tensors, world.size(), WholeHolders(tensors, world, runtime.stream()));
    std::fill(of_rank.begin(), of_rank.end(), 0);
    for (const PlannedTensor& tensor : planned) ++of_rank[static_cast<size_t>(tensor.writer)];
    EXPECT_EQ(of_rank, std::vector<int>(4, 10));
  });
}

class Wrong : public ::testing::Test {
 protected:
  // Error of a save after `change` was made to the tensors that the ranks provide.
  std::string save_error(const std::function<void(int rank, Contents&, Runtime&)>& change) {
    const std::string error =
        error_of_ranks(layout_.ranks(), [&](comm::Group& world, Runtime& runtime) {
          const DividedModel held(model_, layout_, world.rank(), runtime);
          Contents contents = contents_of(held, whole_);
          change(world.rank(), contents, runtime);
          Save save(folder_ / "m", std::move(contents), world, runtime.stream(), system_files(),
                    Save::Snapshot::none);
        });
    EXPECT_TRUE(folder_.names().empty());
    return error;
  }
  static auto find(std::vector<HeldTensor>& held, std::string_view name) {
    return std::ranges::find_if(held, [&](const HeldTensor& t) {
      return t.prefix + t.placement->tensors.front().name == name;
    });
  }

  const TemporaryDirectory folder_;
  const WholeModel model_{DType::f32, false, 7};
  const WholeLists whole_{model_};
  const TestLayout layout_{.tp = 2, .dp = 2, .pp = 2, .seed = 1};
};

TEST_F(Wrong, NothingIsRight) {
  const std::string error = error_of_ranks(8, [&](comm::Group& world, Runtime& runtime) {
    const DividedModel held(model_, layout_, world.rank(), runtime);
    Save save(folder_ / "m", contents_of(held, whole_), world, runtime.stream(), system_files(),
              Save::Snapshot::none);
  });
  EXPECT_EQ(error, "");
}

TEST_F(Wrong, AMissingPiece) {
  const std::string error = save_error([](int rank, Contents& contents, Runtime&) {
    if (rank % 2 == 0) return;  // drops one half, on both replicas
    const auto at = find(contents.model, "wte.weight");
    if (at != contents.model.end()) contents.model.erase(at);
  });
  EXPECT_TRUE(contains(error, "'wte.weight': no rank holds elements [88, 168) of its 168"))
      << error;
}

TEST_F(Wrong, APieceThatOneReplicaLacks) {
  const std::string error = save_error([](int rank, Contents& contents, Runtime&) {
    const auto at = find(contents.optimizer, "exp_avg.wte.weight");
    if (rank == 1) contents.optimizer.erase(at);
  });
  EXPECT_TRUE(contains(error,
                       "'exp_avg.wte.weight': elements [0, 88) of its 168 are held 2 times, "
                       "and others once"))
      << error;
}

TEST_F(Wrong, ADoubledPiece) {
  for (const bool both : {true, false}) {  // replicas of the slice
    const std::string error = save_error([&](int rank, Contents& contents, Runtime&) {
      if (rank != 1 && !(both && rank == 3)) return;
      static thread_local parallel::Placement overlapping;
      HeldTensor& held = *find(contents.model, "wte.weight");
      overlapping = *held.placement;
      --overlapping.tensors[0].held[0].slices[0].global_begin;
      held.placement = &overlapping;
    });
    EXPECT_TRUE(contains(
        error,
        both ? "'wte.weight': no rank holds elements [160, 168) of its 168"
             : "'wte.weight': elements [80, 88) of its 168 are held 3 times, and others once"))
        << error;
  }
  const std::string twice = save_error([&](int rank, Contents& contents, Runtime&) {
    HeldTensor again = *find(contents.model, rank < 4 ? "wte.weight" : "ln_f.weight");
    if (rank == 2) contents.model.push_back(again);
  });
  EXPECT_TRUE(contains(twice, "'wte.weight': one rank has elements [0, 88) of its 168 twice"))
      << twice;
}

TEST_F(Wrong, AMissingTensor) {
  const std::string error = save_error([](int, Contents& contents, Runtime&) {
    for (const char* name : {"ln_f.weight", "wpe.weight"}) {
      const auto at = find(contents.model, name);
      if (at != contents.model.end()) contents.model.erase(at);
    }
  });
  EXPECT_TRUE(contains(error, "weight': no rank holds elements [0, ")) << error;
}

TEST_F(Wrong, ASurplusTensorAndAnotherShape) {
  const std::string surplus = save_error([](int rank, Contents& contents, Runtime&) {
    if (rank == 5) contents.model.front().prefix = "other.";
  });
  EXPECT_TRUE(contains(surplus, "cannot save tensor 'other.")) << surplus;
  const std::string shape = save_error([](int rank, Contents& contents, Runtime&) {
    static thread_local parallel::Placement changed;
    if (rank != 2) return;
    HeldTensor& held = *find(contents.model, "wpe.weight");
    changed = *held.placement;
    changed.tensors[0].global = Shape{25, 8};
    held.placement = &changed;
  });
  EXPECT_TRUE(
      contains(shape, "'wpe.weight': this rank has it with shape [25, 8], but its shape is"))
      << shape;
}

TEST_F(Wrong, ARankThatFailsToWrite) {
  for (const int bad : {0, 3, 7}) {
    const FaultyFiles faulty(Fault::no_space, bad == 0 ? 9 : 2), clean;
    const std::string error = error_of_ranks(8, [&](comm::Group& world, Runtime& runtime) {
      const DividedModel held(model_, layout_, world.rank(), runtime);
      Save save(folder_ / "m", contents_of(held, whole_), world, runtime.stream(),
                world.rank() == bad ? faulty : clean, Save::Snapshot::copy);
      save.write();
      save.finish();
    });
    EXPECT_TRUE(contains(error, "No space")) << error;
    EXPECT_TRUE(folder_.names().empty());
  }
}

TEST_F(Wrong, DirectoriesAreRefusedByAllRanksAlike) {
  save_by(layout_, model_, folder_ / "m", Save::Snapshot::none);
  WholeLists whole = whole_;
  whole.weights[0].shape = Shape{22, 8};
  whole.weights.erase(whole.weights.begin() + 3);
  whole.weights.push_back({"score.weight", Shape{1, 8}, DType::f32});
  const std::string error = error_of_ranks(8, [&](comm::Group& world, Runtime& runtime) {
    const DividedModel held(model_, layout_, world.rank(), runtime);
    load(ModelDirectory(folder_ / "m"), held.weights(), whole.weights);
  });
  EXPECT_TRUE(
      contains(error, "missing: 1 (score.weight)") &&
      contains(error, "not in the model: 1 (h.0.c_attn.weight)") &&
      contains(error, "with a different shape: 1 (wte.weight: [21, 8] in the file, [22, 8]"))
      << error;
  whole = whole_;
  whole.optimizer.pop_back();
  const std::string state = error_of_ranks(8, [&](comm::Group& world, Runtime& runtime) {
    const DividedModel held(model_, layout_, world.rank(), runtime);
    CheckpointDirectory(folder_ / "m").load_optimizer(held.optimizer(), whole.optimizer);
  });
  EXPECT_TRUE(contains(state, "not in the optimizer: 1 (exp_avg_sq.lm_head.weight)")) << state;
}

}  // namespace
}  // namespace megatron::checkpoint
