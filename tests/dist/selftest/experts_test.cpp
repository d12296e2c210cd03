// Experts on ranks of their own: gradients, their norm, updated parameters and checkpoints are
// those of one rank.
#include "checkpoint/save.h"
#include "dist/ranks.h"
#include "dist/selftest/toy_experts.h"
#include "golden/selftest/support.h"
#include "optim/optimizer.h"
#include "selftest/canonical.h"

namespace megatron::selftest {
namespace {

using parallel::Axis;
using parallel::Sharding;
using testing::ToyExperts;

constexpr int kMicroBatches = 2, kSteps = 2;

struct Spread {
  parallel::Layout layout;
  int world = 1;
  Sharding sharding = Sharding::none;
  bool overlap = false;
};

void PrintTo(const Spread& s, std::ostream* out) {
  *out << fmt::format("{} ranks, tp {} ep {} etp {}, {} instances", s.world, s.layout.tp,
                      s.layout.ep, s.layout.etp, s.layout.instances);
}

struct ExpertOutcome {
  TensorMap gradients, values;  // after the last step
  std::vector<double> norms;
};

std::vector<int> list_with(const std::vector<std::vector<int>>& lists, int rank) {
  for (const std::vector<int>& list : lists)
    if (std::ranges::find(list, rank) != list.end()) return list;
  return {};
}

int place_of(const std::vector<int>& list, int rank) {
  return static_cast<int>(std::ranges::find(list, rank) - list.begin());
}

// Tokens of a micro-batch that pass through a rank's dense layers, and the part of them that it
// sends to experts. If experts are divided among fewer ranks than dense matrices, each rank sends a
// share.
struct Tokens {
  std::vector<int64_t> seen, sent;
};

Tokens tokens_of(const Spread& s, int rank, int micro_batch) {
  const std::vector<int> data =
      list_with(rank_lists(s.layout, s.world, {Axis::dp, Axis::cp}), rank);
  const std::vector<int> tensor = list_with(rank_lists(s.layout, s.world, Axis::tp), rank);
  const size_t expert_tensor =
      list_with(rank_lists(s.layout, s.world, Axis::tp, true), rank).size();
  const int64_t share = ToyExperts::kTokens / static_cast<int64_t>(data.size());
  Tokens tokens;
  for (int64_t i = 0; i < share; ++i) {
    const int64_t id = micro_batch * ToyExperts::kTokens + place_of(data, rank) * share + i;
    tokens.seen.push_back(id);
    const auto turn = static_cast<size_t>(i) % tensor.size();
    if (expert_tensor == tensor.size() || turn == static_cast<size_t>(place_of(tensor, rank)))
      tokens.sent.push_back(id);
  }
  return tokens;
}

// Tokens that the ranks sharing a rank's experts send to them.
std::vector<int64_t> routed_to(const Spread& s, int rank, int micro_batch) {
  std::vector<int64_t> routed;
  for (const int from : list_with(rank_lists(s.layout, s.world, Axis::ep, true), rank)) {
    const std::vector<int64_t> sent = tokens_of(s, from, micro_batch).sent;
    routed.insert(routed.end(), sent.begin(), sent.end());
  }
  return routed;
}

void save(const std::string& path, const parallel::DataParallel& dp, comm::Group& world,
          Runtime& runtime) {
  Runtime shapes_only({DeviceKind::meta, 0}, 1);
  const ToyExperts whole(shapes_only, {});
  checkpoint::Save save(path,
                        {.config = Json(Json::Object{}),
                         .model = checkpoint::held(dp.shards()),
                         .whole_model = checkpoint::whole_tensors(whole.parameters)},
                        world, runtime.stream(), system_files(), checkpoint::Save::Snapshot::none);
  save.write();
  save.finish();
}

// Runs steps of Adam and saves. Checks that replicas agree bit for bit and that no element is
// missing.
ExpertOutcome run(const Spread& s, const std::string& path) {
  GatheredTensors gradients, values;
  ExpertOutcome outcome;
  testing::each_rank(s.world, [&](comm::Group& world, Runtime& runtime) {
    const parallel::Ranks ranks({.layout = s.layout, .sharding = s.sharding, .async = s.overlap},
                                world);
    ToyExperts model(runtime, ranks.modules());
    parallel::DataParallel dp(
        model.parameters, model.spans(), ranks.data_parallel(), runtime,
        {.sharding = s.sharding, .overlap_reduce = s.overlap, .overlap_gather = s.overlap});
    for (const parallel::Shard& shard : dp.shards()) initialize(shard, 3, runtime.stream());
    dp.parameters_changed();
    optim::Optimizer optimizer(dp.shards(), {}, {.norm = ranks.norm(), .norm_window = 3}, runtime);
    for (int step = 0; step < kSteps; ++step) {
      dp.begin_step(kMicroBatches);
      for (int m = 0; m < kMicroBatches; ++m)
        model.run(dp, tokens_of(s, world.rank(), m).seen, routed_to(s, world.rank(), m));
      dp.finish();
      optimizer.find_norm(kMicroBatches * ToyExperts::kTokens);
      const double norm = read_scalar(optimizer.gradient_norm(), runtime.stream());
      if (world.rank() == 0) outcome.norms.push_back(norm);
      if (step + 1 == kSteps)
        gradients.add(dp.shards(), [](const parallel::Shard& shard) { return shard.gradient; });
      optimizer.update({.learning_rate = 0.01, .weight_decay = 0.1});
      dp.parameters_changed();
    }
    values.add(dp.shards(), [](const parallel::Shard& shard) { return shard.value; });
    save(path, dp, world, runtime);
  });
  for (const GatheredTensors* gathered : {&gradients, &values}) {
    EXPECT_EQ(gathered->different(), std::vector<std::string>());
    EXPECT_EQ(gathered->incomplete(), std::vector<std::string>());
  }
  outcome.gradients = gradients.tensors();
  outcome.values = values.tensors();
  return outcome;
}

// The fp64 sums have at most 48 tokens and 2 steps in another order, so the bound is 48 * 2 * 2^-53
// of the largest term.
void expect_near(const TensorMap& found, const TensorMap& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, values] : expected) {
    double largest = 1e-3;
    for (const double value : values) largest = std::max(largest, std::abs(value));
    ASSERT_TRUE(found.contains(name)) << name;
    ASSERT_EQ(found.at(name).size(), values.size()) << name;
    for (size_t i = 0; i < values.size(); ++i)
      ASSERT_NEAR(found.at(name)[i], values[i], 1e-12 * largest) << name << " " << i;
  }
}

TensorMap loaded(const std::string& path) {
  Runtime runtime({DeviceKind::reference, 0}, 1);
  const ToyExperts model(runtime, {});
  parallel::allocate(model.parameters, runtime);
  checkpoint::load(checkpoint::ModelDirectory(path), model.parameters);
  std::vector<parallel::Shard> shards;
  for (parallel::ParameterSpec* spec : model.parameters)
    shards.push_back({.placed = spec, .value = spec->parameter.value});
  return canonical_values(shards);
}

class Experts : public ::testing::TestWithParam<Spread> {};

TEST_P(Experts, AreThoseOfOneRank) {
  const testing::TemporaryDirectory folder;
  const ExpertOutcome one = run({}, folder / "one");
  for (const Sharding sharding :
       {Sharding::none, Sharding::optimizer, Sharding::gradients, Sharding::parameters}) {
    for (const bool overlap : {false, true}) {
      Spread spread = GetParam();
      spread.sharding = sharding;
      spread.overlap = overlap;
      SCOPED_TRACE(fmt::format("{}, overlap {}", parallel::name(sharding), overlap));
      const std::string path = folder / fmt::format("{}{}", parallel::name(sharding), overlap);
      const ExpertOutcome outcome = run(spread, path);
      expect_near(outcome.gradients, one.gradients);
      expect_near(outcome.values, one.values);
      for (size_t step = 0; step < one.norms.size(); ++step)
        EXPECT_NEAR(outcome.norms[step], one.norms[step], 1e-12 * one.norms[step]);
      EXPECT_EQ(loaded(path), outcome.values);
    }
  }
  for (const auto& [name, values] : one.gradients) {
    const bool idle = name.ends_with(fmt::format(".{}", ToyExperts::kIdle));
    EXPECT_EQ(std::ranges::all_of(values, [](double v) { return v == 0; }), idle) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, Experts,
                         ::testing::Values(Spread{{.ep = 2}, 4},           // 3 experts and 2, twice
                                           Spread{{.ep = 4}, 4},           // 2, 2, 1 and none, once
                                           Spread{{.tp = 2, .ep = 2}, 8},  // 3 and 2 of 5 rows of F
                                           Spread{{.tp = 2, .ep = 2, .etp = 1},
                                                  4},  // experts on dense tensor ranks
                                           Spread{{.ep = 2, .instances = 2}, 8}),
                         [](const auto& info) { return fmt::format("Spread{}", info.index); });

}  // namespace
}  // namespace megatron::selftest
