// The log-probabilities of a reference model are those of one rank in each layout.
#include <gtest/gtest.h>

#include "base/tolerances.h"
#include "dist/ranks.h"
#include "selftest/experiment.h"
#include "selftest/tiny_models.h"
#include "training/reference_pass.h"

namespace megatron::training {
namespace {

class NoSamples final : public data::Dataset {
 public:
  int64_t size() const override { return 0; }
  void read(int64_t, data::Sample&) const override {}
  void read_filler(data::Sample&) const override {}
};

using selftest::Layout, selftest::TinyModel;

constexpr int64_t kLength = 16, kSequences = 8;

// The values of all sequences, NaN where other ranks have them; empty on ranks without the head.
std::vector<double> values_on(const TinyModel& model, const Layout& layout, comm::Group& world) {
  Runtime runtime({DeviceKind::reference, 0}, 1);
  TrainedModel trained(model.model(), DType::f64, 1, layout.model_layout(), world, runtime,
                       {.data_parallel = {.sharding = layout.sharding}});
  ReferenceModel reference(trained, model.model(), DType::f64, layout.layers);
  for (const parallel::Shard& shard : reference.shards())
    parallel::initialize(shard, 5, runtime.stream());
  nn::initialize(reference.states(), 5, runtime.stream());
  reference.filled();
  trained.initialize(1);  // other weights, which must not matter
  trained.step.begin({});
  const int64_t each = layout.micro_batch, stride = each * trained.ranks.samples().size();
  std::vector<corpus::HostBatch> batches;
  for (int64_t i = each * trained.ranks.samples().rank(); i < kSequences; i += stride) {
    batches.push_back(selftest::random_batch(model.model(), i, each, kLength, true));
    corpus::keep_tokens(batches.back(), trained.ranks.tokens(each, kLength));
  }
  reference.fill(NoSamples(), batches);
  std::vector<double> all(static_cast<size_t>(kSequences * kLength), NAN);
  if (!trained.ranks.last()) return {};
  for (const corpus::HostBatch& batch : batches) {
    const std::vector<double>& found = batch.whole().reference;
    EXPECT_EQ(std::ssize(found), each * kLength);
    std::ranges::copy(found, all.begin() + batch.sample_ids[0] * kLength);
  }
  return all;
}

TEST(ReferenceModel, HasTheValuesOfOneRankInEachLayout) {
  parallel::PipelineShape two{.stages = 2};
  parallel::PipelineShape interleaved{
      .kind = parallel::ScheduleKind::interleaved, .stages = 2, .chunks = 2};
  const std::vector<Layout> layouts = {
      {.tp = 2, .micro_batch = 2},
      {.tp = 2, .sequence = true, .pipeline = two, .micro_batch = 2},
      {.dp = 2, .pipeline = two, .micro_batch = 2},
      {.dp = 2, .pipeline = interleaved, .micro_batch = 1},
      {.dp = 2, .sharding = parallel::Sharding::optimizer, .micro_batch = 4},
      {.dp = 2, .sharding = parallel::Sharding::parameters, .micro_batch = 2},
      {.cp = 2, .micro_batch = 2},
      {.tp = 2, .cp = 2, .micro_batch = 2}};
  for (const TinyModel& model : selftest::tiny_models()) {
    std::vector<double> expected;
    testing::run_ranks(1, [&](comm::Group& world) {
      expected = values_on(model, {.micro_batch = kSequences}, world);
    });
    ASSERT_EQ(std::ssize(expected), kSequences * kLength);
    EXPECT_LT(*std::ranges::min_element(expected), -1);
    for (const Layout& layout : layouts) {
      SCOPED_TRACE(model.name + ", " + layout.str());
      testing::run_ranks(layout.ranks(), [&](comm::Group& world) {
        const std::vector<double> found = values_on(model, layout, world);
        int64_t own = 0;
        for (size_t t = 0; t < found.size(); ++t) {
          if (std::isnan(found[t])) continue;
          EXPECT_NEAR(found[t], expected[t], tolerance::kLayoutFp64 * std::abs(expected[t]));
          ++own;
        }
        EXPECT_TRUE(found.empty() || own == kSequences * kLength / layout.dp);
      });
    }
  }
}

}  // namespace
}  // namespace megatron::training
