#include "data/random_state.h"

#include <numeric>

#include "data/mock_dataset.h"
#include "support.h"

namespace megatron::data {
namespace {

std::vector<int32_t> shuffled(int64_t seed, int64_t n) {
  std::vector<int32_t> values(static_cast<size_t>(n));
  std::iota(values.begin(), values.end(), 0);
  RandomState random(seed);
  random.shuffle(std::span(values));
  return values;
}

// Values of CPython 3.11's random.Random.
TEST(RandomState, DrawsLikePython) {
  RandomState random = RandomState::python(1234);
  EXPECT_EQ(random.next(), 4150886329u);
  EXPECT_EQ(random.next(), 3342196574u);
  EXPECT_EQ(random.next(), 1892932127u);
  EXPECT_EQ(random.uniform(), 0.11685051774599753);
  RandomState zero = RandomState::python(0);
  EXPECT_EQ(zero.uniform(), 0.8444218515250481);
  EXPECT_EQ(zero.uniform(), 0.7579544029403025);
}

TEST(RandomState, ShufflesLikeNumpy) {
  const Json vectors = Json::read(golden("gpt_dataset/shuffle_vectors.json"));
  for (const Json& v : vectors["small"].as_array()) {
    const auto got = shuffled(v["seed"].as_integer(), v["n"].as_integer());
    EXPECT_EQ(std::vector<int64_t>(got.begin(), got.end()), integers(v["order"]));
  }
  for (const Json& v : vectors["big"].as_array()) {
    const auto got = shuffled(v["seed"].as_integer(), v["n"].as_integer());
    EXPECT_EQ(sha256_hex(as_text(std::as_bytes(std::span(got)))), v["sha256_int32"].as_string());
  }
}

TEST(RandomState, RefusesSeedsOutsideItsRange) {
  EXPECT_NE(error_of([] { RandomState random(-1); }), "");
  EXPECT_NE(error_of([] { RandomState random(int64_t{1} << 32); }), "");
}

TEST(RandomState, DrawsTwoWordsAboveThirtyTwoBits) {
  RandomState wide(5), words(5);
  const uint64_t max = (uint64_t{1} << 40) - 1;  // the mask itself: no draw is rejected
  for (int i = 0; i < 10; ++i) {
    const uint64_t high = words.interval(0xffffffff), low = words.interval(0xffffffff);
    EXPECT_EQ(wide.interval(max), (high << 32 | low) & max);
  }
}

TEST(MockTokens, HasNumpysLengths) {
  const Json facts = Json::read(golden("gpt_dataset/mock.json"))["seed1234_S64_n50_vocab1000"];
  const MockTokens mock(1000, 999);
  std::vector<int32_t> lengths;
  for (int64_t i = 0; i < mock.sequence_count(); ++i)
    lengths.push_back(static_cast<int32_t>(mock.length(i)));
  EXPECT_EQ(std::vector<int64_t>(lengths.begin(), lengths.begin() + 50),
            integers(facts["sequence_lengths_first50"]));
  EXPECT_EQ(std::accumulate(lengths.begin(), lengths.end(), int64_t{0}),
            facts["sequence_lengths_sum"].as_integer());
  EXPECT_EQ(sha256_hex(as_text(std::as_bytes(std::span(lengths)))),
            facts["sequence_lengths_sha256"].as_string());
}

// Draws are generated ahead in blocks. After a shuffle of any length the generator has the same
// state as if it had drawn one by one.
TEST(RandomState, ShufflesAsDrawsOneByOne) {
  for (const int64_t n : {0, 1, 2, 3, 255, 256, 257, 258, 624, 1025, 70000}) {
    SCOPED_TRACE(n);
    RandomState blocks(n), single(n), skipped(n);
    std::vector<int64_t> got(static_cast<size_t>(n)), expected(static_cast<size_t>(n));
    std::iota(got.begin(), got.end(), 0);
    expected = got;
    blocks.shuffle(std::span(got));
    for (size_t i = expected.size(); i-- > 1;) std::swap(expected[i], expected[single.interval(i)]);
    skipped.skip_shuffle(static_cast<uint64_t>(n));
    EXPECT_EQ(got, expected);
    const uint64_t next = single.interval(0xffffffff);
    EXPECT_EQ(blocks.interval(0xffffffff), next);
    EXPECT_EQ(skipped.interval(0xffffffff), next);
  }
}

}  // namespace
}  // namespace megatron::data
