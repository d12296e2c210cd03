// Packed rows of chats as samples.
#include "corpus/chat/chat_dataset.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "base/error.h"

namespace megatron::corpus {
namespace {

// Chats of these lengths with ascending ids, from sources in turn; every second token carries loss.
std::shared_ptr<const ChatStore> store_of(const std::vector<int64_t>& lengths) {
  auto store = std::make_shared<ChatStore>();
  for (const int64_t length : lengths) {
    for (int64_t i = 0; i < length; ++i) {
      store->ids.push_back(static_cast<int32_t>(store->ids.size()));
      store->weights.push_back(i % 2 == 1 ? 1.0f : 0.0f);
    }
    store->ends.push_back(std::ssize(store->ids));
    store->sources.add(store->ends.size() % 2 == 1 ? "a" : "b");
  }
  return store;
}

std::vector<int64_t> all(size_t count) {
  std::vector<int64_t> chats(count);
  std::iota(chats.begin(), chats.end(), int64_t{0});
  return chats;
}

constexpr int32_t kPadding = 999;

TEST(ChatDataset, ARowIsDocumentsApart) {
  const ChatDataset set(store_of({3, 4}), all(2), Packing::bfd, 10, kPadding, 1, std::nullopt);
  ASSERT_EQ(set.size(), 1);
  EXPECT_DOUBLE_EQ(set.rows().filled(), 0.7);
  data::Sample sample;
  set.read(0, sample);
  EXPECT_EQ(sample.tokens, (std::vector<int64_t>{3, 4, 5, 6, 0, 1, 2, 999, 999, 999}));
  EXPECT_EQ(sample.labels, (std::vector<int64_t>{4, 5, 6, 0, 1, 2, 0, 0, 0, 0}));
  EXPECT_EQ(sample.loss_mask, (std::vector<float>{1, 0, 1, 0, 1, 0, 0, 0, 0, 0}));
  EXPECT_EQ(sample.position_ids, (std::vector<int64_t>{0, 1, 2, 3, 0, 1, 2, 0, 0, 0}));
  EXPECT_EQ(sample.segment_begin, (std::vector<int32_t>{0, 0, 0, 0, 4, 4, 4, 7, 8, 9}));
  EXPECT_EQ(sample.sources, (std::vector<int32_t>{1, 1, 1, 1, 0, 0, 0, -1, -1, -1}));
  set.read_filler(sample);
  EXPECT_EQ(std::ranges::count(sample.loss_mask, 0.0f), 10);
  EXPECT_THROW(set.read(1, sample), Error);
}

TEST(ChatDataset, MoreSamplesKeepTheOrderOfEarlierOnes) {
  ChatDataset set(store_of({3, 4, 5, 6, 7}), all(5), std::nullopt, 8, kPadding, 1, std::nullopt);
  const ChatDataset longer(store_of({3, 4, 5, 6, 7}), all(5), std::nullopt, 8, kPadding, 1, 12);
  ASSERT_EQ(set.size(), 5);
  set.request(12);
  ASSERT_EQ(set.size(), 12);
  for (int64_t k = 0; k < 12; ++k) {
    data::Sample a, b;
    set.read(k, a);
    longer.read(k, b);
    EXPECT_EQ(a.tokens, b.tokens) << k;
  }
  EXPECT_EQ(set.rows().rows(), 5);
}

TEST(ChatDataset, WithoutPackingEachChatIsARow) {
  const ChatDataset set(store_of({3, 12, 1}), {0, 1}, std::nullopt, 8, kPadding, 1, std::nullopt);
  EXPECT_EQ(set.size(), 2);
  data::Sample sample;
  std::set<int64_t> last;
  for (int64_t k = 0; k < 2; ++k) {
    set.read(k, sample);
    last.insert(sample.tokens[7]);
  }
  EXPECT_EQ(last, (std::set<int64_t>{10, kPadding}));  // the second is cut to 8 tokens, 3 to 10
}

TEST(ChatDataset, EachEpochHasAllRowsInItsOwnOrder) {
  const auto store = store_of(std::vector<int64_t>(40, 5));
  const auto firsts = [&](int64_t seed) {
    const ChatDataset set(store, all(40), Packing::bfd, 5, kPadding, seed, 100);
    EXPECT_EQ(set.size(), 100);
    std::vector<int64_t> first;
    data::Sample sample;
    for (int64_t k = 0; k < set.size(); ++k) {
      set.read(k, sample);
      first.push_back(sample.tokens[0]);
    }
    return first;
  };
  const std::vector<int64_t> order = firsts(1);
  const std::vector<int64_t> first(order.begin(), order.begin() + 40),
      second(order.begin() + 40, order.begin() + 80);
  EXPECT_EQ(std::set<int64_t>(first.begin(), first.end()).size(), 40u);
  EXPECT_EQ(std::set<int64_t>(second.begin(), second.end()).size(), 40u);
  EXPECT_NE(first, second);
  EXPECT_EQ(order, firsts(1));
  EXPECT_NE(order, firsts(2));
}

}  // namespace
}  // namespace megatron::corpus
