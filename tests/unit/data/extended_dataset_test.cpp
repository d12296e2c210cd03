// The order of samples when more are requested: kept or changed, and extended.
#include "data/extended_dataset.h"

#include <fmt/core.h>

#include <algorithm>
#include <set>

#include "data/blend_builder.h"
#include "data/indexed_dataset.h"
#include "support.h"

namespace megatron::data {
namespace {

constexpr int64_t kLength = 32;

BlendRequest request_of(const std::vector<std::string>& list) {
  BlendRequest request;
  request.all = parse_blend_list(list, "--data-path");
  return request;
}

std::shared_ptr<const Dataset> train_set(const BlendRequest& request, int64_t samples) {
  GptDatasetConfig config;
  config.split = "1";
  config.sequence_length = kLength;
  config.seed = 7;
  config.eod = 999;
  config.cache = false;
  return build_blends(request, config, {samples, 0, 0}, open_golden).sets[0].at(0).set;
}

// Returns the tokens of samples [0, count).
std::vector<std::vector<int64_t>> first_samples(const Dataset& set, int64_t count) {
  std::vector<std::vector<int64_t>> all;
  Sample sample;
  for (int64_t k = 0; k < count; ++k) {
    set.read(k, sample);
    all.push_back(sample.tokens);
  }
  return all;
}

const std::vector<std::vector<std::string>> kLists = {
    {"a"}, {"b"}, {"0.7", "a", "0.3", "b"}, {"1", "a", "1", "b", "2", "c"}, {"a", "b"}};

int64_t samples_of_an_epoch(const std::string& prefix) {
  return dynamic_cast<const GptDataset&>(*train_set(request_of({prefix}), 1)).size();
}

// The predicted order is correct: kept if it says so, and changed if it says so.
TEST(SampleOrder, IsKeptWhereTheSamplesAreTheSame) {
  const int64_t epoch = samples_of_an_epoch("a");
  int kept = 0, changed = 0;
  for (const auto& list : kLists) {
    const BlendRequest request = request_of(list);
    for (const double before : {0.2, 0.6, 1.3, 1.9, 2.5}) {
      for (const double now : {0.3, 0.9, 1.4, 1.7, 2.4, 4.0}) {
        const auto asked = [&](double epochs) {
          return static_cast<int64_t>(epochs * static_cast<double>(epoch));
        };
        const auto set = train_set(request, asked(now)), other = train_set(request, asked(before));
        const int64_t both = std::min(set->size(), other->size());
        const bool same = first_samples(*set, both) == first_samples(*other, both);
        EXPECT_EQ(keeps_order(request, Split::train, *set, asked(before)), same)
            << fmt::format("{} samples, then {}", asked(before), asked(now));
        ++(same ? kept : changed);
      }
    }
  }
  EXPECT_GT(kept, 20);
  EXPECT_GT(changed, 20);
}

TEST(SampleOrder, ANumberThatNobodyAskedForIsAnotherOrder) {
  const BlendRequest request = request_of({"a"});
  EXPECT_FALSE(keeps_order(request, Split::train, *train_set(request, 10), INT64_MAX / 2));
}

TEST(ExtendedDataset, BeginsWithTheSamplesOfBefore) {
  const int64_t epoch = samples_of_an_epoch("a");
  for (const auto& list : kLists) {
    BlendRequest request = request_of(list);
    const int64_t asked = epoch / 2 + epoch;
    const auto plain = train_set(request, asked);
    std::vector<std::vector<int64_t>> before = first_samples(*plain, plain->size());
    for (const int64_t extended : {asked, asked + 1, 2 * asked, 7 * asked}) {
      request.extended[0] = extended;
      const auto set = train_set(request, asked);
      EXPECT_TRUE(set->size() >= extended || list == kLists.back()) << extended;
      const auto all = first_samples(*set, set->size());
      ASSERT_GE(all.size(), before.size());
      EXPECT_TRUE(std::equal(before.begin(), before.end(), all.begin())) << extended;
      EXPECT_TRUE(keeps_order(request, Split::train, *set, asked));
      before = all;
    }
  }
}

// Each epoch has every sample once, in an order of its own.
TEST(ExtendedDataset, AppendsWholeEpochs) {
  BlendRequest request = request_of({"a"});
  const int64_t epoch = samples_of_an_epoch("a");
  request.extended[0] = 6 * epoch;
  const auto set = train_set(request, epoch / 2);
  const auto& extended = dynamic_cast<const ExtendedDataset&>(*set);
  ASSERT_EQ(extended.parts().size(), 4u);  // 1 + 1 + 2 + 4
  EXPECT_EQ(extended.base().plan().epochs, 1);
  EXPECT_EQ(extended.parts()[1]->plan().epochs, 1);
  EXPECT_EQ(extended.parts()[2]->plan().epochs, 2);
  EXPECT_EQ(extended.parts()[3]->plan().epochs, 4);
  for (const auto& part : extended.parts()) EXPECT_FALSE(part->plan().separate_final_epoch);
  const auto all = first_samples(*set, 2 * epoch);
  const auto middle = all.begin() + static_cast<ptrdiff_t>(epoch);
  const std::set<std::vector<int64_t>> once(all.begin(), middle);
  EXPECT_EQ(static_cast<int64_t>(once.size()), epoch);
  EXPECT_NE(std::vector(all.begin(), middle), std::vector(middle, all.end()));
  Sample sample;
  EXPECT_THROW(set->read(set->size(), sample), Error);
  EXPECT_THROW(set->read(-1, sample), Error);
}

}  // namespace
}  // namespace megatron::data
