// Weights in MXFP4, compared with transformers' values (tests/golden/vectors/mxfp4).
#include "checkpoint/mxfp4.h"

#include <cstring>

#include "checkpoint/safetensors.h"
#include "checkpoint/tensor_copy.h"
#include "support.h"

namespace megatron::checkpoint {
namespace {

using parallel::CanonicalTensor;

constexpr const char* kUp = "model.layers.0.mlp.experts.gate_up_proj";

std::string vector_of(const std::string& path) {
  return std::string(MEGATRON_GOLDEN) + "/mxfp4/" + path;
}

TEST(Mxfp4, EveryValueWithEveryScale) {
  const SafetensorsFile file(vector_of("values.safetensors"));
  const TensorInfo &blocks = *file.find("x_blocks"), &scales = *file.find("x_scales");
  const Mxfp4Tensor tensor({blocks, file.bytes(blocks), scales, file.bytes(scales), file.path()});
  const TensorInfo& wanted = *file.find("x");
  EXPECT_EQ(tensor.info().name, wanted.name);
  EXPECT_EQ(tensor.info().dtype, wanted.dtype);
  ASSERT_EQ(tensor.info().shape, wanted.shape);
  std::vector<bf16> values(static_cast<size_t>(wanted.shape.elements()));
  tensor.decode_stored(0, values);
  EXPECT_EQ(values.size(), 255u * 32);
  EXPECT_TRUE(std::ranges::equal(std::as_bytes(std::span(values)), file.bytes(wanted)));
}

TEST(Mxfp4, ADirectoryHasTheTensorsOfTransformers) {
  ::testing::internal::CaptureStderr();
  const ModelDirectory released(vector_of("released")), wanted(vector_of("bf16"));
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_TRUE(contains(log, "has 4 tensors in MXFP4")) << log;
  EXPECT_EQ(released.config(), wanted.config());
  EXPECT_EQ(released.tensor_names().size(), wanted.tensor_names().size());
  EXPECT_EQ(released.shard_map().size(), wanted.shard_map().size());
  EXPECT_EQ(released.shard_map().find(kUp)->second, "model-00001-of-00002.safetensors");
  EXPECT_EQ(released.find(std::string(kUp) + "_scales"), nullptr);
  for (const std::string& name : wanted.tensor_names()) {
    const TensorInfo* const info = released.find(name);
    ASSERT_NE(info, nullptr) << name;
    EXPECT_EQ(info->dtype, wanted.find(name)->dtype) << name;
    ASSERT_EQ(info->shape, wanted.find(name)->shape) << name;
    const auto values = released.tensors().read(name, 0, info->shape.elements());
    EXPECT_TRUE(std::ranges::equal(values, wanted.bytes(name))) << name;
    const auto part = released.tensors().read(name, 3, 40);
    EXPECT_TRUE(std::ranges::equal(part, wanted.bytes(name).subspan(6, 80))) << name;
  }
}

// A rank's expert, interleaved rows, and columns that begin and end inside a block.
TEST(Mxfp4, ARankReadsWhatItHolds) {
  const ModelDirectory released(vector_of("released")), wanted(vector_of("bf16"));
  const PackedTensor& packed = *released.tensors().packed(kUp);
  CanonicalTensor part{.name = kUp, .global = {2, 64, 64}, .transposed = true};
  part.held = {
      {0, {{1, 0, 1}}}, {1, {{0, 0, 1}, {2, 1, 1}, {1, 2, 1}, {3, 3, 1}}}, {2, {{9, 0, 40}}}};
  const Shape shape{1, 4, 40};
  Runtime runtime({DeviceKind::reference, 0}, 1);
  const auto value = [&](const char* label) {
    return Tensor::empty(runtime.arena(MemoryClass::parameters), shape, DType::f32, label);
  };
  const Tensor ours = value("ours"), theirs = value("theirs");
  EXPECT_EQ(read_part(part, packed, {"", nullptr, ours, shape, 0}), 160);
  EXPECT_EQ(read_part(part, wanted.bytes(kUp), DType::bf16, {"", nullptr, theirs, shape, 0}), 160);
  EXPECT_EQ(to_doubles(ours), to_doubles(theirs));
}

struct Bad {
  const char* what;
  void (*change)(std::vector<TensorInfo>& tensors, Json& config);
  std::vector<const char*> parts;
};

const Bad kBad[] = {
    {"no scales",
     [](auto& t, Json&) { t[1].name = "other"; },
     {"model.safetensors", "'x_blocks'", "scales 'x_scales' are missing"}},
    {"no blocks",
     [](auto& t, Json&) { t[0].name = "other"; },
     {"model.safetensors", "'x_scales'", "'x_blocks', are missing"}},
    {"twice",
     [](auto& t, Json&) { t[2].name = "x"; },
     {"model.safetensors", "'x' is stored twice", "'x_blocks'"}},
    {"type",
     [](auto& t, Json&) { t[0].dtype = DType::i8; },
     {"model.safetensors", "'x_blocks' is i8", "u8"}},
    {"type of scales",
     [](auto& t, Json&) { t[1].dtype = DType::bf16; },
     {"model.safetensors", "'x_scales' is bf16", "u8"}},
    {"odd block",
     [](auto& t, Json&) { t[0].shape = {2, 4, 3, 15}; },
     {"model.safetensors", "'x_blocks' has shape [2, 4, 3, 15]", "columns / 32, 16]"}},
    {"rank",
     [](auto& t, Json&) { t[0].shape = {8, 3, 16}; },
     {"model.safetensors", "'x_blocks' has shape [8, 3, 16]"}},
    {"scales",
     [](auto& t, Json&) { t[1].shape = {2, 4, 2}; },
     {"model.safetensors", "'x_scales' has shape [2, 4, 2]", "'x_blocks' it must be [2, 4, 3]"}},
    {"method",
     [](auto&, Json& c) {
       c = Json::parse(R"({"quantization_config": {"quant_method": "gptq"}})");
     },
     {"config.json", "'gptq'", "mxfp4"}},
    {"no method",
     [](auto&, Json& c) { c = Json::parse(R"({"quantization_config": {}})"); },
     {"config.json", "quantization_config", "quant_method"}},
    {"no object",
     [](auto&, Json& c) { c = Json::parse(R"({"quantization_config": "mxfp4"})"); },
     {"config.json", "quantization_config", "not an object"}},
};

std::string error_of_directory(const Bad* bad) {
  const TemporaryDirectory folder;
  Json config = Json::parse(R"({"quantization_config": {"quant_method": "mxfp4"}})");
  std::vector<TensorInfo> tensors = {{"x_blocks", DType::u8, {2, 4, 3, 16}},
                                     {"x_scales", DType::u8, {2, 4, 3}},
                                     {"y", DType::f32, {1}}};
  if (bad != nullptr) bad->change(tensors, config);
  std::vector<TensorToWrite> written;
  for (const TensorInfo& t : tensors)
    written.push_back({t.name, t.dtype, t.shape,
                       [](std::span<std::byte> out) { std::ranges::fill(out, std::byte{120}); }});
  write_safetensors(folder / "model.safetensors", written, {});
  write_file(folder / "config.json", config.dump());
  return error_of([&] { const ModelDirectory directory(folder.path()); });
}

TEST(Mxfp4, WhatDoesNotBelongTogetherIsRefused) {
  EXPECT_EQ(error_of_directory(nullptr), "");
  for (const Bad& bad : kBad) {
    const std::string error = error_of_directory(&bad);
    for (const char* const part : bad.parts)
      EXPECT_TRUE(contains(error, part)) << bad.what << ": " << error;
  }
}

}  // namespace
}  // namespace megatron::checkpoint
