// Weights in FP8 with scales by blocks, as DeepSeek-V3 is published.
#include "checkpoint/fp8_tensor.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "checkpoint/safetensors.h"
#include "checkpoint/tensor_copy.h"
#include "raw_tensors.h"
#include "support.h"

namespace megatron::checkpoint::fp8_tensor_test {
namespace {

using megatron::testing::RawTensor;
using parallel::CanonicalTensor;

template <class T>
std::string bytes_of_values(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// An e4m3 number by the format's definition.
double by_definition(int bits) {
  const int exponent = bits / 8 % 16, mantissa = bits % 8;
  if (bits % 128 == 127) return std::nan("");
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa / 8.0, -6) : std::ldexp(1 + mantissa / 8.0, exponent - 7);
  return bits < 128 ? magnitude : -magnitude;
}

TEST(Fp8, EveryNumber) {
  for (int bits = 0; bits < 256; ++bits) {
    const double value = e4m3_value(static_cast<uint8_t>(bits)), wanted = by_definition(bits);
    EXPECT_TRUE(std::isnan(wanted) ? std::isnan(value) : value == wanted) << bits;
    EXPECT_EQ(std::signbit(value), bits >= 128) << bits;
  }
  EXPECT_EQ(e4m3_value(0x7e), 448);
  EXPECT_EQ(e4m3_value(0x01), 0x1p-9);
}

// Files with w, of two matrices of 5 x 7 in blocks of 2 x 3, and a plain tensor.
constexpr int64_t kMatrices = 2, kRows = 5, kColumns = 7, kBlockRows = 2, kBlockColumns = 3;

struct Files {
  std::vector<RawTensor> tensors;
  Json config = Json::parse(
      R"({"quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "scale_fmt": "ue8m0",
          "activation_scheme": "dynamic", "weight_block_size": [2, 3]}, "x": 1})");
};

float scale_of(int64_t index) { return 0.01F + 0.37F * static_cast<float>(index); }

Files good(std::string_view scale_type = "F32") {
  std::string codes;
  for (int64_t i = 0; i < kMatrices * kRows * kColumns; ++i)
    codes += static_cast<char>(i * 29 % 127 + i % 2 * 128);
  std::vector<float> scales;
  std::vector<bf16> short_scales;
  for (int64_t i = 0; i < kMatrices * 3 * 3; ++i) {
    scales.push_back(scale_of(i));
    short_scales.emplace_back(scale_of(i));
  }
  return {{{"w_scale_inv", std::string(scale_type), "[2,3,3]",
            scale_type == "F32" ? bytes_of_values(scales) : bytes_of_values(short_scales)},
           {"w", "F8_E4M3", "[2,5,7]", codes},
           {"y", "BF16", "[1]", std::string(2, '\0')}}};
}

void write(const TemporaryDirectory& folder, const Files& files) {
  megatron::testing::write_raw(folder / kSingleFile, files.tensors);
  write_file(folder / "config.json", files.config.dump());
}

std::vector<bf16> wanted(const Files& files, const std::function<float(int64_t)>& scale) {
  std::vector<bf16> values;
  for (int64_t i = 0; i < kMatrices * kRows * kColumns; ++i) {
    const int64_t c = i % kColumns, r = i / kColumns % kRows, e = i / kColumns / kRows;
    const auto code = static_cast<uint8_t>(files.tensors[1].bytes[static_cast<size_t>(i)]);
    const int64_t block = (e * 3 + r / kBlockRows) * 3 + c / kBlockColumns;
    values.emplace_back(static_cast<float>(by_definition(code)) * scale(block));
  }
  return values;
}

TEST(Fp8, ADirectoryHasTheValuesInBf16) {
  for (const char* type : {"F32", "BF16"}) {
    const TemporaryDirectory folder;
    const Files files = good(type);
    write(folder, files);
    ::testing::internal::CaptureStderr();
    const ModelDirectory directory(folder.path());
    const std::string log = ::testing::internal::GetCapturedStderr();
    EXPECT_TRUE(contains(log, "has 1 tensors in FP8")) << log;
    EXPECT_EQ(directory.config(), Json::parse(R"({"x": 1})"));
    EXPECT_EQ(directory.tensor_names(), (std::vector<std::string>{"w", "y"}));
    EXPECT_EQ(directory.shard_map().size(), 2u);
    EXPECT_EQ(directory.shard_map().find("w")->second, kSingleFile);
    const TensorInfo& info = *directory.find("w");
    EXPECT_EQ(info.dtype, DType::bf16);
    EXPECT_TRUE(info.foreign_type.empty());
    EXPECT_EQ(info.shape, (Shape{2, 5, 7}));
    const std::vector<bf16> values = wanted(files, [&](int64_t block) {
      const bf16 rounded(scale_of(block));
      return type == std::string("F32") ? scale_of(block) : static_cast<float>(rounded);
    });
    const auto bytes = std::as_bytes(std::span(values));
    for (int64_t begin = 0; begin < info.shape.elements(); ++begin) {
      const int64_t count = std::min<int64_t>(info.shape.elements() - begin, 1 + begin % 17);
      EXPECT_TRUE(std::ranges::equal(
          directory.tensors().read("w", begin, count),
          bytes.subspan(static_cast<size_t>(begin) * 2, static_cast<size_t>(count) * 2)))
          << begin;
    }
  }
}

TEST(Fp8, OneScaleForATensor) {
  for (const char* block : {"null", "[128, 128]"}) {
    for (const char* shape : {"[]", "[1]", "[1,1]"}) {
      const TemporaryDirectory folder;
      Files files = good();
      files.tensors[0].shape = shape;
      files.tensors[0].bytes.resize(4);
      files.config = Json::parse(fmt::format(
          R"({{"quantization_config": {{"quant_method": "fp8", "weight_block_size": {}}}}})",
          block));
      write(folder, files);
      const ModelDirectory directory(folder.path());
      const std::vector<bf16> values = wanted(files, [](int64_t) { return scale_of(0); });
      EXPECT_TRUE(std::ranges::equal(directory.tensors().read("w", 0, 70),
                                     std::as_bytes(std::span(values))))
          << shape;
    }
  }
}

// Slices of a stored tensor, stored as it is held and transposed, begin and end inside blocks.
TEST(Fp8, ARankReadsWhatItHolds) {
  const TemporaryDirectory folder;
  write(folder, good());
  const ModelDirectory directory(folder.path());
  const PackedTensor& packed = *directory.tensors().packed("w");
  const auto all = directory.tensors().read("w", 0, 70);
  for (const bool transposed : {false, true}) {
    CanonicalTensor part{.name = "w", .global = {2, 5, 7}, .transposed = transposed};
    part.held = {{0, {{1, 0, 1}}}, {1, {{1, 0, 3}}}, {2, {{2, 0, 4}}}};
    if (transposed) part.global = {2, 7, 5};
    const Shape shape{1, 3, 4};
    Runtime runtime({DeviceKind::reference, 0}, 1);
    const auto value = [&](const char* label) {
      return Tensor::empty(runtime.arena(MemoryClass::parameters), {7}, DType::f32, label);
    };
    const Tensor ours = value("ours"), theirs = value("theirs");  // elements 3 to 9
    if (transposed) part.held[2] = {2, {{1, 0, 4}}};
    EXPECT_EQ(read_part(part, packed, {"", nullptr, ours, shape, 3}), 7);
    EXPECT_EQ(read_part(part, all, DType::bf16, {"", nullptr, theirs, shape, 3}), 7);
    EXPECT_EQ(to_doubles(ours), to_doubles(theirs)) << transposed;
  }
}

struct Bad {
  const char* what;
  void (*change)(Files& files);
  std::vector<const char*> parts;
};

const Bad kBad[] = {
    {"no scales",
     [](Files& f) { f.tensors[0].name = "other"; },
     {"model.safetensors", "'w' is in FP8", "scales 'w_scale_inv' are missing"}},
    {"no values",
     [](Files& f) { f.tensors[1].name = "other"; },
     {"model.safetensors", "'w_scale_inv'", "'w', are missing"}},
    {"plain values",
     [](Files& f) { f.tensors[1].dtype = "I8"; },
     {"'w' is i8", "'w_scale_inv'", "F8_E4M3"}},
    {"another fp8",
     [](Files& f) { f.tensors[1].dtype = "F8_E5M2"; },
     {"'w' is F8_E5M2", "must be F8_E4M3"}},
    {"E8M0 scales",
     [](Files& f) {
       f.tensors[0].dtype = "F8_E8M0";
       f.tensors[0].bytes.resize(18);
     },
     {"'w_scale_inv', the scales of 'w', is F8_E8M0", "f32 and bf16"}},
    {"scales of bytes",
     [](Files& f) {
       f.tensors[0].dtype = "U8";
       f.tensors[0].bytes.resize(18);
     },
     {"'w_scale_inv', the scales of 'w', is u8", "f32 and bf16"}},
    {"grid",
     [](Files& f) { f.tensors[0].shape = "[2,9]"; },
     {"'w_scale_inv' has shape [2, 9]", "'w' [2, 5, 7] in blocks of 2 x 3 it must be [2, 3, 3]"}},
    {"rank",
     [](Files& f) { f.tensors[1].shape = "[70]"; },
     {"'w' has shape [70]", "[rows, columns]"}},
    {"blocks without a size",
     [](Files& f) { f.config.as_object()[0].second.set("weight_block_size", Json()); },
     {"'w_scale_inv' has shape [2, 3, 3]", "weight_block_size"}},
    {"block size",
     [](Files& f) {
       f.config.as_object()[0].second.set("weight_block_size", Json::parse("[0,3]"));
     },
     {"config.json", "quantization_config.weight_block_size is [0, 3]"}},
    {"format",
     [](Files& f) { f.config.as_object()[0].second.set("fmt", "e5m2"); },
     {"config.json", "quantization_config.fmt is \"e5m2\"", "e4m3"}},
};

TEST(Fp8, WhatDoesNotBelongTogetherIsRefused) {
  for (const Bad& bad : kBad) {
    const TemporaryDirectory folder;
    Files files = good();
    bad.change(files);
    write(folder, files);
    const std::string error = error_of([&] { const ModelDirectory directory(folder.path()); });
    for (const char* const part : bad.parts)
      EXPECT_TRUE(contains(error, part)) << bad.what << ": " << error;
  }
}

TEST(Fp8, AScaleThatIsNotFiniteIsRefusedWhereItIsUsed) {
  const TemporaryDirectory folder;
  Files files = good();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(files.tensors[0].bytes.data() + 4, &nan, 4);  // rows 0, 1 and columns 3, 4, 5
  write(folder, files);
  const ModelDirectory directory(folder.path());
  EXPECT_EQ(error_of([&] { (void)directory.tensors().read("w", 0, 3); }), "");
  const std::string error = error_of([&] { (void)directory.tensors().read("w", 0, 4); });
  EXPECT_TRUE(contains(error, "element 1 of tensor 'w_scale_inv', the scales of 'w', is nan"))
      << error;
}

// A number that is not one stays that.
TEST(Fp8, ANanIsRead) {
  const TemporaryDirectory folder;
  Files files = good();
  files.tensors[1].bytes[0] = '\x7f';
  write(folder, files);
  const auto bytes = ModelDirectory(folder.path()).tensors().read("w", 0, 1);
  bf16 value;
  std::memcpy(&value, bytes.data(), sizeof value);
  EXPECT_TRUE(std::isnan(static_cast<float>(value)));
}

}  // namespace
}  // namespace megatron::checkpoint::fp8_tensor_test
