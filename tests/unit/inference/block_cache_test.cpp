#include "inference/block_cache.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <set>

namespace megatron::inference {
namespace {

constexpr int64_t kSize = 4;

std::vector<int32_t> text(int64_t length, int32_t first = 0) {
  std::vector<int32_t> tokens(static_cast<size_t>(length));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// Reads a text's tokens from the end of the shared part to the end of the text.
int64_t read(BlockCache& cache, SequenceBlocks& blocks, const std::vector<int32_t>& tokens) {
  const int64_t shared = cache.share(blocks, tokens, std::ssize(tokens) - 1);
  EXPECT_TRUE(cache.extend(blocks, std::ssize(tokens)));
  cache.keep(blocks, tokens, std::ssize(tokens));
  return shared;
}

TEST(BlockCache, SharesWholeBlocksOfEqualBeginnings) {
  BlockCache cache({.block_size = kSize, .windows = {0}, .pages = {20}});
  SequenceBlocks a, b, c, d;
  EXPECT_EQ(read(cache, a, text(11)), 0);
  EXPECT_EQ(cache.used(), 3);
  EXPECT_EQ(read(cache, b, text(11)), 8);
  EXPECT_EQ(cache.used(), 4) << "the third block is not full";
  EXPECT_EQ(b.pages[0][1], a.pages[0][1]);
  EXPECT_NE(b.pages[0][2], a.pages[0][2]);
  std::vector<int32_t> other = text(11);
  other[5] = 99;
  EXPECT_EQ(read(cache, c, other), 4) << "the first block only";
  d.root = 1;
  EXPECT_EQ(read(cache, d, text(11)), 0) << "of another root";
}

// Even if all of a prompt is cached, its last token must be read, because a token is drawn from it.
TEST(BlockCache, SharesNoMoreThanIsAskedFor) {
  BlockCache cache({.block_size = kSize, .windows = {0}, .pages = {9}});
  SequenceBlocks a, b, c;
  read(cache, a, text(8));
  EXPECT_EQ(read(cache, b, text(8)), 4);
  EXPECT_EQ(cache.share(c, text(9), 8), 8);
  EXPECT_EQ(cache.shared_tokens(text(100), 0), 8);
}

TEST(BlockCache, KeepsWhatNobodyOwnsUntilItIsWanted) {
  BlockCache cache({.block_size = kSize, .windows = {0}, .pages = {4}});
  SequenceBlocks a, b, c;
  read(cache, a, text(8));
  cache.release(a);
  EXPECT_EQ(cache.used(), 0);
  EXPECT_EQ(cache.found(), 2);
  read(cache, b, text(4, 50));
  EXPECT_EQ(cache.shared_tokens(text(9), 0), 8) << "a free page was taken first";
  ASSERT_TRUE(cache.extend(b, 12));
  EXPECT_EQ(cache.shared_tokens(text(9), 0), 4) << "its last block went first";
  EXPECT_EQ(cache.share(c, text(9), 8), 4);
  EXPECT_FALSE(cache.extend(c, 8)) << "all pages have owners";
  EXPECT_EQ(cache.used(), 4);
  cache.release(c);
  cache.release(b);
  EXPECT_EQ(cache.used(), 0);
}

TEST(BlockCache, OnItsOwnRequestNothingIsFound) {
  BlockCache cache({.block_size = kSize, .windows = {0}, .pages = {9}, .prefix_caching = false});
  SequenceBlocks a, b;
  read(cache, a, text(8));
  EXPECT_EQ(read(cache, b, text(8)), 0);
  EXPECT_EQ(cache.found(), 0);
}

TEST(BlockCache, ForgetsWhatOtherWeightsMade) {
  BlockCache cache({.block_size = kSize, .windows = {0}, .pages = {9}});
  SequenceBlocks a, b;
  read(cache, a, text(8));
  cache.forget();
  EXPECT_EQ(read(cache, b, text(8)), 0);
  EXPECT_EQ(cache.found(), 2);
}

// A window of 5 leaves blocks behind. Later requests need exactly the blocks that the window sees.
TEST(BlockCache, WindowsLetGoOfWhatTheyLeaveBehind) {
  BlockCache cache({.block_size = kSize, .windows = {0, 5}, .pages = {16, 16}});
  SequenceBlocks a;
  read(cache, a, text(20));
  EXPECT_EQ(a.pages[0].size(), 5u);
  EXPECT_EQ(a.pages[1][3], SequenceBlocks::kLeftBehind) << "tokens from 20 on see those from 16 on";
  EXPECT_GE(a.pages[1][4], 0);
  EXPECT_EQ(cache.used(), 5 + 1);
  SequenceBlocks b;
  EXPECT_EQ(cache.share(b, text(21), 20), 20)
      << "the window's pages are kept after it has left them";
  EXPECT_EQ(b.pages[1][3], SequenceBlocks::kLeftBehind);
  EXPECT_EQ(cache.used(), 5 + 1);
  EXPECT_EQ(cache.blocks_for(1, 1000, 8), 5);
  EXPECT_EQ(cache.blocks_for(0, 1000, 8), 250);
}

// A slot is the page of a block, of which only that of the last token is needed.
TEST(BlockCache, SlotsAreThoseOfTheLastBlock) {
  BlockCache cache({.block_size = kSize, .windows = {2}, .pages = {6}});
  SequenceBlocks a, b, c;
  read(cache, a, text(18));
  EXPECT_EQ(cache.used(), 1);
  EXPECT_EQ(cache.found(), 4) << "a snapshot at the end of each full block";
  EXPECT_EQ(cache.share(b, text(10), 9), 8);
  EXPECT_EQ(b.pages[0][0], SequenceBlocks::kLeftBehind);
  EXPECT_EQ(b.pages[0].size(), 2u);
  EXPECT_EQ(cache.used(), 2);
  read(cache, c, text(12, 70));  // one free slot, and the snapshots of the first and third block
  EXPECT_EQ(cache.shared_tokens(text(7), 0), 0);
  EXPECT_EQ(cache.shared_tokens(text(15), 0), 8);
  EXPECT_EQ(cache.shared_tokens(text(16), 0), 16);
}

// Random texts with few different tokens, so that many prefixes are equal. At every moment each
// page belongs to the sequences that name it, and a page that can be found has the content it was
// found by.
TEST(BlockCache, LosesNoPage) {
  std::mt19937 random(3);
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
  };
  for (const bool caching : {true, false}) {
    BlockCache cache(
        {.block_size = kSize, .windows = {0, 6}, .pages = {40, 30}, .prefix_caching = caching});
    struct Reader {
      std::vector<int32_t> tokens;
      SequenceBlocks blocks;
      int64_t read = 0;
    };
    std::vector<Reader> readers;
    for (int step = 0; step < 20000; ++step) {
      const int64_t what = below(4);
      if (what == 0 && readers.size() < 8) {
        Reader r;
        for (int64_t i = below(40); i >= 0; --i) r.tokens.push_back(static_cast<int32_t>(below(2)));
        r.read = cache.share(r.blocks, r.tokens, std::ssize(r.tokens) - 1);
        readers.push_back(std::move(r));
      } else if (what == 1 && !readers.empty()) {
        const auto at = readers.begin() + below(std::ssize(readers));
        cache.release(at->blocks);
        readers.erase(at);
      } else if (!readers.empty()) {
        Reader& r = readers[static_cast<size_t>(below(std::ssize(readers)))];
        r.tokens.push_back(static_cast<int32_t>(below(2)));
        const int64_t next = std::min<int64_t>(std::ssize(r.tokens), r.read + 1 + below(9));
        if (!cache.extend(r.blocks, next)) continue;
        r.read = next;
        cache.keep(r.blocks, r.tokens, r.read);
      }
      if (step % 50 != 0) continue;
      std::set<std::pair<size_t, int32_t>> owned;
      for (const Reader& r : readers)
        for (size_t g = 0; g < r.blocks.pages.size(); ++g)
          for (const int32_t page : r.blocks.pages[g])
            if (page >= 0) owned.emplace(g, page);
      ASSERT_EQ(std::ssize(owned), cache.used());
      ASSERT_EQ(cache.available(0) + cache.available(1), cache.pages() - cache.used());
    }
    for (Reader& r : readers) cache.release(r.blocks);
    EXPECT_EQ(cache.used(), 0);
    EXPECT_EQ(cache.available(0), 40);
  }
}

}  // namespace
}  // namespace megatron::inference
