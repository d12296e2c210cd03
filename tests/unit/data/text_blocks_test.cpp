#include "data/text_blocks.h"

#include <zlib.h>
#include <zstd.h>

#include <fstream>

#include "base/utf8.h"
#include "data/byte_source.h"
#include "data/json_lines.h"
#include "support.h"

namespace megatron::data {
namespace {

std::string gzip(const std::string& text) {
  const TemporaryDirectory folder;
  const std::string path = folder / "a.gz";
  gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, text.data(), static_cast<unsigned>(text.size()));
  gzclose(file);
  return read_file(path);
}

std::string zstd(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  ZSTD_CCtx* const context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);  // as the zstd program does
  out.resize(ZSTD_compress2(context, out.data(), out.size(), text.data(), text.size()));
  ZSTD_freeCCtx(context);
  return out;
}

std::string read_all(const std::string& path, size_t step) {
  const auto source = ByteSource::open(path);
  std::string text, part(step, '\0');
  while (const size_t got = source->read(part)) text.append(part, 0, got);
  EXPECT_EQ(source->consumed(), source->size());
  return text;
}

std::string some_text(size_t bytes) {
  std::string text;
  uint32_t state = 7;
  while (text.size() < bytes)
    text += static_cast<char>('a' + ((state = state * 1664525u + 1013904223u) >> 16) % 20);
  return text;
}

TEST(ByteSource, UnpacksByTheFirstBytes) {
  const TemporaryDirectory folder;
  const std::string text = some_text(500000), more = "and more";
  const std::string path = folder / "any.name";
  for (const std::string& bytes :
       {text, gzip(text), zstd(text), gzip(text) + std::string(512, '\0')}) {
    write_file(path, bytes);
    EXPECT_TRUE(read_all(path, 1 << 16) == text);
    EXPECT_TRUE(read_all(path, 1001) == text);
  }
  write_file(path, gzip(text) + gzip("") + gzip(more));
  EXPECT_TRUE(read_all(path, 1 << 16) == text + more);
  write_file(path, zstd(text) + zstd("") + zstd(more));
  EXPECT_TRUE(read_all(path, 1 << 16) == text + more);
  for (const std::string& nothing : {std::string(), gzip(""), zstd("")}) {
    write_file(path, nothing);
    EXPECT_EQ(read_all(path, 100), "");
  }
}

// A skippable frame, and a frame of one raw block that asks for a window of 2^log bytes.
std::string skippable(const std::string& content, int kind = 0) {
  return std::string{static_cast<char>(0x50 + kind),    '\x2a', '\x4d', '\x18',
                     static_cast<char>(content.size()), '\0',   '\0',   '\0'} +
         content;
}
std::string with_window(const std::string& text, int log) {
  const auto block = static_cast<uint32_t>(text.size() << 3 | 1);
  return "\x28\xb5\x2f\xfd" +
         std::string{'\0', static_cast<char>((log - 10) << 3), static_cast<char>(block),
                     static_cast<char>(block >> 8), '\0'} +
         text;
}

TEST(ByteSource, LeavesSkippableFramesOut) {
  const TemporaryDirectory folder;
  const std::string path = folder / "any.name", text = some_text(300000), size(4, '\1');
  for (const std::string& bytes :
       {skippable(size) + zstd(text), skippable("", 15) + skippable(size, 7) + zstd(text),
        zstd(text) + skippable(size) + zstd("") + skippable(some_text(200))}) {
    write_file(path, bytes);
    EXPECT_TRUE(read_all(path, 1 << 16) == text);
    EXPECT_TRUE(read_all(path, 1001) == text);
    write_file(path, bytes.substr(0, bytes.size() - 1));
    EXPECT_NE(error_of([&] { read_all(path, 4096); }).find("truncated"), std::string::npos);
  }
  write_file(path, skippable(size));
  EXPECT_EQ(read_all(path, 100), "");
  write_file(path, skippable(size) + "no frame at all");
  EXPECT_NE(error_of([&] { read_all(path, 100); }).find("damaged"), std::string::npos);
}

TEST(ByteSource, WindowsMayTakeHalfOfTheMemory) {
  const TemporaryDirectory folder;
  const std::string path = folder / "long.zst";
  const auto read = [&](const std::string& bytes, int64_t memory) {
    write_file(path, bytes);
    std::string text(100, '\0');
    text.resize(ByteSource::open(path, memory)->read(text));
    return text;
  };
  constexpr int64_t kGib = int64_t{1} << 30;
  EXPECT_EQ(read(with_window("far back", 31), 4 * kGib), "far back");
  EXPECT_EQ(read(with_window("far back", 28), kGib / 2), "far back");
  EXPECT_EQ(read(with_window("near", 27), 0), "near");
  testing::expect_contains(
      error_of([&] { read(skippable("1234") + with_window("far", 31), 4 * kGib - 1); }),
      {"long.zst: the zstd frame at its byte 12 needs a window of 2048 MiB", "at most 1024 MiB",
       "zstd -d --long=31 "});
  testing::expect_contains(error_of([&] { read(with_window("far", 28), 0); }),
                           {"window of 256 MiB", "at most 128 MiB", "zstd -d --long=28 "});
  testing::expect_contains(error_of([&] { read(with_window("far", 40), 64 * kGib); }),
                           {"1048576 MiB", "damaged"});
  // A single segment, whose window is its content: 300 MiB.
  const std::string single{'\x28', '\xb5', '\x2f', '\xfd', '\xa0', '\0',
                           '\0',   '\xc0', '\x12', '\1',   '\0',   '\0'};
  testing::expect_contains(error_of([&] { read(single, kGib / 2); }),
                           {"window of 300 MiB", "at most 256 MiB", "zstd -d --long=29 "});
}

TEST(ByteSource, TellsDamage) {
  const TemporaryDirectory folder;
  const std::string path = folder / "a.jsonl.zst", text = some_text(300000);
  for (const std::string& whole : {gzip(text), zstd(text)}) {
    for (const size_t cut : {size_t{1}, size_t{9}, whole.size() / 2, whole.size() - 12}) {
      write_file(path, whole.substr(0, whole.size() - cut));
      const std::string message = error_of([&] { read_all(path, 4096); });
      EXPECT_NE(message.find("a.jsonl.zst"), std::string::npos) << cut << message;
      EXPECT_NE(message.find("truncated"), std::string::npos) << cut << message;
    }
    std::string damaged = whole;
    for (size_t i = 100; i < 160; ++i) damaged[i] = static_cast<char>(damaged[i] ^ 0x5a);
    write_file(path, damaged);
    EXPECT_NE(error_of([&] { read_all(path, 4096); }).find("damaged"), std::string::npos);
  }
  write_file(path, gzip(text) + "something else");
  EXPECT_NE(error_of([&] { read_all(path, 4096); }).find("other data"), std::string::npos);
}

TEST(ByteSource, TellsThatAFileChanged) {
  const TemporaryDirectory folder;
  const std::string path = folder / "a.jsonl";
  const auto read_while = [&](auto change) {
    write_file(path, some_text(100000));
    return error_of([&] {
      const auto source = ByteSource::open(path);
      std::string part(1000, '\0');
      source->read(part);
      change();
      while (source->read(part) > 0) {
      }
    });
  };
  for (const std::string& message :
       {read_while([&] { std::filesystem::resize_file(path, 5000); }),
        read_while([&] { std::ofstream(path, std::ios::app) << "more"; }), read_while([&] {
          std::filesystem::last_write_time(
              path, std::filesystem::file_time_type::clock::now() + std::chrono::hours(1));
        })}) {
    EXPECT_NE(message.find("a.jsonl changed while it was being read"), std::string::npos)
        << message;
  }
  EXPECT_EQ(read_while([] {}), "");
}

std::string joined(const TextBlock& block) {
  if (block.json_lines) return std::string(block.lines.text());
  std::string text;
  for (const auto& piece : block.pieces) text += piece.text;
  return text;
}

TEST(TextBlocks, HoldWholeLinesOfAnyLength) {
  const TemporaryDirectory folder;
  std::string text;
  for (const size_t length : {0u, 5u, 999u, 1000u, 1001u, 5000u, 3u, 70000u, 1u, 0u, 200u})
    text += std::string(length, 'x') + "\n";
  for (const std::string tail : {"", "no end"}) {
    write_file(folder / "a.jsonl", text + tail);
    for (const size_t bytes : {1u, 64u, 1000u, 1001u, 4096u, 1u << 20}) {
      TextBlocks blocks({folder / "a.jsonl"}, {});
      TextBlock block;
      std::string all;
      int64_t lines = 0;
      while (blocks.next(block, bytes)) {
        EXPECT_TRUE(block.json_lines);
        EXPECT_EQ(block.lines.first_line(), lines + 1);
        EXPECT_EQ(block.first_record, lines);
        lines += block.lines.line_count();
        all += joined(block);
        EXPECT_TRUE(all.ends_with('\n') || all.size() == text.size() + tail.size());
      }
      EXPECT_TRUE(all == text + tail) << bytes;
      EXPECT_EQ(lines, 11 + (tail.empty() ? 0 : 1));
      EXPECT_EQ(blocks.bytes_read(), blocks.total_bytes());
    }
  }
}

TEST(TextBlocks, ReadManyInputsInOnePass) {
  const TemporaryDirectory folder;
  write_file(folder / "b.jsonl", "1\n2\n");
  write_file(folder / "a.jsonl.gz", gzip("3\n"));
  write_file(folder / "c.ndjson.zst", zstd("4\n5"));
  write_file(folder / "d/text.txt", "plain\ntext");
  write_file(folder / "d/more.txt", "");
  std::string all;
  TextBlocks blocks({folder / "[ab].jsonl*", folder / "c.ndjson.zst", folder / "d"}, {});
  TextBlock block;
  std::vector<int64_t> first;
  while (blocks.next(block, 1 << 20)) {
    all += joined(block) + "|";
    first.push_back(block.first_record);
    EXPECT_EQ(block.json_lines, !block.path.ends_with(".txt"));
  }
  EXPECT_EQ(all, "3\n|1\n2\n|4\n5|plain\ntext|");
  EXPECT_EQ(first, (std::vector<int64_t>{0, 1, 3, 5}));
}

TEST(InputList, ExpandsPatterns) {
  const TemporaryDirectory folder;
  for (const char* name : {"x1.jsonl", "x2.jsonl", "y.txt", "strange[1].jsonl"})
    write_file(folder / name, "z");
  const auto names = [&](const std::string& pattern, TextKind kind = TextKind::automatic) {
    std::vector<std::string> out;
    for (const InputEntry& entry : list_inputs({folder / pattern}, kind))
      out.push_back(entry.path.substr(folder.path().size() + 1) + (entry.json_lines ? "*" : ""));
    return out;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(names("x?.jsonl"), (Names{"x1.jsonl*", "x2.jsonl*"}));
  EXPECT_EQ(names("{y.txt,x1*}"), (Names{"x1.jsonl*", "y.txt"}));
  EXPECT_EQ(names("strange[1].jsonl"), (Names{"strange[1].jsonl*"}));  // a file of that name
  EXPECT_EQ(names("{x{2,1},strange\\[1\\]}.json{,l}"),
            (Names{"strange[1].jsonl*", "x1.jsonl*", "x2.jsonl*"}));
  EXPECT_EQ(names("{x1,x1}.jsonl"), (Names{"x1.jsonl*", "x1.jsonl*"}));
  write_file(folder / "d{e,f/z.txt", "z");
  write_file(folder / "d1/.hidden.txt", "z");
  write_file(folder / "d1/a.txt", "z");
  EXPECT_EQ(names("d*/*.txt"), (Names{"d1/a.txt", "d{e,f/z.txt"}));
  EXPECT_EQ(names("d{e,f/*"), (Names{"d{e,f/z.txt"}));  // braces are not closed
  EXPECT_EQ(names("d\\{e,f/?.txt"), (Names{"d{e,f/z.txt"}));
  EXPECT_EQ(names("d1/.h*"), (Names{"d1/.hidden.txt"}));
  EXPECT_EQ(names("d1*/"), (Names{"d1/a.txt"}));  // files of a directory
  EXPECT_EQ(names("y.txt", TextKind::json_lines), (Names{"y.txt*"}));
  EXPECT_NE(error_of([&] { names("z*"); }).find("z* (--input)"), std::string::npos);
}

// Patterns with a billion alternatives, or of directory paths, are refused immediately.
TEST(InputList, APatternMayNotStandForTooManyPaths) {
  const TemporaryDirectory folder;
  for (const char* name : {"a/x", "b/x", "c/x"}) write_file(folder / name, "z");
  const auto refused = [&](const std::string& pattern) {
    testing::expect_contains(
        error_of([&] { list_inputs({folder / pattern}, TextKind::automatic); }),
        {"--input ", "more than 1000000 paths, or 256 MiB"});
  };
  const auto repeated = [](const std::string& part, int times) {
    std::string all;
    for (int i = 0; i < times; ++i) all += part;
    return all;
  };
  refused(repeated("{a,b}", 30));
  refused(repeated("*/../", 30) + "*");
  refused(repeated("{", 30000) + repeated("}", 30000) + repeated("{}", 30000));
}

// For any bytes as a line, parsing gives texts or an error.
TEST(JsonLineParser, SurvivesAnyBytes) {
  JsonLineParser parser({"text", "title"});
  std::string line;
  const auto parse = [&](const std::string& bytes) {
    line = bytes;
    line.reserve(line.size() + LineBlock::kPadding);
    return parser.parse(line);
  };
  const std::string good =
      R"({"id": [1, {"a": null}], "text": "z\u00e4h \ud83d\ude00", "title": ["a", "b"]})";
  ASSERT_EQ(parse(good)[0][0], "z\u00e4h \U0001F600");
  EXPECT_EQ(parse(good)[1].size(), 2u);
  uint32_t state = 5;
  const auto random = [&state](size_t end) {
    return ((state = state * 1664525u + 1013904223u) >> 8) % end;
  };
  const std::string interesting = "{}[]\",:\\u0x\xff\x80\xed\xa0 \t\n9-eEtfn";
  int errors = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = good;
    for (size_t n = random(4) + 1; n > 0; --n) {
      const size_t at = random(bytes.size());
      switch (random(4)) {
        case 0: bytes[at] = static_cast<char>(random(256)); break;
        case 1: bytes[at] = interesting[random(interesting.size())]; break;
        case 2: bytes.erase(at, random(9)); break;
        default: bytes.insert(at, bytes.substr(random(bytes.size()), random(9))); break;
      }
      if (bytes.empty()) bytes = "{";
    }
    try {
      const auto texts = parse(bytes);
      for (const auto& list : texts)
        for (const std::string_view text : list) EXPECT_TRUE(is_utf8(text));
    } catch (const Error& error) {
      ++errors;
      EXPECT_GT(std::string_view(error.what()).size(), 10u);
    }
  }
  EXPECT_GT(errors, 5000);
  ASSERT_EQ(parse(good)[0][0].size(), 9u);
}

// Text that only json.loads accepts does not stop a run if it is in keys that are not read.
TEST(JsonLineParser, SkipsWhatItDoesNotRead) {
  JsonLineParser parser({"text"});
  std::string line;
  const auto parse = [&](const std::string& bytes) {
    line = bytes;
    line.reserve(line.size() + LineBlock::kPadding);
    return parser.parse(line)[0];
  };
  using Texts = std::vector<std::string_view>;
  for (const std::string& other :
       {std::string(R"("n": 123456789012345678901234567890)"), "\"n\": -" + std::string(400, '7'),
        "\"n\": 0." + std::string(400, '7') + "e-9", std::string(R"("n": [1e999, {"m": -1E+400}])"),
        std::string(R"("n": NaN, "m": [Infinity, -Infinity])"),
        std::string(R"("n": "\ud83d", "n": "\ude00\ud83d\ud83d\ude00")"),
        std::string(R"("\udc00": {"\ud800": null}, "n": [{}, [], true, false, ""])")}) {
    EXPECT_EQ(parse("{" + other + R"(, "text": ["a\/\n", "\u00e9\ud83d\ude00"]})"),
              (Texts{"a/\n", "\u00e9\U0001F600"}));
    EXPECT_EQ(parse(R"( {"text" : "b", )" + other + " , \"text\" :\t\"last\" } \r"), Texts{"last"});
    for (const char* bad :
         {"", ",}", "}}", "] }", ", 1}", ", \"x\": 01}", ", \"x\": 1.}", ", \"x\": .5}",
          ", \"x\": 1e}", ", \"x\": nan}", ", \"x\": \"\\ud80\"}", ", \"x\": \"\\q\"}",
          ", \"x\": \"\t\"}", ", \"x\": \"}", ", \"x\": [1,]}", ", \"x\": \"\xff\"}", ", \"x\"}"})
      EXPECT_TRUE(error_of([&] {
                    parse("{" + other + R"(, "text": "a")" + bad);
                  }).starts_with("bad JSON at byte "))
          << other << bad;
  }
  EXPECT_TRUE(error_of([&] { parse("1e999"); }).starts_with("expected one JSON object"));
  EXPECT_TRUE(error_of([&] { parse(R"({"n": 1e999})"); }).starts_with("the key 'text' is missing"));
  EXPECT_TRUE(error_of([&] {
                parse(std::string(2000, '[') + "1e999");
              }).starts_with("bad JSON at byte 1024 "));
}

TEST(JsonLineParser, NamesALoneSurrogate) {
  JsonLineParser parser({"text", "title"});
  std::string line;
  for (const char* text : {R"({"title": "a", "text": "ab\ud83dz"})",
                           R"({"text": ["x", "\u0061b\uD83D\u0041"], "title": "a"})"}) {
    line = text;
    line.reserve(line.size() + LineBlock::kPadding);
    testing::expect_contains(error_of([&] { parser.parse(line); }),
                             {"'text' has the escape \\ud83d at byte 2", "lone surrogate"});
  }
}

}  // namespace
}  // namespace megatron::data
