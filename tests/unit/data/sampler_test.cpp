#include "data/sampler.h"

#include "data/requested_samples.h"
#include "support.h"

namespace megatron::data {
namespace {

TEST(SequentialSampler, GivesEachRankItsPart) {
  const Json cases = Json::read(golden("samplers/single.json"))["single"];
  for (const Json& c : cases.as_array()) {
    SCOPED_TRACE(c.dump());
    const int64_t size = c["dp"].as_integer();
    for (int64_t rank = 0; rank < size; ++rank) {
      const auto make = [&] {
        return SequentialSampler(c["total"].as_integer(), c["consumed"].as_integer(),
                                 c["mbs"].as_integer(), rank, size,
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
