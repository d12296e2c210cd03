// Compares ranges of parameters with the placement's definition, element by element.
#include "checkpoint/tensor_blocks.h"

#include <array>
#include <numeric>
#include <random>

#include "checkpoint/region.h"
#include "checkpoint/tensor_copy.h"
#include "support.h"

namespace megatron::checkpoint {
namespace {

using parallel::CanonicalTensor;
using parallel::Slice;

struct Held {
  CanonicalTensor part;
  Shape shape;
};

// Position on disk of element `local` of the parameter. -1 if the part does not include it.
int64_t stored_index(const Held& held, int64_t local) {
  std::vector<int64_t> at(static_cast<size_t>(std::max(held.shape.rank(), 1)));
  for (int d = held.shape.rank() - 1; d >= 0; --d) {
    at[static_cast<size_t>(d)] = local % held.shape[d];
    local /= held.shape[d];
  }
  for (int d = 0; d < held.shape.rank(); ++d) {
    int64_t& along = at[static_cast<size_t>(d)];
    int64_t global = -1;
    for (const Slice& s : held.part.slices(d)) {
      if (along >= s.local_begin && along < s.local_begin + s.size)
        global = s.global_begin + along - s.local_begin;
    }
    if (global < 0) return -1;
    along = global;
  }
  Shape stored = held.part.global;
  if (held.part.transposed) {
    stored.set(-1, held.part.global[-2]);
    stored.set(-2, held.part.global[-1]);
    std::swap(at[at.size() - 1], at[at.size() - 2]);
  }
  std::vector<int> order = {0, 1, 2};  // dims on disk, slowest first
  if (held.part.joined == CanonicalTensor::Joined::columns) order = {1, 2, 0};
  int64_t index = 0;
  for (const int d : order)
    if (d < stored.rank()) index = index * stored[d] + at[static_cast<size_t>(d)];
  return index;
}

// Up to three slices of some axes of a canonical tensor, one after another in the parameter with
// gaps (other parts, padding) between them.
Held random_held(std::mt19937& random) {
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % uint64_t(n)); };
  Held held;
  held.part.name = "a";
  held.part.transposed = below(2) == 0;
  const int rank = static_cast<int>(held.part.transposed ? 2 + below(2) : below(4));
  using Joined = CanonicalTensor::Joined;
  if (rank == 3) held.part.joined = std::array{Joined::no, Joined::rows, Joined::columns}[below(3)];
  std::vector<int64_t> sizes;
  for (int d = 0; d < rank; ++d) sizes.push_back(1 + below(d == 0 ? 40 : 9));
  held.part.global = Shape(std::span<const int64_t>(sizes));
  held.shape = held.part.global;
  for (int axis = 0; axis < rank; ++axis) {
    if (below(2) == 0) continue;
    std::vector<Slice> slices;
    const int64_t length = held.part.global[axis];
    int64_t global = 0, local = below(3);
    for (int64_t left = 1 + below(3); left > 0; --left) {
      global += below(length - global + 1);
      const int64_t size = below(length - global + 1);
      slices.push_back({global, local, size});
      global += size;
      local += size + below(3);
    }
    held.shape.set(axis, std::max<int64_t>(local, 1));
    held.part.held.push_back({axis, std::move(slices)});
  }
  return held;
}

// At most three per matrix. There is one matrix for each index of the dims before the last two; if
// the first is the fastest on disk, one for each row of it.
size_t most_blocks(const Held& held) {
  int64_t most = 3;
  for (int d = 0; d < held.shape.rank(); ++d) {
    most *= static_cast<int64_t>(held.part.slices(d).size());
    if (d + 2 < held.shape.rank()) most *= held.shape[d];
  }
  if (held.part.joined == CanonicalTensor::Joined::columns) most *= held.shape[-2];
  return static_cast<size_t>(most);
}

// Elements of a part within the range [begin, begin + size) of the parameter: positions on disk by
// positions in the parameter.
std::map<int64_t, int64_t> expected(const Held& held, int64_t begin, int64_t size) {
  std::map<int64_t, int64_t> stored;
  for (int64_t i = begin; i < begin + size; ++i) {
    if (const int64_t at = stored_index(held, i); at >= 0) stored.emplace(i - begin, at);
  }
  return stored;
}

TEST(Blocks, OfAnyRangeTakeEachElementOnce) {
  std::mt19937 random(1);
  for (int round = 0; round < 3000; ++round) {
    const Held held = random_held(random);
    const int64_t all = held.shape.elements();
    const int64_t begin = static_cast<int64_t>(random() % uint64_t(all + 1));
    const int64_t size = static_cast<int64_t>(random() % uint64_t(all - begin + 1));
    std::map<int64_t, int64_t> found;
    const std::vector<Block> blocks = blocks_of(held.part, held.shape, begin, size);
    EXPECT_LE(blocks.size(), most_blocks(held));
    for (const Block& b : blocks) {
      EXPECT_EQ(b.stored.column, 1);
      std::vector<int64_t> in_region;
      const Region region = region_of(b);
      for (int64_t i = 0; i < region.count; ++i) {
        for (int64_t j = 0; j < region.run; ++j)
          in_region.push_back(region.begin + i * region.stride + j);
      }
      ASSERT_EQ(static_cast<int64_t>(in_region.size()), b.elements());
      auto next = in_region.begin();
      for (int64_t r = 0; r < b.rows; ++r) {
        for (int64_t c = 0; c < b.columns; ++c) {
          const int64_t stored = b.stored.begin + r * b.stored.row + c;
          EXPECT_EQ(*next++, stored);
          EXPECT_TRUE(
              found.emplace(b.local.begin + r * b.local.row + c * b.local.column, stored).second);
        }
      }
    }
    ASSERT_EQ(found, expected(held, begin, size)) << round;
  }
}

// PEFT's adapters of fused experts: A [E * r, in], and B [out, r * E] with the expert fastest.
TEST(Blocks, OfJoinedExpertsAreOneMatrixOnDisk) {
  using Joined = CanonicalTensor::Joined;
  const auto shape = [](Joined joined, bool transposed) {
    return CanonicalTensor{.global = {4, 2, 3}, .transposed = transposed, .joined = joined}
        .stored_shape();
  };
  EXPECT_EQ(shape(Joined::rows, false), (Shape{8, 3}));
  EXPECT_EQ(shape(Joined::columns, false), (Shape{2, 12}));
  EXPECT_EQ(shape(Joined::rows, true), (Shape{12, 2}));
  EXPECT_EQ(shape(Joined::columns, true), (Shape{3, 8}));
  // Two experts of four in a whole B: a run of two for each element of an expert.
  const CanonicalTensor b{
      .global = {4, 2, 3}, .held = {{0, {{1, 0, 2}}}}, .joined = Joined::columns};
  const std::vector<Block> blocks = blocks_of(b, {2, 2, 3}, 0, 12);
  ASSERT_EQ(blocks.size(), 1u);
  EXPECT_EQ(region_of(blocks[0]), (Region{.begin = 1, .count = 6, .stride = 4, .run = 2}));
}

// A range as a separate value: read from disk, packed in pieces and written again.
TEST(Blocks, AreReadPackedAndWritten) {
  std::mt19937 random(2);
  Runtime runtime({DeviceKind::reference, 0}, 1);
  const auto make = [&](int64_t n) {
    Tensor t = Tensor::empty(runtime.arena(MemoryClass::parameters), Shape{n}, DType::f64, "test");
    copy_from(t, std::vector<double>(static_cast<size_t>(n), -1));
    return t;
  };
  for (int round = 0; round < 600; ++round) {
    const Held held = random_held(random);
    const int64_t all = held.shape.elements();
    const int64_t begin = static_cast<int64_t>(random() % uint64_t(all + 1));
    const int64_t size = static_cast<int64_t>(random() % uint64_t(all - begin + 1));
    std::vector<float> disk(static_cast<size_t>(held.part.global.elements()));
    std::iota(disk.begin(), disk.end(), 0.0f);
    const Tensor value = make(size);
    const auto wanted = expected(held, begin, size);
    EXPECT_EQ(read_part(held.part, std::as_bytes(std::span(disk)), DType::f32,
                        {"", nullptr, value, held.shape, begin}),
              static_cast<int64_t>(wanted.size()));
    const std::vector<double> read = to_doubles(value);
    for (int64_t i = 0; i < size; ++i) {
      const auto at = wanted.find(i);
      ASSERT_EQ(read[static_cast<size_t>(i)],
                at == wanted.end() ? -1.0 : static_cast<double>(at->second));
    }
    std::vector<float> written(disk.size(), -1);
    for (const Block& b : blocks_of(held.part, held.shape, begin, size)) {
      write_block(b, value, std::as_writable_bytes(std::span(written)), DType::f32);
      std::vector<float> packed(static_cast<size_t>(b.elements()));
      const int64_t cut = static_cast<int64_t>(random() % uint64_t(b.elements() + 1));
      std::byte* const out = std::as_writable_bytes(std::span(packed)).data();
      pack_block(b, value, 0, cut, out, DType::f32);
      pack_block(b, value, cut, b.elements() - cut, out + cut * 4, DType::f32);
      size_t next = 0;
      for (int64_t r = 0; r < b.rows; ++r) {
        for (int64_t c = 0; c < b.columns; ++c) {
          const int64_t stored = b.stored.begin + r * b.stored.row + c;
          ASSERT_EQ(packed[next++], static_cast<float>(stored));
        }
      }
    }
    std::set<int64_t> stored;
    for (const auto& [local, at] : wanted) stored.insert(at);
    for (size_t i = 0; i < written.size(); ++i)
      ASSERT_EQ(written[i], stored.contains(int64_t(i)) ? disk[i] : -1.0f);
  }
}

TEST(Blocks, LargerThanATileAreTransposed) {
  Runtime runtime({DeviceKind::reference, 0}, 1);
  const CanonicalTensor part{"a", Shape{130, 70}, {{0, {{0, 0, 130}}}}, true};
  std::vector<float> disk(130 * 70);
  std::iota(disk.begin(), disk.end(), 0.0f);
  const int64_t begin = 71, size = 130 * 70 - 200;
  const Tensor value =
      Tensor::empty(runtime.arena(MemoryClass::parameters), Shape{size}, DType::f32, "test");
  read_part(part, std::as_bytes(std::span(disk)), DType::f32,
            {"", nullptr, value, part.global, begin});
  const auto values = value.span<float>();
  for (int64_t i = 0; i < size; ++i) {
    const int64_t row = (begin + i) / 70, column = (begin + i) % 70;
    ASSERT_EQ(values[static_cast<size_t>(i)], static_cast<float>(column * 130 + row));
  }
}

TEST(Blocks, ThatDoNotFitAreDefects) {
  const CanonicalTensor part{"a", Shape{4, 3}, {{0, {{0, 0, 4}}}}};
  EXPECT_THROW(blocks_of(part, Shape{4, 3}, 5, 8), InternalError);
  EXPECT_THROW(blocks_of(part, Shape{4, 3}, -1, 2), InternalError);
  EXPECT_THROW(blocks_of(part, Shape{3, 3}, 0, 9), InternalError);
  EXPECT_THROW(blocks_of(part, Shape{4, 2}, 0, 8), InternalError);
}

}  // namespace
}  // namespace megatron::checkpoint
