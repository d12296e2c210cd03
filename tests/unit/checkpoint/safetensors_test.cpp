#include "checkpoint/safetensors.h"

#include <cmath>
#include <cstring>
#include <random>

#include "base/json.h"
#include "support.h"

namespace megatron::checkpoint {
namespace {

std::vector<TensorToWrite> tensors_of(const SafetensorsFile& file) {
  std::vector<TensorToWrite> tensors;
  for (const TensorInfo& info : file.tensors()) {
    tensors.push_back({info.name, info.dtype, info.shape, [&](std::span<std::byte> out) {
                         const auto bytes = file.bytes(info);
                         ASSERT_EQ(out.size(), bytes.size());
                         std::copy(bytes.begin(), bytes.end(), out.begin());
                       }});
  }
  return tensors;
}

std::string open_error(std::string_view header, std::string_view data) {
  MemoryFile file;
  file.set(file_text(header, data));
  return error_of([&] { SafetensorsFile(file.path()); });
}

TEST(Safetensors, RewritesFilesOfTheOriginalLibraryByteForByte) {
  const TemporaryDirectory folder;
  int files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(golden(""))) {
    if (entry.path().extension() != ".safetensors") continue;
    const SafetensorsFile file(entry.path().string());
    write_safetensors(folder / "copy", tensors_of(file), file.metadata());
    EXPECT_TRUE(read_file(folder / "copy") == read_file(entry.path().string())) << entry.path();
    ++files;
  }
  EXPECT_EQ(files, 105);
}

TEST(Safetensors, ReadsValuesAndMetadata) {
  const SafetensorsFile file(golden("llama/expected.safetensors"));
  const std::vector<int64_t> greedy = file.integers("greedy");
  EXPECT_EQ(greedy.size(), 12u);
  for (const int64_t token : greedy) EXPECT_TRUE(token >= 0 && token < 160);
  ASSERT_NE(file.find("loss"), nullptr);
  EXPECT_EQ(file.find("loss")->shape.rank(), 0);
  EXPECT_NEAR(file.doubles("loss")[0], std::log(160.0), 3.0);
  EXPECT_EQ(file.find("absent"), nullptr);
  EXPECT_TRUE(contains(error_of([&] { file.doubles("absent"); }), "has no tensor 'absent'"));
  EXPECT_TRUE(contains(error_of([&] { file.integers("loss"); }), "not an integer type"));
  EXPECT_EQ(SafetensorsFile(golden("llama/model.safetensors")).metadata(),
            (std::vector<std::pair<std::string, std::string>>{{"format", "pt"}}));
}

TEST(Safetensors, EveryTypeReadsBack) {
  const std::string half("\x00\x3c\x00\xc0", 4);   // 1, -2 in binary16
  const std::string brain("\x80\x3f\x00\xc0", 4);  // the same in bfloat16
  const std::pair<DType, std::string> cases[] = {
      {DType::f64, std::string("\0\0\0\0\0\0\xf0\x3f\0\0\0\0\0\0\0\xc0", 16)},
      {DType::f32, std::string("\0\0\x80\x3f\0\0\0\xc0", 8)},
      {DType::bf16, brain},
      {DType::f16, half},
      {DType::i64, std::string("\1\0\0\0\0\0\0\0\xfe\xff\xff\xff\xff\xff\xff\xff", 16)},
      {DType::i32, std::string("\1\0\0\0\xfe\xff\xff\xff", 8)},
      {DType::i16, std::string("\1\0\xfe\xff", 4)},
      {DType::i8, "\1\xfe"},
      {DType::u16, std::string("\1\0\2\0", 4)},
      {DType::u8, "\1\2"}};
  const TemporaryDirectory folder;
  std::vector<TensorToWrite> tensors;
  for (const auto& [type, bytes] : cases) {
    tensors.push_back({std::string(name(type)), type, Shape{2}, [&bytes](std::span<std::byte> out) {
                         ASSERT_EQ(out.size(), bytes.size());
                         std::memcpy(out.data(), bytes.data(), out.size());
                       }});
  }
  tensors.push_back({"empty \"\n\xc3\xa9", DType::f32, Shape{3, 0},
                     [](std::span<std::byte> out) { EXPECT_TRUE(out.empty()); }});
  write_safetensors(folder / "x", tensors, {});
  const SafetensorsFile file(folder / "x");
  for (const auto& [type, bytes] : cases) {
    const bool is_unsigned = type == DType::u16 || type == DType::u8;
    EXPECT_EQ(file.doubles(name(type)), (std::vector<double>{1, is_unsigned ? 2.0 : -2.0}));
    if (is_floating(type)) continue;
    EXPECT_EQ(file.integers(name(type)), (std::vector<int64_t>{1, is_unsigned ? 2 : -2}));
  }
  EXPECT_EQ(file.find("empty \"\n\xc3\xa9")->shape, (Shape{3, 0}));
  EXPECT_TRUE(file.metadata().empty());
}

TEST(Safetensors, HeaderIsTheOriginalLibrarysText) {
  const TemporaryDirectory folder;
  const std::vector<TensorToWrite> tensors = {
      {"b", DType::bf16, Shape{2, 1}, [](std::span<std::byte> out) { out[0] = std::byte{7}; }},
      {"a", DType::u8, Shape{}, [](std::span<std::byte> out) { out[0] = std::byte{8}; }}};
  const std::pair<std::string, std::string> metadata[] = {{"format", "pt"}, {"k", "\"\\"}};
  write_safetensors(folder / "x", tensors, metadata);
  const std::string text = read_file(folder / "x");
  std::string header = R"({"__metadata__":{"format":"pt","k":"\"\\"},)"
                       R"("b":{"dtype":"BF16","shape":[2,1],"data_offsets":[0,4]},)"
                       R"("a":{"dtype":"U8","shape":[],"data_offsets":[4,5]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  EXPECT_EQ(text.substr(0, 8 + header.size()), file_text(header, ""));
  EXPECT_EQ(text.size(), 8 + header.size() + 5);
}

TEST(Safetensors, WriterRefusesNamesThatClash) {
  const TemporaryDirectory folder;
  const auto nothing = [](std::span<std::byte>) {};
  const std::vector<TensorToWrite> twice = {{"a", DType::u8, Shape{1}, nothing},
                                            {"a", DType::u8, Shape{1}, nothing}};
  const std::vector<TensorToWrite> reserved = {{"__metadata__", DType::u8, Shape{1}, nothing}};
  const std::vector<TensorToWrite> huge = {
      {"a", DType::f64, Shape{int64_t{1} << 40, int64_t{1} << 40}, nothing}};
  EXPECT_TRUE(contains(error_of([&] { write_safetensors(folder / "x", twice, {}); }), "'a'"));
  EXPECT_TRUE(
      contains(error_of([&] { write_safetensors(folder / "x", reserved, {}); }), "__metadata__"));
  EXPECT_TRUE(contains(error_of([&] { write_safetensors(folder / "x", huge, {}); }), "too large"));
  EXPECT_TRUE(folder.names().empty());
}

TEST(Safetensors, RefusesWhatIsWrong) {
  const std::string good = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  const std::string data(8, 'x');
  EXPECT_EQ(open_error(good, data), "");
  EXPECT_EQ(open_error(good + "    ", data), "");
  EXPECT_EQ(open_error("{}", ""), "");
  const auto entry = [](std::string_view type, std::string_view shape, std::string_view offsets) {
    return fmt::format(R"({{"a":{{"dtype":{},"shape":{},"data_offsets":{}}}}})", type, shape,
                       offsets);
  };
  const struct {
    std::string header;
    std::string_view reason;
  } cases[] = {
      {"", "does not begin with '{'"},
      {" {}", "does not begin with '{'"},
      {"[]", "does not begin with '{'"},
      {"{", "line 1"},
      {R"({"a":3})", "not an object"},
      {good.substr(0, good.size() - 1) + R"(,"a":{}})", "repeated"},
      {R"({"__metadata__":{"a":1}})", "not a string"},
      {R"({"__metadata__":[]})", "not an object"},
      {entry("\"F8\"", "[8]", "[0,8]"), "'F8' does not exist in the safetensors format"},
      {entry("\"B1\"", "[8]", "[0,8]"), "'B1' does not exist in the safetensors format"},
      {entry("\"f32\"", "[2]", "[0,8]"), "'f32' does not exist in the safetensors format"},
      {entry("3", "[2]", "[0,8]"), "dtype is missing or not a string"},
      {entry("\"F32\"", "2", "[0,8]"), "shape is missing or not an array"},
      {entry("\"F32\"", "[2.0]", "[0,8]"), "shape contains 2.0"},
      {entry("\"F32\"", "[-2]", "[0,8]"), "shape contains -2"},
      {entry("\"F32\"", "[\"2\"]", "[0,8]"), "not a number"},
      {entry("\"F32\"", "[18446744073709551615]", "[0,8]"), "only integers from 0"},
      {entry("\"F32\"", "[1,1,1,1,1,1,2]", "[0,8]"), "at most 6"},
      {entry("\"F32\"", "[4294967296,4294967296]", "[0,8]"), "too large"},
      {entry("\"F32\"", "[0,4611686018427387904,8]", "[0,0]"), "too large"},
      {entry("\"F32\"", "[3]", "[0,8]"), "needs 12"},
      {entry("\"F32\"", "[2]", "[0,8,8]"), "must have 2"},
      {entry("\"F32\"", "[2]", "[0,9]"), "are outside the file's 8 bytes"},
      {entry("\"F32\"", "[2]", "[8,0]"), "are outside"},
      {entry("\"F32\"", "[1]", "[4,8]"), "bytes [0, 4)"},
      {entry("\"F32\"", "[1]", "[0,4]"), "the last 4 bytes"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1}})", "unknown key 'x'"},
      {R"({"a":{"dtype":"F32","shape":[2]}})", "data_offsets is missing"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
       R"("b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
       "inside the previous tensor"},
  };
  for (const auto& c : cases) {
    const std::string error = open_error(c.header, data);
    EXPECT_TRUE(contains(error, c.reason)) << c.header << "\n" << error;
    EXPECT_TRUE(contains(error, "/proc/self/fd/")) << error;
  }
}

TEST(Safetensors, RefusesLengthsBeyondTheFile) {
  const TemporaryDirectory folder;
  const auto error = [&](uint64_t length, size_t rest) {
    std::string text(reinterpret_cast<const char*>(&length), sizeof length);
    write_file(folder / "x", text + std::string(rest, '{'));
    return error_of([&] { SafetensorsFile(folder / "x"); });
  };
  EXPECT_TRUE(contains(error(11, 10), "10 bytes follow"));
  EXPECT_TRUE(contains(error(0, 10), "does not begin"));
  EXPECT_TRUE(contains(error(100'000'001, 10), "at most 100000000"));
  EXPECT_TRUE(contains(error(~uint64_t{0}, 10), "at most 100000000"));
  write_file(folder / "x", "1234567");
  EXPECT_TRUE(contains(error_of([&] { SafetensorsFile(folder / "x"); }), "it has 7 bytes"));
  EXPECT_TRUE(contains(error_of([&] { SafetensorsFile(folder / "absent"); }), "absent"));
}

// Opens a damaged file and, if it is accepted, reads all of it.
bool opens(MemoryFile& memory, const std::string& text) {
  memory.set(text);
  try {
    const SafetensorsFile file(memory.path());
    for (const TensorInfo& info : file.tensors()) {
      EXPECT_EQ(file.doubles(info.name).size(), static_cast<size_t>(info.shape.elements()));
    }
    return true;
  } catch (const Error&) {
    return false;
  }
}

TEST(Safetensors, DamagedFilesAreErrorsNeverCrashes) {
  MemoryFile file;
  const std::string header = R"({"__metadata__":{"format":"pt"},)"
                             R"("a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
                             R"("b":{"dtype":"I64","shape":[],"data_offsets":[24,32]}}  )";
  const std::string good = file_text(header, std::string(32, '\x11'));
  ASSERT_TRUE(opens(file, good));
  for (size_t size = 0; size < good.size(); ++size) EXPECT_FALSE(opens(file, good.substr(0, size)));
  EXPECT_FALSE(opens(file, good + '\0'));

  std::mt19937_64 random(1);
  int taken = 0;
  for (int i = 0; i < 2000; ++i) {
    std::string text = good;
    for (uint64_t flips = 1 + random() % 3; flips > 0; --flips) {
      text[random() % (8 + header.size())] ^= static_cast<char>(1 << random() % 8);
    }
    taken += opens(file, text);
  }
  EXPECT_LT(taken, 1500);
  const std::string_view numbers[] = {"9223372036854775807",
                                      "18446744073709551615",
                                      "-1",
                                      "1e30",
                                      "4611686018427387904",
                                      "2147483648",
                                      "1e400",
                                      "00",
                                      "[]"};
  const std::string_view digits[] = {"2,3", "[2", "3]", "24,", "[24", "32]", "0,24"};
  for (const std::string_view number : numbers) {
    for (const std::string_view digit : digits) {
      std::string changed = header;
      changed.replace(changed.find(digit), digit.size(), number);
      EXPECT_FALSE(opens(file, file_text(changed, std::string(32, '\x11')))) << changed;
    }
  }
}

}  // namespace
}  // namespace megatron::checkpoint
