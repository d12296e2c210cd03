#include "comm/agreement.h"

#include <gtest/gtest.h>

#include <functional>

namespace megatron::comm {
namespace {

uint64_t sum_of(int ranks, const std::function<CallHeader(int rank)>& header) {
  uint64_t sum = 0;
  for (int r = 0; r < ranks; ++r) sum += share_of_agreement(header(r), r, ranks);
  return sum;
}

const CallHeader kCall = {"all_reduce", "grads", DType::f32, 4096};

TEST(Agreement, OfEqualCallsIsZero) {
  for (const int ranks : {2, 3, 4, 7, 64, 1000})
    EXPECT_EQ(sum_of(ranks, [](int) { return kCall; }), 0u) << ranks;
}

TEST(Agreement, AnyRankThatDiffersInAnythingIsSeen) {
  std::vector<CallHeader> others(8, kCall);
  others[0].operation = "broadcast";
  others[1].call = "grade";
  others[2].type = DType::bf16;
  others[3].bytes = 4100;
  others[4].op = Reduce::max;
  others[5].root = 0;
  others[6].has_data = false;
  others[7].call = "";
  for (const CallHeader& other : others) {
    for (const int ranks : {2, 3, 5}) {
      for (int odd = 0; odd < ranks; ++odd) {
        EXPECT_NE(sum_of(ranks, [&](int r) { return r == odd ? other : kCall; }), 0u);
        // One rank differs from all others.
        EXPECT_NE(sum_of(ranks, [&](int r) { return r == odd ? kCall : other; }), 0u);
      }
    }
  }
}

TEST(Agreement, OfRowCounts) {
  constexpr int kRanks = 3;
  const auto rows = [](int from, int to) { return int64_t{from} * 5 + to; };
  std::vector<std::vector<int64_t>> sent(kRanks), expected(kRanks);
  for (int a = 0; a < kRanks; ++a) {
    for (int b = 0; b < kRanks; ++b) {
      sent[static_cast<size_t>(a)].push_back(rows(a, b));
      expected[static_cast<size_t>(a)].push_back(rows(b, a));
    }
  }
  const auto header = [&](int r) {
    CallHeader h = {"all_to_all", "dispatch", DType::bf16, 64};
    h.send_counts = sent[static_cast<size_t>(r)];
    h.receive_counts = expected[static_cast<size_t>(r)];
    return h;
  };
  EXPECT_EQ(sum_of(kRanks, header), 0u);
  ++sent[1][2];
  EXPECT_NE(sum_of(kRanks, header), 0u);
  --sent[1][0];  // as many rows as before, but one to the wrong rank
  EXPECT_NE(sum_of(kRanks, header), 0u);
  --sent[1][2], ++sent[1][0];
  std::swap(expected[0][1], expected[0][2]);
  EXPECT_NE(sum_of(kRanks, header), 0u);
}

TEST(Agreement, HeadersTravelAsBytes) {
  const std::vector<int64_t> sent = {1, 2, 1 << 20}, expected = {0, 5, 7};
  CallHeader h = {"all_to_all", "dispatch, layer 3", DType::i64, int64_t{1} << 40};
  h.op = Reduce::max;
  h.root = 2;
  h.has_data = false;
  h.send_counts = sent;
  h.receive_counts = expected;
  std::vector<int64_t> counts;
  const CallHeader back = unpacked(packed(h), counts);
  EXPECT_TRUE(same_call(h, back));
  EXPECT_EQ(std::vector<int64_t>(back.send_counts.begin(), back.send_counts.end()), sent);
  EXPECT_EQ(std::vector<int64_t>(back.receive_counts.begin(), back.receive_counts.end()), expected);
  EXPECT_TRUE(same_call(kCall, unpacked(packed(kCall), counts)));
}

}  // namespace
}  // namespace megatron::comm
