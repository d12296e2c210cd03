#include "data/sampler.h"

#include "data/requested_samples.h"
#include "support.h"

namespace megatron::data {
namespace {

SamplerShape shape_of(const Json& c, int64_t rank) {
  const auto number = [&](std::string_view key, int64_t absent) {
    return c.contains(key) ? c[key].as_integer() : absent;
  };
  return {.total = c["total"].as_integer(),
          .consumed = number("consumed", 0),
          .micro_batch_size = number("mbs", 1),
          .rank = rank,
          .size = c["dp"].as_integer()};
}

TEST(SequentialSampler, GivesEachRankItsPart) {
  const Json cases = Json::read(golden("samplers/single.json"))["single"];
  for (const Json& c : cases.as_array()) {
    SCOPED_TRACE(c.dump());
    const int64_t size = c["dp"].as_integer();
    for (int64_t rank = 0; rank < size; ++rank) {
      const auto make = [&] {
        return SequentialSampler(shape_of(c, rank),
                                 !c.contains("drop_last") || c["drop_last"].as_bool());
      };
      if (c.contains("error")) {
        EXPECT_NE(error_of(make), "");
        continue;
      }
      SequentialSampler sampler = make();
      std::vector<int64_t> batch;
      for (const Json& expected : c["batches_per_rank"].as_array()[rank].as_array()) {
        ASSERT_TRUE(sampler.next(batch));
        EXPECT_EQ(batch, integers(expected));
      }
      EXPECT_FALSE(sampler.next(batch));
    }
  }
}

TEST(RandomPermutation, EqualsTorch) {
  const Json file = Json::read(golden("samplers/samplers.json"));
  for (const Json& c : file["torch_randperm"].as_array()) {
    const auto seed = static_cast<uint64_t>(c["seed"].as_integer());
    EXPECT_EQ(random_permutation(c["n"].as_integer(), seed), integers(c["perm"])) << c.dump();
  }
}

TEST(CyclicSampler, EqualsTheVectors) {
  const Json file = Json::read(golden("samplers/samplers.json"));
  for (const Json& c : file["random"].as_array()) {
    SCOPED_TRACE(c.dump());
    const int64_t size = c["dp"].as_integer();
    if (c.contains("error")) {
      EXPECT_NE(error_of([&] { CyclicSampler(shape_of(c, 0), c["sharding"].as_bool()); }), "");
      continue;
    }
    const int64_t together = c["mbs"].as_integer() * size;
    const int64_t epoch_samples = c["total"].as_integer() / together * together;
    for (int64_t rank = 0; rank < size; ++rank) {
      CyclicSampler sampler(shape_of(c, rank), c["sharding"].as_bool());
      EXPECT_EQ(sampler.epoch(), c["epoch"].as_integer());
      std::vector<int64_t> batch;
      for (const Json& expected : c["batches_per_rank"].as_array()[rank].as_array()) {
        if (sampler.epoch() != c["epoch"].as_integer()) break;  // see the header
        ASSERT_TRUE(sampler.next(batch));
        EXPECT_EQ(batch, integers(expected));
      }
      EXPECT_EQ(sampler.consumed() % epoch_samples, 0);
    }
  }
}

// The next epoch follows automatically, as if the run had started there.
TEST(CyclicSampler, GoesOnWithTheNextEpoch) {
  for (const bool sharded : {true, false}) {
    const SamplerShape shape{
        .total = 23, .consumed = 0, .micro_batch_size = 2, .rank = 1, .size = 2};
    CyclicSampler sampler(shape, sharded);
    std::vector<int64_t> batch, expected;
    for (int64_t consumed = 0; consumed < 60; consumed += 4) {
      SamplerShape later = shape;
      later.consumed = consumed;
      CyclicSampler resumed(later, sharded);
      ASSERT_TRUE(sampler.next(batch) && resumed.next(expected));
      EXPECT_EQ(batch, expected) << consumed;
    }
  }
}

TEST(FullPassSampler, EqualsTheVectors) {
  const Json file = Json::read(golden("samplers/samplers.json"));
  for (const Json& c : file["full_validation"].as_array()) {
    SCOPED_TRACE(c.dump());
    for (int64_t rank = 0; rank < c["dp"].as_integer(); ++rank) {
      FullPassSampler sampler(c["total"].as_integer(), rank, c["dp"].as_integer());
      std::vector<int64_t> batch;
      for (const Json& expected : c["batches_per_rank"].as_array()[rank].as_array()) {
        ASSERT_TRUE(sampler.next(batch));
        EXPECT_EQ(batch, integers(expected));
      }
      EXPECT_FALSE(sampler.next(batch));
    }
  }
}

std::optional<int64_t> optional_integer(const Json& json) {
  return json.is_null() ? std::optional<int64_t>() : json.as_integer();
}

TEST(RequestedSamples, FollowTheTrainingArguments) {
  const Json cases = Json::read(golden("samplers/requested_samples.json"));
  for (const Json& c : cases.as_array()) {
    SCOPED_TRACE(c.dump());
    const Json& args = c["args"];
    SampleBudget budget;
    budget.train_samples = optional_integer(args["train_samples"]);
    budget.train_iterations = args["train_iters"].as_integer();
    budget.global_batch_size = args["global_batch_size"].as_integer();
    budget.eval_global_batch_size = args["eval_global_batch_size"].as_integer();
    budget.eval_interval = optional_integer(args["eval_interval"]);
    budget.eval_iterations = args["eval_iters"].as_integer();
    budget.start_eval_at_iteration = optional_integer(args["start_eval_at_iter"]);
    budget.full_validation = args["full_validation"].as_bool();
    budget.skip_train = args["skip_train"].as_bool();
    budget.iteration = args["iteration"].as_integer();
    if (!args["phase_transition_iterations"].is_null()) {
      budget.phase_transition_iterations = integers(args["phase_transition_iterations"]);
    }
    const auto got = requested_samples(budget);
    for (size_t i = 0; i < 3; ++i)
      EXPECT_EQ(got[i], optional_integer(c["train_valid_test"].as_array()[i]));
  }
  SampleBudget budget;
  budget.train_iterations = 10;
  budget.global_batch_size = budget.eval_global_batch_size = 2;
  budget.eval_iterations = 1;
  EXPECT_NE(error_of([&] { requested_samples(budget); }).find("--eval-interval"),
            std::string::npos);
  budget.eval_iterations = 0;
  budget.train_iterations = int64_t{1} << 62;
  EXPECT_NE(error_of([&] { requested_samples(budget); }).find("--train-iters"), std::string::npos);
}

}  // namespace
}  // namespace megatron::data
