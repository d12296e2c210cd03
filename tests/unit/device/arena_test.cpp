// Memory blocks: their positions, that free blocks merge, and that meta chooses the same positions
// as real memory.
#include "device/arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "base/philox.h"

namespace megatron {
namespace {

std::shared_ptr<Arena> make(DeviceKind kind = DeviceKind::cpu) {
  return Arena::make({kind}, MemoryClass::activations);
}

TEST(Arena, BlocksAreAlignedAndApart) {
  const auto arena = make();
  const auto a = arena->allocate(1, "a"), b = arena->allocate(65, "b"),
             c = arena->allocate(64, "c");
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a->data()) % 64, 0u);
  EXPECT_EQ(b->data() - a->data(), 64);
  EXPECT_EQ(c->data() - b->data(), 128);
  EXPECT_EQ(b->bytes(), 65);
  EXPECT_EQ(arena->in_use(), 256);
  std::fill_n(b->data(), 65, std::byte{7});
  EXPECT_EQ(b->data()[64], std::byte{7});
}

TEST(Arena, ZeroBytesTakeNoBlock) {
  const auto arena = make();
  const auto empty = arena->allocate(0, "empty");
  EXPECT_EQ(empty->bytes(), 0);
  EXPECT_EQ(arena->in_use(), 0);
  EXPECT_EQ(arena->high_water(), 0);
}

TEST(Arena, TakesTheSmallestBlockThatFits) {
  const auto arena = make();
  auto large = arena->allocate(1024, "large");
  const auto wall1 = arena->allocate(64, "wall");
  auto small = arena->allocate(256, "small");
  const auto wall2 = arena->allocate(64, "wall");
  const std::byte *large_at = large->data(), *small_at = small->data();
  large.reset();
  small.reset();
  const auto fits_small = arena->allocate(200, "fits small");
  EXPECT_EQ(fits_small->data(), small_at);
  const auto fits_large = arena->allocate(300, "fits large");
  EXPECT_EQ(fits_large->data(), large_at);
  const auto rest = arena->allocate(1024 - 320, "rest of large");
  EXPECT_EQ(rest->data(), large_at + 320);
  EXPECT_EQ(arena->high_water(), 1024 + 64 + 256 + 64);
}

// Other allocations may use the blocks that recorded work took, and own them while they hold them.
TEST(Arena, NotesWhereBlocksLayAndWhetherTheyAreFree) {
  const auto arena = make();
  const auto before = arena->allocate(64, "before");
  arena->note();
  auto a = arena->allocate(100, "a"), b = arena->allocate(64, "b");
  a.reset();
  a = arena->allocate(64, "a, again");
  a.reset();
  const std::vector<Arena::Extent> noted = arena->noted();
  EXPECT_EQ(noted, (std::vector<Arena::Extent>{{64, 256}}));
  EXPECT_FALSE(arena->is_free(noted));  // b
  b.reset();
  EXPECT_TRUE(arena->is_free(noted));
  const auto other = arena->allocate(1, "other");
  EXPECT_FALSE(arena->is_free(noted));
  EXPECT_TRUE(arena->is_free(std::vector<Arena::Extent>{{128, 256}}));
  EXPECT_FALSE(arena->is_free(std::vector<Arena::Extent>{{128, 320}}));  // never handed out
  EXPECT_TRUE(arena->is_free({}));
  EXPECT_THROW(arena->noted(), InternalError);
}

TEST(Arena, NeighboursMergeInAnyOrder) {
  for (const std::vector<size_t>& order :
       {std::vector<size_t>{0, 1, 2}, {2, 1, 0}, {0, 2, 1}, {1, 0, 2}}) {
    const auto arena = make();
    std::vector<std::shared_ptr<Storage>> blocks;
    for (int i = 0; i < 3; ++i) blocks.push_back(arena->allocate(128, "block"));
    const auto wall = arena->allocate(64, "wall");
    const std::byte* first = blocks[0]->data();
    for (const size_t i : order) blocks[i].reset();
    EXPECT_EQ(arena->allocate(384, "whole")->data(), first);
    EXPECT_EQ(arena->high_water(), 384 + 64);
  }
}

TEST(Arena, FreeBlockAtTheEndGrows) {
  const auto arena = make();
  auto block = arena->allocate(128, "block");
  const std::byte* at = block->data();
  block.reset();
  const auto larger = arena->allocate(512, "larger");
  EXPECT_EQ(larger->data(), at);
  EXPECT_EQ(arena->high_water(), 512);
}

// The same requests on meta and on the cpu: blocks never overlap, and the high-water mark is the
// same after each.
TEST(Arena, MetaFindsTheHighWaterOfRealMemory) {
  const auto real = make(), meta = make(DeviceKind::meta);
  std::vector<std::shared_ptr<Storage>> real_blocks, meta_blocks;
  const RandomStream random(11, "requests");
  for (uint64_t i = 0; i < 4000; ++i) {
    const uint64_t bits = random.bits(i);
    if (bits % 5 < 2 && !real_blocks.empty()) {
      const auto victim = static_cast<ptrdiff_t>((bits >> 8) % real_blocks.size());
      real_blocks.erase(real_blocks.begin() + victim);
      meta_blocks.erase(meta_blocks.begin() + victim);
    } else {
      const auto bytes = static_cast<int64_t>((bits >> 8) % 5000);
      real_blocks.push_back(real->allocate(bytes, "block"));
      meta_blocks.push_back(meta->allocate(bytes, "block"));
    }
    ASSERT_EQ(real->high_water(), meta->high_water()) << i;
    ASSERT_EQ(real->in_use(), meta->in_use()) << i;
  }
  std::vector<std::pair<const std::byte*, int64_t>> places;
  for (const auto& block : real_blocks) {
    if (block->bytes() > 0) places.emplace_back(block->data(), block->bytes());
  }
  std::sort(places.begin(), places.end());
  for (size_t i = 1; i < places.size(); ++i)
    EXPECT_LE(places[i - 1].first + places[i - 1].second, places[i].first);
  for (const auto& block : meta_blocks) EXPECT_EQ(block->data(), nullptr);
  real_blocks.clear();
  EXPECT_EQ(real->in_use(), 0);
  const int64_t high = real->high_water();
  const auto whole = real->allocate(high, "whole");
  EXPECT_EQ(real->high_water(), high);
}

TEST(Arena, LimitNamesWhatDidNotFit) {
  const auto arena = Arena::make({DeviceKind::meta}, MemoryClass::optimizer);
  arena->set_limit(1000);
  const auto kept = arena->allocate(512, "kept");
  try {
    arena->allocate(600, "exp_avg of embedding");
    FAIL();
  } catch (const Error& error) {
    const std::string text = error.what();
    for (const char* part : {"optimizer", "meta", "600", "exp_avg of embedding", "512", "1000"}) {
      EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
    }
  }
  EXPECT_EQ(arena->in_use(), 512);
  EXPECT_NO_THROW(arena->allocate(256, "fits"));
}

TEST(Arena, FailedRequestLosesNoFreeBlock) {
  const auto arena = make(DeviceKind::meta);
  arena->set_limit(1024);
  auto block = arena->allocate(512, "block");
  block.reset();
  EXPECT_THROW(arena->allocate(2048, "too large"), Error);
  const auto again = arena->allocate(512, "again");
  EXPECT_EQ(arena->high_water(), 512);
  const auto more = arena->allocate(512, "more");
  EXPECT_EQ(arena->high_water(), 1024);
}

TEST(Arena, StorageOutlivesTheHandleOfItsArena) {
  auto arena = make();
  const auto block = arena->allocate(64, "block");
  arena.reset();
  block->data()[0] = std::byte{1};
  EXPECT_EQ(block->device().kind, DeviceKind::cpu);
}

// Also on a machine with much memory, which each rank would reserve completely.
TEST(Arenas, ExchangeOneForAnotherOfItsClass) {
  constexpr MemoryClass kClass = MemoryClass::activations;
  Arenas arenas({DeviceKind::cpu, 0});
  auto other = Arena::make({DeviceKind::cpu, 0}, kClass);
  Arena *const before = &arenas[kClass], *const mine = other.get();
  arenas.exchange(other);
  EXPECT_EQ(&arenas[kClass], mine);
  const auto block = arenas[kClass].allocate(100, "block");
  arenas.exchange(other);
  EXPECT_EQ(&arenas[kClass], before);
  EXPECT_EQ(before->in_use(), 0);
  EXPECT_EQ(mine->in_use(), 128);
}

TEST(Arenas, OfManyRanksShareTheAddressSpace) {
  constexpr int kRanks = 1024;
  std::vector<Arenas> ranks;
  for (int r = 0; r < kRanks; ++r)
    ASSERT_NO_THROW(ranks.emplace_back(Device{DeviceKind::cpu, 0}, kRanks)) << r;
}

}  // namespace
}  // namespace megatron
