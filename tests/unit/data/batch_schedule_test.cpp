#include "data/batch_schedule.h"

#include "support.h"

namespace megatron::data {
namespace {

bool is_set(const Json& c, std::string_view key) { return c.contains(key) && c[key].as_bool(); }

TEST(BatchSchedule, ConstantEqualsTheVectors) {
  const Json cases = Json::read(golden("samplers/batch_size.json"));
  for (const Json& c : cases["constant"].as_array()) {
    SCOPED_TRACE(c.dump());
    BatchSchedule schedule = BatchSchedule::constant(c["gbs"].as_integer());
    const std::string error = error_of([&] {
      schedule.divide(c["mbs"].as_integer(), c["dp"].as_integer(), is_set(c, "decrease"));
    });
    EXPECT_EQ(error != "", c.contains("error")) << error;
    if (c.contains("error")) continue;
    EXPECT_EQ(schedule.micro_batches(0), c["num_microbatches"].as_integer());
    EXPECT_EQ(schedule.target(0), c["current_gbs"].as_integer());
    EXPECT_EQ(schedule.batch(0), c["running_gbs"].as_integer());
  }
}

TEST(BatchSchedule, StepsEqualTheVectors) {
  const Json cases = Json::read(golden("samplers/batch_size.json"));
  for (const Json& c : cases["step_schedule"].as_array()) {
    if (is_set(c, "decrease")) continue;  // checked with the flags in golden/training
    SCOPED_TRACE(c["schedule"].dump());
    const int64_t micro = c["mbs"].as_integer(), ranks = c["dp"].as_integer();
    const std::optional<int64_t> length =
        c.contains("seq_length") ? std::optional(c["seq_length"].as_integer()) : std::nullopt;
    BatchSchedule schedule;
    const auto make = [&] { schedule = BatchSchedule::steps(c["schedule"].as_string(), length); };
    if (c.contains("error")) {
      EXPECT_NE(error_of(make), "");
      continue;
    }
    make();
    std::vector<BatchSchedule::Stage> stages;
    for (const Json& stage : c["parsed"].as_array())
      stages.push_back({integers(stage)[0], integers(stage)[1]});
    EXPECT_EQ(schedule.stages(), stages);
    EXPECT_EQ(schedule.last(), c["global_batch_size"].as_integer());
    bool divisible = true;
    for (const auto& stage : stages) divisible = divisible && stage.batch % (micro * ranks) == 0;
    const std::string error = error_of([&] { schedule.divide(micro, ranks, false); });
    EXPECT_EQ(error == "", divisible) << error;
    if (!divisible) continue;
    for (const Json& point : c["points"].as_array()) {
      const std::vector<int64_t> p = integers(point);
      EXPECT_EQ((std::vector{p[0], schedule.micro_batches(p[0]), schedule.target(p[0]),
                             schedule.batch(p[0])}),
                p);
    }
    int64_t consumed = 0, iterations = 0;
    for (const Json& point : c["trajectory"].as_array()) {
      const std::vector<int64_t> p = integers(point);
      ASSERT_EQ((std::vector{consumed, schedule.micro_batches(consumed), schedule.batch(consumed)}),
                p);
      EXPECT_EQ(schedule.samples_after(iterations), consumed);
      EXPECT_EQ(schedule.samples_after(1, consumed), consumed + schedule.batch(consumed));
      EXPECT_EQ(schedule.iterations_within(consumed), iterations);
      EXPECT_EQ(schedule.iterations_within(consumed + schedule.batch(consumed) - 1), iterations);
      consumed += schedule.batch(consumed);
      ++iterations;
    }
  }
}

TEST(BatchSchedule, RampGrowsLinearly) {
  // Megatron-LM's own example: 16 to 1024 in 126 increments of 8 over 300000 samples, 2380 each.
  BatchSchedule schedule = BatchSchedule::ramp(16, 8, 300000, 1024);
  EXPECT_EQ(schedule.target(0), 16);
  EXPECT_EQ(schedule.target(2380), 16);  // 300000 / 126 = 2380.95
  EXPECT_EQ(schedule.target(2381), 24);
  EXPECT_EQ(schedule.target(150000), 16 + 63 * 8);
  EXPECT_EQ(schedule.target(299999), 1016);
  EXPECT_EQ(schedule.target(300000), 1024);
  EXPECT_EQ(schedule.target(int64_t{1} << 40), 1024);
  schedule.divide(2, 4, false);
  EXPECT_EQ(schedule.micro_batches(0), 2);
  // Compares every sample of a smaller ramp with the formula.
  const BatchSchedule small = BatchSchedule::ramp(2, 3, 50, 23);
  for (int64_t n = 0; n < 80; ++n) {
    const int64_t expected =
        n > 50 ? 23 : 2 + 3 * static_cast<int64_t>(static_cast<double>(n) / (50.0 / 7));
    EXPECT_EQ(small.target(n), expected) << n;
  }
  EXPECT_EQ(BatchSchedule::ramp(8, 4, 100, 8).stages().size(), 1u);
  EXPECT_EQ(BatchSchedule::ramp(4, 4, 0, 8).target(0), 8);
  BatchSchedule rounded = BatchSchedule::ramp(4, 4, 100, 16);
  rounded.divide(3, 1, true);
  EXPECT_EQ(rounded.batch(0), 3);
  EXPECT_EQ(rounded.batch(1000), 15);
  EXPECT_NE(error_of([] { BatchSchedule::ramp(4, 5, 100, 16); }).find("multiple"),
            std::string::npos);
  EXPECT_NE(error_of([] { BatchSchedule::ramp(20, 4, 100, 16); }).find("20"), std::string::npos);
  EXPECT_NE(error_of([] { BatchSchedule::ramp(4, 0, 100, 16); }).find("increment"),
            std::string::npos);
}

TEST(BatchSchedule, RefusesUncountableRuns) {
  const BatchSchedule schedule = BatchSchedule::constant(1 << 20);
  EXPECT_NE(error_of([&] { schedule.samples_after(int64_t{1} << 61); }).find("--train-iters"),
            std::string::npos);
}

}  // namespace
}  // namespace megatron::data
