#include "data/spill.h"

#include <algorithm>
#include <numeric>

#include "support.h"

namespace megatron::data {
namespace {

// Writes in one piece, in small pieces and mixed: the same values are read back.
TEST(SpilledList, KeepsTheOrderWhateverThePieces) {
  for (const size_t piece : {size_t{1}, size_t{1000}, size_t{262'144}, size_t{700'001}}) {
    const TemporaryDirectory folder;
    std::vector<int32_t> values(700'001), found;
    std::iota(values.begin(), values.end(), 5);
    SpilledList<int32_t> list(folder.path());
    for (size_t at = 0; at < values.size(); at += piece)
      list.append(std::span(values).subspan(at, std::min(piece, values.size() - at)));
    EXPECT_EQ(list.size(), 700'001);
    for (int pass = 0; pass < 2; ++pass) {
      found.clear();
      size_t last = 64;
      list.for_each([&](std::span<const int32_t> part) {
        EXPECT_EQ(last % 64, 0u);
        EXPECT_LE(last = part.size_bytes(), size_t{1} << 20);
        found.insert(found.end(), part.begin(), part.end());
      });
      EXPECT_TRUE(found == values) << piece;
    }
    EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  }
}

TEST(SpilledBytes, NamesTheFolderThatCannotTakeThem) {
  SpilledBytes bytes("/proc");
  const std::vector<std::byte> many(3 << 20);
  EXPECT_NE(error_of([&] { bytes.append(many); }).find("temporary file in '/proc'"),
            std::string::npos);
}

}  // namespace
}  // namespace megatron::data
