#include "data/indexed_dataset.h"

#include <fstream>
#include <random>

#include "base/thread_pool.h"
#include "support.h"

namespace megatron::data {
namespace {

DType type_of(const std::string& text) {
  if (text == "uint16") return DType::u16;
  if (text == "uint8") return DType::u8;
  if (text == "int8") return DType::i8;
  if (text == "int16") return DType::i16;
  return text == "int64" ? DType::i64 : DType::i32;
}

const Json& meta() {
  static const Json json = Json::read(golden("indexed/meta.json"));
  return json;
}

bool only_header(const Json& file) { return file.contains("reader_mmap_error"); }

void read_every_fixture(IndexedDatasetOptions options) {
  ThreadPool pool(2);
  for (const auto& [file, facts] : meta()["files"].as_object()) {
    SCOPED_TRACE(file);
    const IndexedDataset set(golden("indexed/" + file), options);
    set.check(pool);
    if (only_header(facts)) {
      EXPECT_EQ(set.sequence_count(), 0);
      continue;
    }
    EXPECT_EQ(set.dtype(), type_of(facts["dtype"].as_string()));
    const auto lengths = integers(facts["sequence_lengths"]);
    ASSERT_EQ(set.sequence_count(), static_cast<int64_t>(lengths.size()));
    const auto documents = integers(facts["document_indices"]);
    ASSERT_EQ(set.document_count() + 1, static_cast<int64_t>(documents.size()));
    for (int64_t d = 0; d < set.document_count(); ++d) {
      EXPECT_EQ(set.document(d), std::pair(documents[d], documents[d + 1]));
    }
    EXPECT_EQ(set.multimodal(), facts["multimodal"].as_bool());
    for (int64_t i = 0; i < set.sequence_count(); ++i) {
      EXPECT_EQ(set.length(i), lengths[i]);
      EXPECT_EQ(set.get(i), integers(facts["sequences"].as_array()[i]));
      if (set.multimodal()) {
        EXPECT_EQ(set.mode(i), facts["sequence_modes"].as_array()[i].as_integer());
      }
    }
    if (!facts.contains("get")) continue;
    for (const Json& get : facts["get"].as_array()) {
      std::optional<int64_t> length;
      if (!get["length"].is_null()) length = get["length"].as_integer();
      EXPECT_EQ(set.get(get["index"].as_integer(), get["offset"].as_integer(), length),
                integers(get["tokens"]));
    }
  }
}

TEST(IndexedDataset, ReadsEveryFixture) { read_every_fixture({}); }

// Includes files without tokens, which the original's mapped reader refuses.
TEST(IndexedDataset, ReadsEveryFixtureWithoutMappingTokens) {
  read_every_fixture({.map_tokens = false});
  const IndexedDataset set(golden("indexed/u16_docs"), {.map_tokens = false});
  EXPECT_EQ(set.token_range(), IndexedDataset(golden("indexed/u16_docs")).token_range());
  EXPECT_NE(error_of([] { IndexedDataset(golden("indexed"), {.map_tokens = false}); }), "");
}

TEST(IndexedDataset, TellsOfTokensThatWentAwayWhileItIsOpen) {
  const TemporaryDirectory folder;
  copy_set("indexed/u16_docs", folder / "x");
  const IndexedDataset set(folder / "x", {.map_tokens = false});
  std::filesystem::resize_file(folder / "x.bin", 2);
  EXPECT_NE(error_of([&] { set.get(set.sequence_count() - 1); }).find("when it was opened"),
            std::string::npos);
  ThreadPool pool(1);
  EXPECT_NE(error_of([&] { set.check(pool); }).find("changed"), std::string::npos);
}

TEST(IndexedDataset, GivesTypedViewsAndNarrowCopies) {
  const IndexedDataset set(golden("indexed/u16_docs"));
  const auto view = set.tokens<uint16_t>(1);
  EXPECT_EQ(std::vector<int64_t>(view.begin(), view.end()), set.get(1));
  EXPECT_NE(error_of([&] { set.tokens<int32_t>(1); }), "");
  std::array<int32_t, 2> out{};
  set.read(1, 1, std::span<int32_t>(out));
  EXPECT_EQ(out[1], set.get(1)[2]);
  EXPECT_NE(error_of([&] { set.read(1, 2, std::span<int32_t>(out)); }), "");
  EXPECT_NE(error_of([&] { set.length(7); }), "");
  EXPECT_NE(error_of([&] { set.get(0, -1); }), "");
  const IndexedDataset wide(golden("indexed/i64_docs"));
  EXPECT_NE(error_of([&] { wide.read(0, 0, std::span<int32_t>(out)); }), "");
}

TEST(IndexedDatasetBuilder, ChoosesTheElementTypeByVocabulary) {
  for (const Json& pair : meta()["facts"]["optimal_dtype"].as_array()) {
    std::optional<int64_t> size;
    if (!pair.as_array()[0].is_null()) size = pair.as_array()[0].as_integer();
    EXPECT_EQ(token_type_for_vocabulary(size), type_of(pair.as_array()[1].as_string()));
  }
}

void build(IndexedDatasetBuilder& builder, const Json& facts) {
  size_t sequence = 0;
  for (const Json& document : facts["document_shape"].as_array()) {
    std::vector<int64_t> tokens, lengths;
    std::vector<int> modes;
    for (size_t i = 0; i < document.as_array().size(); ++i, ++sequence) {
      const auto part = integers(facts["sequences"].as_array()[sequence]);
      const int mode =
          facts.contains("sequence_modes")
              ? static_cast<int>(facts["sequence_modes"].as_array()[sequence].as_integer())
              : 0;
      if (facts["built_with"].as_string() == "add_item") builder.add_item(std::span(part), mode);
      tokens.insert(tokens.end(), part.begin(), part.end());
      lengths.push_back(static_cast<int64_t>(part.size()));
      modes.push_back(mode);
    }
    if (facts["built_with"].as_string() == "add_item") {
      builder.end_document();
    } else {
      builder.add_document(tokens, lengths, modes);
    }
  }
}

TEST(IndexedDatasetBuilder, WritesEveryFixtureByteForByte) {
  const TemporaryDirectory folder;
  for (const auto& [file, facts] : meta()["files"].as_object()) {
    SCOPED_TRACE(file);
    const DType type = only_header(facts) ? DType::i32 : type_of(facts["dtype"].as_string());
    IndexedDatasetBuilder builder(folder / file, type,
                                  !only_header(facts) && facts["multimodal"].as_bool());
    if (only_header(facts)) {
      if (file == "zero_sequences_two_documents") builder.end_document(), builder.end_document();
    } else if (facts["built_with"].as_string() == "add_index") {
      for (const Json& part : facts["parts"].as_array())
        builder.add_index(golden("indexed/" + part.as_string()));
    } else {
      build(builder, facts);
    }
    EXPECT_FALSE(indexed_dataset_exists(folder / file));
    builder.finalize();
    EXPECT_EQ(read_file(folder / (file + ".idx")), read_file(golden("indexed/" + file + ".idx")));
    EXPECT_EQ(read_file(folder / (file + ".bin")), read_file(golden("indexed/" + file + ".bin")));
  }
}

TEST(IndexedDatasetBuilder, RefusesWhatTheFormatCannotHold) {
  const TemporaryDirectory folder;
  {
    IndexedDatasetBuilder builder(folder / "a", DType::u16);
    const std::vector<int64_t> large = {1, 65536}, negative = {-1}, fine = {65535};
    EXPECT_NE(error_of([&] { builder.add_item(std::span(large)); }).find("65536"),
              std::string::npos);
    EXPECT_NE(error_of([&] { builder.add_item(std::span(negative)); }), "");
    EXPECT_NE(error_of([&] { builder.add_item(std::span(fine), 1); }), "");
    EXPECT_NE(error_of([&] { builder.add_index(golden("indexed/i32_docs")); }), "");
    builder.add_item(std::span(fine));
    EXPECT_NE(error_of([&] { builder.finalize(); }), "");  // a document is open
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));  // nothing is left behind
  EXPECT_NE(error_of([&] { IndexedDatasetBuilder(folder / "f", DType::f32); }), "");
}

void expect_message(const std::string& prefix, const std::string& part) {
  ThreadPool pool(1);
  const std::string text = error_of([&] { IndexedDataset(prefix).check(pool); });
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(IndexedDataset, TellsWhatIsWrongWithAFile) {
  const TemporaryDirectory folder;
  const std::string idx = read_file(golden("indexed/u16_docs.idx")),
                    bin = read_file(golden("indexed/u16_docs.bin"));
  const auto expect = [&](std::string index, const std::string& tokens, const std::string& part) {
    write_file(folder / "x.idx", index);
    write_file(folder / "x.bin", tokens);
    expect_message(folder / "x", part);
  };
  expect(idx, bin.substr(0, bin.size() - 2), "truncated");
  expect(idx.substr(0, 33), bin, "truncated");
  expect(idx.substr(0, idx.size() - 1), bin, "truncated");
  expect(idx + "abc", bin, "3 bytes after");
  std::string changed = idx;
  changed[9] = 2;
  expect(changed, bin, "version 2");
  changed = idx;
  changed[17] = 9;
  expect(changed, bin, "element type 9");
  changed = idx;
  changed[0] = 'X';
  expect(changed, bin, "MMIDIDX");
  changed = idx;
  changed[37] = '\x80';
  expect(changed, bin, "sequence 0 has length -");
  changed = idx;
  changed[25] = '\x7f';
  expect(changed, bin, "too few");
  changed = idx;
  changed[idx.size() - 8] = 6;
  expect(changed, bin, "damaged");
  expect_message(folder / "absent", "absent.idx");
}

// The numbers are wrong but still point into the .bin.
TEST(IndexedDataset, SequencesFollowEachOther) {
  const TemporaryDirectory folder;
  for (const auto& [file, facts] : meta()["files"].as_object()) {
    SCOPED_TRACE(file);
    ThreadPool pool(2);
    const IndexedDataset whole(golden("indexed/" + file));
    whole.check(pool);  // Megatron-LM's own file, also with modes
    const int64_t sequences = whole.sequence_count();
    const std::string idx = read_file(golden("indexed/" + file + ".idx"));
    copy_set("indexed/" + file, folder / "x");
    for (int64_t i = 0; i < sequences; ++i) {
      for (const int64_t place : {34 + 4 * i, 34 + 4 * sequences + 8 * i}) {
        std::string changed = idx;
        changed[static_cast<size_t>(place)] ^= 1;
        write_file(folder / "x.idx", changed);
        EXPECT_NE(error_of([&] { IndexedDataset(folder / "x").check(pool); }), "") << place;
      }
    }
  }
  copy_set("indexed/u16_docs", folder / "x");
  write_file(folder / "x.bin", read_file(folder / "x.bin") + "ab");
  expect_message(folder / "x", "end at byte");
}

TEST(IndexedDataset, SurvivesDamagedFiles) {
  const TemporaryDirectory folder;
  std::mt19937 random(7);
  int opened = 0, refused = 0;
  for (int round = 0; round < 600; ++round) {
    const char* const files[] = {"u16_docs", "i32_multimodal_merged", "i64_docs",
                                 "u16_first_doc_empty"};
    const std::string file = golden(std::string("indexed/") + files[round % 4]);
    std::string idx = read_file(file + ".idx"), bin = read_file(file + ".bin");
    std::string& victim = random() % 4 == 0 ? bin : idx;
    if (random() % 3 == 0) {
      victim.resize(random() % (victim.size() + 1));
    } else {
      for (unsigned flips = 1 + random() % 3; flips > 0; --flips)
        victim[random() % victim.size()] ^= static_cast<char>(1u << random() % 8);
    }
    {
      std::ofstream(folder / "x.idx", std::ios::binary) << idx;
    }
    {
      std::ofstream(folder / "x.bin", std::ios::binary) << bin;
    }
    try {
      const IndexedDataset set(folder / "x", {.map_tokens = round % 2 == 0});
      ThreadPool pool(1);
      const bool sound = error_of([&] { set.check(pool); }).empty();
      int64_t tokens = 0;
      for (int64_t i = 0; i < set.sequence_count(); ++i)
        tokens += static_cast<int64_t>(set.get(i).size());
      for (int64_t d = 0; d < set.document_count(); ++d)
        EXPECT_LE(set.document(d).second, set.sequence_count());
      EXPECT_EQ(tokens, set.token_count());
      ++(sound ? opened : refused);
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(opened, 50);
  EXPECT_GT(refused, 200);
}

}  // namespace
}  // namespace megatron::data
