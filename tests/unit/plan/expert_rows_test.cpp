// Rows of experts in the calls of a step, and the cost of products with fewer rows.
#include "plan/expert_rows.h"

#include <gtest/gtest.h>

#include "plan/page.h"
#include "plan/plan_json.h"
#include "plan/replay_memory.h"
#include "unit/plan/small_plan.h"

namespace megatron::plan {
namespace {

class ExpertRowsTest : public ::testing::Test {
 protected:
  ExpertRowsTest() { runtime_.stream().watch(&recorder_); }
  Tensor tensor(Shape shape, DType type = DType::bf16) {
    return Tensor::empty(runtime_.arena(MemoryClass::activations), shape, type, "t");
  }
  // A layer: `held` experts of a rank, in a buffer of `room` rows.
  void layer(int64_t tokens, int64_t choices, int64_t held, int64_t room) {
    const kernels::Table& kernels = kernels::table(runtime_.stream());
    const Tensor offsets = tensor({held + 1}, DType::i32);
    kernels.expert_rows({.experts = tensor({tokens, choices}, DType::i32),
                         .offsets = offsets,
                         .slots = tensor({room}, DType::i32),
                         .rows = tensor({tokens, choices}, DType::i32)},
                        runtime_.stream());
    kernels.grouped_gemm({.a = tensor({room, 8}),
                          .b = tensor({held, 8, 16}),
                          .offsets = offsets,
                          .out = tensor({room, 16})},
                         runtime_.stream());
  }
  // Time of one call of the products.
  static kernels::Cost product(const StepWork& work) {
    for (const WorkItem& item : work.kernels)
      if (item.kernel == "grouped_gemm") return item.cost;
    return {};
  }

  Runtime runtime_{{DeviceKind::meta, 0}, 1};
  Recorder recorder_;
};

TEST_F(ExpertRowsTest, OfDividedExpertsTheFullestRankHasMore) {
  layer(64, 2, 2, 128);
  const auto rows = expert_rows(recorder_.take(), 8);
  ASSERT_TRUE(rows.has_value());
  EXPECT_TRUE(rows->divided);
  EXPECT_EQ(rows->room, 128);
  EXPECT_EQ(rows->even, 32);
  EXPECT_EQ(rows->most, 4);
  EXPECT_EQ(rows_at(*rows, 1), 32);
  EXPECT_EQ(rows_at(*rows, 1.51), 49);
  EXPECT_EQ(rows_at(*rows, 9), 128);
  EXPECT_EQ(fill_at(*rows, 1.5).rows, 48);
  EXPECT_EQ(fill_at(*rows, 1.5).fullest, 1);
  ExpertRows padded = *rows;
  padded.padded = true;
  EXPECT_EQ(rows_at(padded, 1), 128);
}

TEST_F(ExpertRowsTest, OfOneRankTheFullestExpertHasMoreOfAsMany) {
  layer(64, 2, 8, 128);
  const auto rows = expert_rows(recorder_.take(), 8);
  ASSERT_TRUE(rows.has_value());
  EXPECT_FALSE(rows->divided);
  EXPECT_EQ(rows->most, 4);
  EXPECT_EQ(rows_at(*rows, 3), 128);
  EXPECT_EQ(fill_at(*rows, 3).fullest, 3);
  EXPECT_FALSE(expert_rows(recorder_.take(), 8).has_value()) << "a step without such calls";
}

// The first of two calls drops choices over whole sequences, half of which are on this rank.
TEST_F(ExpertRowsTest, AreNotThoseOfTheCallThatDropsChoices) {
  layer(128, 2, 8, 192);
  layer(64, 2, 8, 96);
  StepWork work = recorder_.take();
  EXPECT_EQ(expert_rows(work, 8)->room, 192);
  work.collectives.push_back({.collective = "all_gather", .call = "expert capacity", .ranks = 2});
  EXPECT_EQ(expert_rows(work, 8)->room, 96);
  EXPECT_EQ(expert_rows(work, 8)->even, 128);
}

TEST_F(ExpertRowsTest, ProductsOfFewerRowsCostLess) {
  layer(64, 2, 2, 128);
  const StepWork work = recorder_.take();
  const kernels::Cost full = product(work), half = product(filled(work, {.rows = 64}));
  EXPECT_EQ(full.flops, 2.0 * 128 * 8 * 16);
  EXPECT_EQ(half.flops, full.flops / 2);
  EXPECT_EQ(half.bytes, full.bytes - 64 * 8 * 2);  // all of `out` is written
  EXPECT_EQ(product(filled(work, {})).flops, full.flops);
  EXPECT_EQ(product(filled(work, {.rows = 500})).bytes, full.bytes);
}

TEST(ExpertFill, RowsGoToTheFirstExpertAndEvenlyToTheRest) {
  const auto offsets = [](const ExpertFill& fill, int64_t room, int64_t experts) {
    std::vector<int64_t> all;
    for (int64_t e = 0; e <= experts; ++e) all.push_back(rows_before(fill, room, e, experts));
    return all;
  };
  using List = std::vector<int64_t>;
  EXPECT_EQ(offsets({}, 10, 4), (List{0, 2, 5, 7, 10}));
  EXPECT_EQ(offsets({.rows = 4}, 10, 4), (List{0, 1, 2, 3, 4}));
  EXPECT_EQ(offsets({.rows = 12, .fullest = 2}, 12, 4), (List{0, 6, 8, 10, 12}));
  EXPECT_EQ(offsets({.rows = 12, .fullest = 4}, 12, 4), (List{0, 12, 12, 12, 12}));
  EXPECT_EQ(offsets({.rows = 12, .fullest = 3}, 12, 1), (List{0, 12}));
}

// --- The plan's page.

Plan plan_of_experts() {
  Plan plan = small_plan();
  plan.experts = ExpertRows{.room = 128, .even = 32, .most = 4, .divided = true};
  return plan;
}

std::string section(const Plan& plan) {
  const std::string text = page(plan, {.blocks = false});
  const size_t at = text.find("\n\nLoad of");
  return at == text.npos ? "" : text.substr(at + 2, text.find("\n\n", at + 2) - at - 1);
}

TEST(PlanPageOfExperts, SaysWhatBoundsTheBuffers) {
  Plan plan = plan_of_experts();
  EXPECT_EQ(section(small_plan()), "");
  EXPECT_EQ(section(plan), "") << "figures of full buffers alone";
  plan.loads = {{.load = 1, .rows = 32}, {.load = 1.5, .rows = 48}};
  const auto says = [&](const std::string& part) {
    return section(plan).find(part) != std::string::npos;
  };
  EXPECT_TRUE(says("Buffers have 128 rows (the worst case: any routing fits)"));
  plan.experts->bound = ExpertRows::Bound::rank_capacity;
  plan.experts->factor = 1.5;
  plan.experts->room = 48;
  EXPECT_TRUE(says("Buffers have 48 rows (--moe-expert-rank-capacity-factor 1.5)"));
  plan.experts->bound = ExpertRows::Bound::expert_capacity;
  EXPECT_TRUE(says("(--moe-expert-capacity-factor 1.5)"));
  plan.loads.clear();
  const Json json = to_json(plan)["experts"];
  EXPECT_EQ(json["rows"].as_integer(), 48);
  EXPECT_EQ(json["even_rows"].as_integer(), 32);
  EXPECT_EQ(json["bound"].as_string(), "expert_capacity");
  EXPECT_EQ(json["factor"].as_number(), 1.5);
  EXPECT_TRUE(json["loads"].as_array().empty());
  EXPECT_TRUE(to_json(small_plan())["experts"].is_null());
}

TEST(PlanPageOfExperts, PutsTheWorstLoadBesideTheExpectedOne) {
  Plan plan = plan_of_experts();
  plan.loads = {{.load = 1, .rows = 32, .bytes = 1'000'000, .seconds = 0.5},
                {.load = 1.5, .rows = 48, .bytes = 1'250'000, .seconds = std::nullopt}};
  EXPECT_EQ(section(plan),
            R"(Load of the busiest expert-parallel rank / mean  1 (balanced)  1.5 (worst case)
  rows of its experts per layer                            32                48
  memory per rank                                     1.00 MB           1.25 MB
  step time                                            500 ms               n/a
  On a CPU memory grows with the rows in use, not with the size of the buffers
  Buffers have 128 rows (the worst case: any routing fits); the other sections are for load 1
)");
  plan.experts->fixed = true;
  EXPECT_NE(section(plan).find(
                "On a GPU the buffers have a fixed size, so memory does not depend on the load"),
            std::string::npos);
  plan.experts->divided = false;
  EXPECT_NE(section(plan).find("Load of the busiest expert / mean "), std::string::npos);
  const Json loads = to_json(plan)["experts"]["loads"];
  EXPECT_EQ(loads.as_array()[1]["load"].as_number(), 1.5);
  EXPECT_EQ(loads.as_array()[1]["rows"].as_integer(), 48);
  EXPECT_EQ(loads.as_array()[0]["rank_bytes"].as_integer(), 1'000'000);
  EXPECT_EQ(loads.as_array()[0]["step_seconds"].as_number(), 0.5);
  EXPECT_TRUE(loads.as_array()[1]["step_seconds"].is_null());
}

}  // namespace
}  // namespace megatron::plan
