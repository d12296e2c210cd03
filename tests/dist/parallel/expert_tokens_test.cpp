// Tokens sent to the ranks of their experts and back, checked against the router's choices.
#include "parallel/expert_tokens.h"

#include <gtest/gtest.h>

#include <set>

#include "dist/ranks.h"
#include "parallel/placement.h"

namespace megatron::parallel {
namespace {

using testing::each_rank;
using testing::make;

constexpr int kRanks = 4;
constexpr int64_t kTokens = 5, kExperts = 8, kChoices = 2, kNumbers = 3;

// Choices of all ranks' tokens: rank 1's tokens all go to the same two experts, and none to the
// last two.
std::vector<int32_t> choices() {
  std::vector<int32_t> all;
  for (int64_t token = 0; token < kRanks * kTokens; ++token) {
    const bool fixed = token / kTokens == 1;
    const auto first = static_cast<int32_t>(fixed ? 4 : token * 5 % 6);
    all.insert(all.end(), {first, static_cast<int32_t>(fixed ? 5 : (first + 1 + token % 4) % 6)});
  }
  return all;
}

// Ranks that hold an expert of the token, each rank a slice of `width` of its experts.
std::set<int> holders(int64_t token, int width) {
  const int64_t held = kExperts * width / kRanks;
  std::set<int> ranks;
  for (int64_t j = 0; j < kChoices; ++j) {
    const int64_t place = choices()[static_cast<size_t>(token * kChoices + j)] / held * width;
    for (int w = 0; w < width; ++w) ranks.insert(static_cast<int>(place) + w);
  }
  return ranks;
}

double value_of(int64_t token, int64_t i) { return static_cast<double>(10 * token + i + 1); }

std::vector<double> own_values(int rank, double factor) {
  std::vector<double> values;
  for (int64_t t = 0; t < kTokens; ++t)
    for (int64_t i = 0; i < kNumbers; ++i)
      values.push_back(factor * value_of(rank * kTokens + t, i));
  return values;
}

void travel(Runtime& runtime, comm::Group& world, int width) {
  const int self = world.rank();
  const ExpertRanks ranks{.group = &world, .dispatcher = TokenDispatcher::alltoall, .width = width};
  Tensor chosen = make(runtime, {kRanks * kTokens, kChoices}, DType::i32);
  const std::vector<int32_t> all = choices();
  copy_from(chosen, std::span<const int32_t>(all));
  Tape tape(runtime);
  const auto routes = token_routes(tape, chosen, kExperts, ranks);
  ASSERT_NE(routes, nullptr);
  for (int rank = 0; rank < kRanks; ++rank) {
    int64_t sent = 0, received = 0;
    for (int64_t t = 0; t < kTokens; ++t) {
      sent += static_cast<int64_t>(holders(self * kTokens + t, width).count(rank));
      received += static_cast<int64_t>(holders(rank * kTokens + t, width).count(self));
    }
    EXPECT_EQ(routes->send_counts.at(static_cast<size_t>(rank)), sent) << self << " to " << rank;
    EXPECT_EQ(routes->receive_counts.at(static_cast<size_t>(rank)), received)
        << rank << " to " << self;
  }
  const Var x = tape.leaf(make(runtime, {kTokens, kNumbers}, DType::f64, own_values(self, 1)));
  const Var arrived = send_to_expert_ranks(tape, x, ranks, routes, "tokens").end(tape);
  const std::vector<double> there = to_doubles(arrived.value);
  ASSERT_EQ(arrived.value.shape(), (Shape{kRanks * kTokens, kNumbers}));
  for (int64_t token = 0; token < kRanks * kTokens; ++token)
    for (int64_t i = 0; i < kNumbers; ++i)
      EXPECT_EQ(there[static_cast<size_t>(token * kNumbers + i)],
                holders(token, width).contains(self) ? value_of(token, i) : 0)
          << "token " << token << " on rank " << self;
  // Every holder returns the token unchanged.
  const Var back = send_back(tape, arrived, ranks, routes, "results").end(tape);
  tape.set_gradient(back, make(runtime, {kTokens, kNumbers}, DType::f64, own_values(self, 100)));
  tape.backward();
  const std::vector<double> sums = to_doubles(back.value), gradient = to_doubles(tape.gradient(x));
  for (int64_t t = 0; t < kTokens; ++t) {
    const auto count = static_cast<double>(holders(self * kTokens + t, width).size());
    for (int64_t i = 0; i < kNumbers; ++i) {
      const auto at = static_cast<size_t>(t * kNumbers + i);
      const double value = value_of(self * kTokens + t, i);
      EXPECT_EQ(sums[at], count * value) << "token " << t << " of rank " << self;
      EXPECT_EQ(gradient[at], 100 * count * value) << "token " << t << " of rank " << self;
    }
  }
}

TEST(ExpertTokens, TravelOnceToEachRankOfTheirExpertsAndBack) {
  for (const int width : {1, 2})
    each_rank(kRanks, [&](comm::Group& world, Runtime& runtime) { travel(runtime, world, width); });
}

// With these dispatchers all ranks have all tokens at once, or the host does not know the choices.
TEST(ExpertTokens, HaveNoRoutesWhereTheyAreGathered) {
  each_rank(2, [](comm::Group& world, Runtime& runtime) {
    Tensor chosen = make(runtime, {2, 1}, DType::i32);
    const std::vector<int32_t> experts = {0, 1};
    copy_from(chosen, std::span<const int32_t>(experts));
    Tape tape(runtime);
    ExpertRanks ranks{.group = &world};
    EXPECT_EQ(token_routes(tape, chosen, 2, ranks), nullptr);
    ranks.dispatcher = TokenDispatcher::alltoall;
    EXPECT_NE(token_routes(tape, chosen, 2, ranks), nullptr);
    ranks.own_tokens = false;
    EXPECT_EQ(token_routes(tape, chosen, 2, ranks), nullptr);
    ranks.group = nullptr;
    EXPECT_EQ(token_routes(tape, chosen, 2, ranks), nullptr);
  });
}

}  // namespace
}  // namespace megatron::parallel
