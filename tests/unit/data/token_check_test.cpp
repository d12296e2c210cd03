#include "data/token_check.h"

#include <chrono>
#include <random>

#include "data/source_facts.h"
#include "support.h"

namespace megatron::data {
namespace {

void build(const std::string& prefix, DType type,
           const std::vector<std::vector<int64_t>>& sequences) {
  IndexedDatasetBuilder builder(prefix, type);
  for (const std::vector<int64_t>& sequence : sequences) builder.add_item(std::span(sequence));
  builder.end_document();
  builder.finalize();
}

TokenRange plain_range(const IndexedDataset& set) {
  TokenRange range{std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min()};
  for (int64_t i = 0; i < set.sequence_count(); ++i) {
    for (const int64_t token : set.get(i)) {
      range = {std::min(range.smallest, token), std::max(range.largest, token)};
    }
  }
  return range;
}

TEST(TokenRange, IsThatOfEveryFixture) {
  const Json meta = Json::read(golden("indexed/meta.json"));
  int compared = 0;
  for (const auto& [file, facts] : meta["files"].as_object()) {
    SCOPED_TRACE(file);
    const IndexedDataset set(golden("indexed/" + file));
    if (set.token_count() == 0) {
      EXPECT_FALSE(set.token_range());
    } else {
      EXPECT_EQ(set.token_range(), plain_range(set));
      ++compared;
    }
  }
  EXPECT_GT(compared, 5);
}

TEST(TokenRange, FindsTheExtremesAnywhere) {
  const TemporaryDirectory folder;
  std::mt19937 random(3);
  const struct {
    DType type;
    int64_t low, high;
  } types[] = {{DType::u8, 0, 255},
               {DType::i8, -128, 127},
               {DType::i16, -32768, 32767},
               {DType::u16, 0, 65535},
               {DType::i32, -2147483648ll, 2147483647ll},
               {DType::i64, -(1ll << 62), 1ll << 62}};
  int round = 0;
  for (const auto& [type, low, high] : types) {
    for (const size_t length : {1u, 127u, 128u, 1000u}) {
      std::vector<std::vector<int64_t>> sequences(2, std::vector<int64_t>(length, 7));
      sequences[random() % 2][random() % length] = high;
      const std::string prefix = folder / std::to_string(++round);
      build(prefix, type, sequences);
      EXPECT_EQ(IndexedDataset(prefix).token_range(), (TokenRange{7, high}));
      sequences[1].push_back(low);
      build(prefix + "low", type, sequences);
      EXPECT_EQ(IndexedDataset(prefix + "low").token_range(), (TokenRange{low, high}));
    }
  }
}

// Bytes outside all sequences do not count.
TEST(TokenRange, LooksAtSequencesOnly) {
  const TemporaryDirectory folder;
  build(folder / "a", DType::u16, {{1, 2}, {60000}, {3}});
  std::string idx = read_file(folder / "a.idx");
  idx[34 + 4] = 0;  // the second sequence has no tokens
  write_file(folder / "a.idx", idx);
  EXPECT_EQ(IndexedDataset(folder / "a").token_range(), (TokenRange{1, 3}));
}

TEST(TokenRange, ReadsFloatsAndRefusesFractions) {
  const TemporaryDirectory folder;
  build(folder / "a", DType::i32, {{1, 2}, {3}});
  std::string idx = read_file(folder / "a.idx");
  idx[17] = 7;
  write_file(folder / "a.idx", idx);
  const auto write = [&](std::array<float, 3> values) {
    write_file(folder / "a.bin", as_text(std::as_bytes(std::span(values))));
    return IndexedDataset(folder / "a");
  };
  EXPECT_EQ(write({5, 2, 9}).token_range(), (TokenRange{2, 9}));
  const IndexedDataset broken = write({5, 2, 0.5f});
  EXPECT_NE(error_of([&] { broken.token_range(); }).find("sequence 1"), std::string::npos);
}

TEST(TokenCheck, NamesFileIdAndVocabulary) {
  const TemporaryDirectory folder;
  build(folder / "a", DType::i32, {{1, 2}, {4711, 3}});
  const IndexedDataset set(folder / "a");
  check_token_ids(set, 4712, {});
  const std::string text = error_of([&] { check_token_ids(set, 4711, {}); });
  for (const std::string& part : {folder / "a.bin", std::string("4711"), std::string("tokenizer"),
                                  std::string("--vocab-size")}) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
  build(folder / "b", DType::i32, {{1, -1}});
  EXPECT_NE(error_of([&] { check_token_ids(IndexedDataset(folder / "b"), 10, {}); }).find("-1"),
            std::string::npos);
}

TEST(TokenCheck, IsRememberedUntilTheFilesChange) {
  const TemporaryDirectory folder;
  const std::string cache = folder / "cache/deep";
  build(folder / "a", DType::u16, {{1, 9}});
  EXPECT_EQ(remembered_token_range(IndexedDataset(folder / "a"), cache), (TokenRange{1, 9}));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(cache), {}), 1);
  const std::string file = std::filesystem::directory_iterator(cache)->path().string();

  // A remembered result is not computed again ...
  Json record = Json::read(file);
  Json facts = record["facts"];
  facts.set("largest", int64_t{8});
  record.set("facts", facts);
  const std::string changed = facts.dump();
  record.set("digest", digest(std::as_bytes(std::span(changed))));
  write_file(file, record.dump());
  EXPECT_EQ(remembered_token_range(IndexedDataset(folder / "a"), cache), (TokenRange{1, 8}));
  // ... unless the record is damaged, or is of other files.
  write_file(file, "{\"of\": ");
  EXPECT_EQ(remembered_token_range(IndexedDataset(folder / "a"), cache), (TokenRange{1, 9}));
  build(folder / "a", DType::u16, {{1, 9, 10}});
  EXPECT_EQ(remembered_token_range(IndexedDataset(folder / "a"), cache), (TokenRange{1, 10}));
  build(folder / "a", DType::u16, {{1, 9, 11}});
  std::filesystem::last_write_time(
      folder / "a.bin", std::filesystem::file_time_type::clock::now() + std::chrono::hours(1));
  EXPECT_EQ(remembered_token_range(IndexedDataset(folder / "a"), cache), (TokenRange{1, 11}));
}

TEST(TokenCheck, NeedsNoCache) {
  const TemporaryDirectory folder;
  build(folder / "a", DType::u16, {{1, 9}});
  const IndexedDataset set(folder / "a");
  EXPECT_EQ(remembered_token_range(set, {}), (TokenRange{1, 9}));
  EXPECT_EQ(remembered_token_range(set, folder / "a.bin"), (TokenRange{1, 9}));  // no directory
}

// 16-bit ids always fit a vocabulary of 65536, so nothing is read or remembered.
TEST(TokenCheck, ReadsNothingThatTheTypeRulesOut) {
  const TemporaryDirectory folder;
  build(folder / "a", DType::u16, {{65535}});
  check_token_ids(IndexedDataset(folder / "a"), 65536, folder / "cache");
  EXPECT_FALSE(std::filesystem::exists(folder / "cache"));
  EXPECT_NE(error_of([&] { check_token_ids(IndexedDataset(folder / "a"), 65535, {}); }), "");
}

}  // namespace
}  // namespace megatron::data
