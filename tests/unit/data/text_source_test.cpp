#include "data/text_source.h"

#include <zlib.h>

#include <algorithm>

#include "data/json_lines.h"
#include "support.h"

namespace megatron::data {
namespace {

struct Document {
  std::string name, text;
  bool operator==(const Document&) const = default;
};

std::vector<Document> read_all(const std::string& path, TextSourceOptions options = {}) {
  TextSource source(path, std::move(options));
  std::vector<Document> documents;
  Document next;
  int64_t before = 0;
  while (source.next(next.text, next.name)) {
    documents.push_back(next);
    EXPECT_GE(source.bytes_read(), before);
    before = source.bytes_read();
  }
  EXPECT_EQ(source.bytes_read(), source.total_bytes());
  return documents;
}

void write_gz(const std::string& path, const std::string& text) {
  gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, text.data(), static_cast<unsigned>(text.size()));
  gzclose(file);
}

TEST(TextSource, ReadsJsonLines) {
  const auto documents = read_all(golden("indexed/preprocess/corpus.jsonl"));
  EXPECT_EQ(documents.size(), 200u);
  EXPECT_TRUE(documents[6].name.ends_with("corpus.jsonl:7"));
  const auto titles =
      read_all(golden("indexed/preprocess/corpus_two_keys.jsonl"), {.json_key = "title"});
  EXPECT_FALSE(titles.empty());
  const TemporaryDirectory folder;
  write_gz(folder / "a.jsonl.gz",
           "{\"text\": \"z\\u00e4h\\n\"}\r\n\n  \n{\"text\":\"x\",\"text\":\"last\"}");
  const std::string path = folder / "a.jsonl.gz";
  EXPECT_EQ(read_all(path), (std::vector<Document>{{path + ":1", "zäh\n"}, {path + ":4", "last"}}));
}

TEST(TextSource, NamesFileAndLineOfABadRecord) {
  const TemporaryDirectory folder;
  for (const auto& [line, part] : std::initializer_list<std::pair<const char*, const char*>>{
           {"{\"text\": \"a\"", "bad JSON"},
           {"{\"text\": \"a\"} x", "bad JSON"},
           {"[1]", "object"},
           {"{\"text\": 3}", "neither"},
           {"{\"other\": \"a\"}", "missing"},
           {"{\"text\": [1]}", "not a string"},
           {"{\"text\": \"\xff\"}", "bad JSON"},
           {"{\"text\": \"\\ud800\"}", "lone surrogate"}}) {
    write_file(folder / "a.jsonl", std::string("{\"text\": \"fine\"}\n") + line + "\n");
    const std::string message = error_of([&] { read_all(folder / "a.jsonl"); });
    EXPECT_NE(message.find("a.jsonl:2"), std::string::npos) << message;
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
}

TEST(JsonLinesReader, GivesSeveralKeysAndLists) {
  JsonLinesReader reader(golden("indexed/preprocess/corpus_two_keys.jsonl"), {"text", "title"});
  JsonRecord record;
  ASSERT_TRUE(reader.next(record));
  EXPECT_EQ(record.values.size(), 2u);
  EXPECT_EQ(record.values[1].size(), 1u);
  JsonLinesReader lists(golden("indexed/preprocess/corpus_sentence_lists.jsonl"), {"text"});
  size_t most = 0;
  while (lists.next(record)) most = std::max(most, record.values[0].size());
  EXPECT_GT(most, 1u);
}

TEST(TextSource, ReadsDirectoriesInOrder) {
  const TemporaryDirectory folder;
  write_file(folder / "b/two.txt", "two");
  write_file(folder / "a.txt", "one\nline");
  write_file(folder / "c.jsonl", "{\"text\": \"three\"}\n{\"text\": \"four\"}\n");
  write_file(folder / ".hidden/x.txt", "no");
  write_file(folder / "empty.md", "");
  std::filesystem::create_symlink("a.txt", folder / "0_alias.txt");
  std::filesystem::create_directory_symlink("..", folder / "b/loop");
  std::filesystem::create_symlink("nowhere", folder / "dangling");
  EXPECT_EQ(read_all(folder.path()), (std::vector<Document>{{folder / "a.txt:1", "one\nline"},
                                                            {folder / "b/two.txt:1", "two"},
                                                            {folder / "c.jsonl:1", "three"},
                                                            {folder / "c.jsonl:2", "four"}}));
}

std::string paragraph(size_t bytes, char letter) { return std::string(bytes - 1, letter) + "\n"; }

TEST(TextSource, CutsPlainTextBetweenParagraphs) {
  const TemporaryDirectory folder;
  const std::string path = folder / "book.txt";
  const std::vector<std::string> pieces = {
      paragraph(1000, 'a') + "\n" + paragraph(998, 'b') + "\n" + paragraph(10, 'c') + " \t\r\n\n\n",
      paragraph(1999, 'd') + "x\n\r\n",  // the 2000th byte counts, not the first blank line
      paragraph(7990, 'e') +
          "nine byt\nlast one\n",  // no blank line: the line end from byte 8000 on
      paragraph(9000, 'f'),        // a line is never cut
      std::string(8000, '\n'),     // blank lines do not continue indefinitely either
      "\n  no line end"};
  std::string text;
  for (const std::string& piece : pieces) text += piece;
  write_file(path, text);
  const auto documents = read_all(path);
  ASSERT_EQ(documents.size(), pieces.size());
  int64_t line = 1;
  for (size_t i = 0; i < pieces.size(); ++i) {
    EXPECT_EQ(documents[i].text, pieces[i]) << i;
    EXPECT_EQ(documents[i].name, fmt::format("{}:{}", path, line));
    line += std::ranges::count(pieces[i], '\n');
  }
  EXPECT_EQ(read_all(path, {.whole_files = true}), (std::vector<Document>{{path, text}}));
  write_gz(folder / "book.gz", text);
  EXPECT_EQ(read_all(folder / "book.gz").size(), pieces.size());
}

TEST(TextSource, CutsNoByteOutOfAnyText) {
  const TemporaryDirectory folder;
  const std::string alphabet[] = {"\n", "\n", "\r\n", " ", "ä", std::string(90, 'w'), "\n\n"};
  uint32_t state = 1;
  for (int round = 0; round < 20; ++round) {
    std::string text, joined;
    while (text.size() < 60000)
      text += alphabet[((state = state * 1664525u + 1013904223u) >> 16) % 7];
    write_file(folder / "a.txt", text);
    for (const Document& document : read_all(folder / "a.txt")) {
      joined += document.text;
      EXPECT_FALSE(document.text.empty());
    }
    EXPECT_EQ(joined, text);
  }
}

TEST(TextSource, ReadsAFileOfSeveralNamesOnce) {
  const TemporaryDirectory folder;
  std::filesystem::create_directories(folder / "man1");
  write_gz(folder / "man1/a.1.gz", "NAME\n       a - b\n");
  write_file(folder / "man1/.hidden", "no document");
  std::filesystem::create_symlink("a.1.gz", folder / "man1/alias.1.gz");
  EXPECT_EQ(read_all(folder.path(), {.whole_files = true}),
            (std::vector<Document>{{folder / "man1/a.1.gz", "NAME\n       a - b\n"}}));
}

TEST(TextSource, TellsWhatCannotBeRead) {
  const TemporaryDirectory folder;
  EXPECT_NE(error_of([&] { TextSource(folder / "absent"); }).find("absent"), std::string::npos);
  EXPECT_NE(error_of([&] { TextSource(folder.path()); }).find("no file"), std::string::npos);
  write_file(folder / "latin.txt", "caf\xe9");
  EXPECT_NE(error_of([&] { read_all(folder / "latin.txt"); }).find("latin.txt:1: "),
            std::string::npos);
  EXPECT_NE(error_of([&] { read_all(folder / "latin.txt"); }).find("UTF-8"), std::string::npos);
  EXPECT_NE(error_of([&] { read_all(folder / "latin.txt", {.whole_files = true}); }).find("UTF-8"),
            std::string::npos);
  write_gz(folder / "whole.txt.gz", std::string(5000, 'x') + "end of the text");
  const std::string bytes = read_file(folder / "whole.txt.gz");
  write_file(folder / "cut.txt.gz", bytes.substr(0, bytes.size() - 12));
  EXPECT_NE(error_of([&] { read_all(folder / "cut.txt.gz"); }).find("cut.txt.gz"),
            std::string::npos);
}

TEST(InputFile, ReadsLinesOfAnyLength) {
  const TemporaryDirectory folder;
  std::string text;
  std::vector<std::string> lines;
  for (const size_t length : {0u, 1u, 262143u, 262144u, 262145u, 700000u}) {
    lines.emplace_back(length, 'x');
    text += lines.back() + (length % 2 == 0 ? "\n" : "\r\n");
  }
  write_file(folder / "a", text + "no end");
  lines.push_back("no end");
  InputFile file(folder / "a");
  std::string line;
  for (const std::string& expected : lines) {
    ASSERT_TRUE(file.next_line(line));
    EXPECT_EQ(line, expected);
  }
  EXPECT_FALSE(file.next_line(line));
}

}  // namespace
}  // namespace megatron::data
