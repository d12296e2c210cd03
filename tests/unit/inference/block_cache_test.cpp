#include "inference/block_cache.h"

#include <gtest/gtest.h>

#include <array>
#include <map>
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

TEST(BlockCache, AForkSharesFullPagesAndCopiesTheLast) {
  BlockCache cache({.block_size = kSize, .windows = {0, 2}, .pages = {6, 4}});
  SequenceBlocks a, b, c, d;
  std::vector<PageCopy> copies;
  read(cache, a, text(10));
  ASSERT_TRUE(cache.fork(a, 10, b, copies));
  EXPECT_EQ(cache.used(), 4 + 2);
  EXPECT_EQ(b.pages[0][0], a.pages[0][0]);
  EXPECT_EQ(b.pages[0][1], a.pages[0][1]);
  EXPECT_NE(b.pages[0][2], a.pages[0][2]);
  EXPECT_EQ(b.pages[1][1], SequenceBlocks::kLeftBehind);
  const std::vector<PageCopy> expected = {{.group = 0, .from = a.pages[0][2], .to = b.pages[0][2]},
                                          {.group = 1, .from = a.pages[1][2], .to = b.pages[1][2]}};
  EXPECT_EQ(copies, expected);
  // A text at the end of a block shares all pages.
  copies.clear();
  SequenceBlocks e, f;
  BlockCache other({.block_size = kSize, .windows = {0}, .pages = {2}});
  read(other, e, text(8));
  ASSERT_TRUE(other.fork(e, 8, f, copies));
  EXPECT_TRUE(copies.empty());
  EXPECT_EQ(f.pages, e.pages);
  EXPECT_EQ(other.used(), 2);
  // Without a free page nothing is taken.
  ASSERT_TRUE(cache.fork(a, 10, c, copies));
  ASSERT_TRUE(cache.fork(a, 10, d, copies));
  const int64_t used = cache.used();
  SequenceBlocks none;
  copies.clear();
  EXPECT_FALSE(cache.fork(a, 10, none, copies));
  EXPECT_TRUE(none.pages.empty() && copies.empty());
  EXPECT_EQ(cache.used(), used);
  for (SequenceBlocks* blocks : {&a, &b, &c, &d}) cache.release(*blocks);
  EXPECT_EQ(cache.used(), 0);
}

TEST(BlockCache, KnowsWhatForksNeedAtMost) {
  const BlockCache cache({.block_size = kSize, .windows = {0, 6, 2}, .pages = {40, 30, 30}});
  EXPECT_EQ(cache.blocks_of_forks(0, 3, 10, 21, 8), 2 + 3 * (6 - 2));
  EXPECT_EQ(cache.blocks_of_forks(1, 3, 10, 41, 8), 3 * 3 + 2);
  EXPECT_EQ(cache.blocks_of_forks(2, 3, 10, 41, 8), 3 * 2 + 2);
  EXPECT_EQ(cache.blocks_of_forks(2, 3, 10, 12, 8), 2 + 3 * 1) << "of a short text, all of it";
}

// Random texts with few different tokens, so that many prefixes are equal. At every moment each
// page belongs to the sequences that name it, and has the tokens of each of them: also a page that
// was found by its content, or copied for a fork.
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
    std::map<std::pair<size_t, int32_t>, std::array<int32_t, kSize>> written;
    for (int step = 0; step < 20000; ++step) {
      const int64_t what = below(5);
      if (what == 0 && readers.size() < 8) {
        Reader r;
        for (int64_t i = below(40); i >= 0; --i) r.tokens.push_back(static_cast<int32_t>(below(2)));
        r.read = cache.share(r.blocks, r.tokens, std::ssize(r.tokens) - 1);
        readers.push_back(std::move(r));
      } else if (what == 1 && !readers.empty()) {
        const auto at = readers.begin() + below(std::ssize(readers));
        cache.release(at->blocks);
        readers.erase(at);
      } else if (what == 2 && !readers.empty() && readers.size() < 8) {
        const Reader& from = readers[static_cast<size_t>(below(std::ssize(readers)))];
        Reader r{.tokens = {from.tokens.begin(), from.tokens.begin() + from.read},
                 .blocks = {},
                 .read = from.read};
        std::vector<PageCopy> copies;
        if (!cache.fork(from.blocks, from.read, r.blocks, copies)) continue;
        for (const auto& [group, page, copy] : copies)
          written[{group, copy}] = written[{group, page}];
        readers.push_back(std::move(r));
      } else if (!readers.empty()) {
        Reader& r = readers[static_cast<size_t>(below(std::ssize(readers)))];
        r.tokens.push_back(static_cast<int32_t>(below(2)));
        const int64_t next = std::min<int64_t>(std::ssize(r.tokens), r.read + 1 + below(9));
        if (!cache.extend(r.blocks, next)) continue;
        for (size_t g = 0; g < r.blocks.pages.size(); ++g)
          for (int64_t t = r.read; t < next; ++t)
            written[{g, r.blocks.pages[g][static_cast<size_t>(t / kSize)]}]
                   [static_cast<size_t>(t % kSize)] = r.tokens[static_cast<size_t>(t)];
        r.read = next;
        cache.keep(r.blocks, r.tokens, r.read);
      }
      if (step % 50 != 0) continue;
      std::set<std::pair<size_t, int32_t>> owned;
      for (const Reader& r : readers)
        for (size_t g = 0; g < r.blocks.pages.size(); ++g)
          for (const int32_t page : r.blocks.pages[g])
            if (page >= 0) owned.emplace(g, page);
      for (const Reader& r : readers)
        for (size_t g = 0; g < r.blocks.pages.size(); ++g)
          for (size_t t = 0; t < static_cast<size_t>(r.read); ++t) {
            const int32_t page = r.blocks.pages[g][t / kSize];
            if (page < 0) continue;
            ASSERT_EQ((written[{g, page}][t % kSize]), r.tokens[t]);
          }
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
