// Extreme router loads: every token to one expert, experts without tokens, a single token, all
// experts for each token, one row per expert. On one rank the loss is checked against plain loops
// and every gradient against finite differences. Several ranks must match one rank, and no arena
// may hold more than the plan for these ranks says.
#include <gtest/gtest.h>

#include <array>
#include <optional>

#include "base/philox.h"
#include "base/tolerances.h"
#include "comm/threads.h"
#include "comm/traffic.h"
#include "nn/module_state.h"
#include "selftest/experiment.h"

namespace megatron::selftest {
namespace {

constexpr int64_t kSequences = 4;

struct Load {
  const char* name;
  int64_t choices = 1, length = 8;
  std::vector<double> bias = {};  // correction bias for the choice of experts
  std::optional<double> capacity = {};
  std::vector<int> idle = {};  // experts without a token
};
void PrintTo(const Load& load, std::ostream* out) { *out << load.name; }

constexpr int64_t kExperts = 4;

TinyModel tiny_experts(const Load& load) {
  TinyModel tiny = tiny_models().at(1);
  tiny.flags.num_layers = 2;
  tiny.flags.num_attention_heads = 4;
  models::MoeFlags& moe = tiny.flags.moe;
  moe.num_experts = kExperts;
  moe.ffn_hidden_size = 24;
  moe.topk = load.choices;
  moe.score = kernels::RouterScore::sigmoid;
  moe.enable_expert_bias = true;
  moe.capacity_factor = load.capacity;
  moe.drop_policy = kernels::KeptRows::first;
  return tiny;
}

// Changes the values of one shard along a direction.
struct Nudge {
  size_t shard = 0;
  std::vector<double> by;
};

using Marks = std::array<int64_t, kMemoryClasses>;

struct Found {
  double loss = 0;
  TensorMap gradients;
  std::vector<std::string> complaints;
  // Gradients and names of one rank's shards, and its tensors.
  std::vector<std::vector<double>> of_shards;
  std::vector<std::string> names;
  TensorMap weights;
};

training::StepOptions options_of() { return {.data_parallel = {.bucket_elements = 4096}}; }

void set_states(training::TrainedModel& trained, const Load& load) {
  for (nn::ModuleState* state : trained.step.states()) {
    std::vector<double> values(kExperts);
    for (size_t e = 0; e < load.bias.size(); ++e) values[e] = load.bias[e];
    Tensor value = state->value();
    copy_from(value, std::span<const double>(values));
  }
}

std::vector<corpus::HostBatch> batches_of(const models::Model& model, const Load& load,
                                          const Layout& layout, int rank) {
  std::vector<corpus::HostBatch> batches;
  const int64_t share = kSequences / layout.dp;
  for (int64_t i = 0; i < share; i += layout.micro_batch) {
    batches.push_back(
        random_batch(model, rank * share + i, std::min(share, layout.micro_batch), load.length));
    for (float& counted : batches.back().loss_mask) counted = 1;
  }
  return batches;
}

Found measure(const Load& load, const Layout& layout, const Nudge* nudge = nullptr) {
  const models::Model model = tiny_experts(load).model();
  Found found;
  GatheredTensors gathered;
  comm::run_ranks(
      layout.ranks(),
      [&](comm::Group& world) {
        Runtime runtime({DeviceKind::reference, 0}, 1);
        training::TrainedModel trained(model, DType::f64, 1, layout.model_layout(), world, runtime,
                                       options_of());
        randomize(trained.shards(), 4, runtime.stream());
        set_states(trained, load);
        if (nudge != nullptr) {
          Tensor value = trained.shards()[nudge->shard].value;
          std::vector<double> values = to_doubles(value);
          for (size_t i = 0; i < values.size(); ++i) values[i] += nudge->by[i];
          copy_from(value, std::span<const double>(values));
        }
        trained.step.begin({});
        const auto batches = batches_of(model, load, layout, trained.ranks.samples().rank());
        double divisor = 1;
        trained.step.accumulate(batches, divisor);
        gathered.add(
            trained.shards(), [](const parallel::Shard& shard) { return shard.gradient; }, divisor);
        if (layout.ranks() == 1) {
          for (const parallel::Shard& shard : trained.shards()) {
            found.names.push_back(shard.placed->parameter.name);
            found.of_shards.push_back(to_doubles(shard.gradient));
            for (double& g : found.of_shards.back()) g /= divisor;
          }
          found.weights = canonical_values(trained.shards());
          for (nn::ModuleState* state : trained.step.states()) {
            const parallel::Shard shard{.placed = &state->placed, .value = state->value()};
            found.weights.merge(canonical_values({&shard, 1}));
          }
        }
        const double loss = trained.step.run(batches, {.learning_rate = 0}).loss;
        if (world.rank() == 0) found.loss = loss;
      },
      20);
  found.complaints = gathered.different();
  const std::vector<std::string> incomplete = gathered.incomplete();
  found.complaints.insert(found.complaints.end(), incomplete.begin(), incomplete.end());
  found.gradients = std::move(gathered.tensors());
  return found;
}

double plain_loss(const Load& load, const TensorMap& weights) {
  const models::Model model = tiny_experts(load).model();
  double sum = 0;
  for (const corpus::HostBatch& batch : batches_of(model, load, {.micro_batch = 1}, 0))
    for (const double loss : model->plain_losses(weights, {batch.tokens}, batch.labels))
      sum += loss;
  return sum / static_cast<double>(kSequences * load.length);
}

Layout one_rank() { return {.micro_batch = 2}; }

class ExtremeRouting : public ::testing::TestWithParam<Load> {};

TEST_P(ExtremeRouting, LossAndGradientsOfOneRankAreRight) {
  constexpr double kStep = 1e-5;
  const Load& load = GetParam();
  const Found found = measure(load, one_rank());
  if (!load.capacity) {
    EXPECT_NEAR(found.loss, plain_loss(load, found.weights), tolerance::kLayoutFp64);
  }
  for (size_t s = 0; s < found.names.size(); ++s) {
    const RandomStream random(9, found.names[s]);
    Nudge ahead{.shard = s, .by = std::vector<double>(found.of_shards[s].size())}, back;
    double slope = 0, length = 0;
    for (size_t i = 0; i < ahead.by.size(); ++i) {
      const double d = random.normal(i);
      length += d * d;
      slope += d * found.of_shards[s][i];
      ahead.by[i] = d;
    }
    length = std::sqrt(length);
    back = ahead;
    for (size_t i = 0; i < ahead.by.size(); ++i) {
      ahead.by[i] *= kStep / length;
      back.by[i] *= -kStep / length;
    }
    const double difference =
        (measure(load, one_rank(), &ahead).loss - measure(load, one_rank(), &back).loss) /
        (2 * kStep);
    EXPECT_NEAR(slope / length, difference, tolerance::kDifferenceModel) << found.names[s];
  }
}

TEST_P(ExtremeRouting, RanksOfExpertsGiveWhatOneRankGives) {
  const Load& load = GetParam();
  const Found one = measure(load, one_rank());
  constexpr auto kTravel = parallel::TokenDispatcher::alltoall;
  std::vector<Layout> layouts = {
      {.dp = 2, .ep = 2, .micro_batch = 1},
      {.dp = 4, .ep = 4, .dispatcher = kTravel, .micro_batch = 1},
      {.dp = 2,
       .ep = 2,
       .pipeline = {.parts = parallel::most_parts(2)},
       .overlap = true,
       .dispatcher = kTravel,
       .micro_batch = 1},
      {.dp = 4, .ep = 4, .micro_batch = 1},
      {.dp = 4, .ep = 2, .sharding = parallel::Sharding::parameters, .micro_batch = 1}};
  if (load.length > 1)
    layouts.push_back({.tp = 2, .dp = 2, .ep = 2, .etp = 1, .sequence = true, .micro_batch = 2});
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(layout.str());
    const Found found = measure(load, layout);
    EXPECT_EQ(found.complaints, std::vector<std::string>());
    EXPECT_LE(relative_error(found.loss, one.loss), tolerance::kLayoutFp64);
    ASSERT_EQ(found.gradients.size(), one.gradients.size());
    for (const auto& [name, error] : metrics(found.gradients, one.gradients))
      EXPECT_LE(error, tolerance::kLayoutFp64) << name;
  }
  int tensors = 0;
  for (const auto& [name, gradient] : one.gradients) {
    if (name.find("mlp.experts.") == name.npos) continue;
    ++tensors;
    const size_t each = gradient.size() / kExperts;  // elements per expert
    for (const int expert : load.idle) {
      const auto begin = gradient.begin() + static_cast<std::ptrdiff_t>(expert * each);
      EXPECT_TRUE(std::all_of(begin, begin + static_cast<std::ptrdiff_t>(each),
                              [](double g) { return g == 0; }))
          << name << " of expert " << expert;
    }
  }
  EXPECT_EQ(tensors, 4);  // two per layer
}

// High-water marks of a rank's arenas after two steps.
Marks marks_of(const Load& load, const Layout& layout, comm::Group& world, Runtime& runtime) {
  const models::Model model = tiny_experts(load).model();
  training::TrainedModel trained(model, DType::f32, 1, layout.model_layout(), world, runtime,
                                 options_of());
  trained.initialize(1);
  if (runtime.device().has_data()) set_states(trained, load);
  trained.step.begin({});
  const auto batches = batches_of(model, load, layout, trained.ranks.samples().rank());
  for (int step = 0; step < 2; ++step) trained.step.run(batches, {.learning_rate = 1e-3});
  Marks marks{};
  for (int i = 0; i < kMemoryClasses; ++i)
    marks[static_cast<size_t>(i)] = runtime.arena(static_cast<MemoryClass>(i)).high_water();
  return marks;
}

void expect_within_plan(const Load& load, const Layout& layout) {
  const std::unique_ptr<comm::Group> group = comm::simulated(0, layout.ranks());
  Runtime shapes_only({DeviceKind::meta, 0}, 1, DeviceKind::cpu);
  const Marks planned = marks_of(load, layout, *group, shapes_only);
  comm::run_ranks(
      layout.ranks(),
      [&](comm::Group& world) {
        Runtime runtime({DeviceKind::cpu, 0}, 1);
        const Marks marks = marks_of(load, layout, world, runtime);
        for (size_t i = 0; i < marks.size(); ++i)
          EXPECT_LE(marks[i], planned[i]) << name(static_cast<MemoryClass>(i)) << " of rank "
                                          << world.rank() << ", " << layout.str();
      },
      20);
  EXPECT_GT(planned[static_cast<size_t>(MemoryClass::activations)], 0);
}

TEST_P(ExtremeRouting, TakesNoMoreMemoryThanPlanned) {
  Layout layout{.dp = 2, .ep = 2, .micro_batch = 1};
  for (const auto dispatcher :
       {parallel::TokenDispatcher::allgather, parallel::TokenDispatcher::alltoall}) {
    layout.dispatcher = dispatcher;
    layout.overlap = false;
    layout.pipeline.parts = 1;
    expect_within_plan(GetParam(), layout);
    layout.overlap = true;
    layout.pipeline.parts = parallel::most_parts(2);
    expect_within_plan(GetParam(), layout);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Loads, ExtremeRouting,
    ::testing::Values(
        Load{.name = "OneExpertForAll", .bias = {0, 9, 0, 0}, .idle = {0, 2, 3}},
        Load{.name = "NoTokenForHalf", .choices = 2, .bias = {9, 0, 0, 9}, .idle = {1, 2}},
        Load{.name = "OneTokenASequence", .length = 1},
        Load{.name = "EveryExpertForAll", .choices = kExperts},
        Load{.name = "OneRowAnExpert", .choices = 2, .capacity = 1e-3},
        Load{.name = "OneRowOfTheOnlyExpert", .bias = {0, 9, 0, 0}, .capacity = 1e-3}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace megatron::selftest
