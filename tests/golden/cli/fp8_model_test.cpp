// A model in FP8 with scales by blocks computes, in every layout, what its values in bf16 compute.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "base/json.h"
#include "checkpoint/fp8_tensor.h"
#include "golden/cli/process.h"
#include "golden/selftest/support.h"
#include "selftest/compare_directories.h"
#include "selftest/report.h"
#include "selftest/verify.h"
#include "unit/checkpoint/raw_tensors.h"

namespace megatron::testing::fp8_model_test {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kBlockRows = 16, kBlockColumns = 32;  // neither divides all matrices

template <class T>
std::string text_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// The code of the nearest number.
uint8_t nearest(float value) {
  int best = 0;
  for (int code = 0; code < 256; ++code) {
    const auto distance = [&](int c) {
      return std::abs(checkpoint::e4m3_value(static_cast<uint8_t>(c)) - value);
    };
    if (code % 128 != 127 && distance(code) < distance(best)) best = code;
  }
  return static_cast<uint8_t>(best);
}

// A matrix in FP8, and its values in bf16.
struct Quantized {
  std::vector<uint8_t> codes;
  std::vector<float> scales;
  std::vector<bf16> values;
};

Quantized quantize(const std::vector<bf16>& matrix, int64_t rows, int64_t columns) {
  const int64_t grid_columns = (columns + kBlockColumns - 1) / kBlockColumns,
                grid_rows = (rows + kBlockRows - 1) / kBlockRows;
  Quantized q;
  q.scales.resize(static_cast<size_t>(grid_rows * grid_columns));
  const auto block = [&](size_t i) {
    const auto at = static_cast<int64_t>(i);
    return static_cast<size_t>(at / columns / kBlockRows * grid_columns +
                               at % columns / kBlockColumns);
  };
  for (size_t i = 0; i < matrix.size(); ++i)
    q.scales[block(i)] =
        std::max(q.scales[block(i)], std::abs(static_cast<float>(matrix[i])) / 448);
  for (size_t i = 0; i < matrix.size(); ++i) {
    const float scale = q.scales[block(i)];
    q.codes.push_back(nearest(static_cast<float>(matrix[i]) / scale));
    q.values.emplace_back(checkpoint::e4m3_value(q.codes.back()) * scale);
  }
  return q;
}

class Fp8Model : public ::testing::Test {
 protected:
  // Makes place/fp8 and place/bf16 of the model hf/llama_bf16.
  Fp8Model() {
    std::vector<RawTensor> packed, plain;
    for (RawTensor& t : read_raw(vectors("hf/llama_bf16/model.safetensors"))) {
      if (!t.name.ends_with("_proj.weight")) {
        packed.push_back(t);
        plain.push_back(t);
        continue;
      }
      std::vector<bf16> matrix(t.bytes.size() / sizeof(bf16));
      std::memcpy(matrix.data(), t.bytes.data(), t.bytes.size());
      const Json::Array shape = Json::parse(t.shape).as_array();
      const int64_t rows = shape[0].as_integer(), columns = shape[1].as_integer();
      const Quantized q = quantize(matrix, rows, columns);
      packed.push_back({t.name, "F8_E4M3", t.shape, text_of(q.codes)});
      packed.push_back({t.name + "_scale_inv", "F32",
                        fmt::format("[{},{}]", (rows + kBlockRows - 1) / kBlockRows,
                                    (columns + kBlockColumns - 1) / kBlockColumns),
                        text_of(q.scales)});
      plain.push_back({t.name, "BF16", t.shape, text_of(q.values)});
      changed_ += text_of(q.values) != t.bytes ? 1 : 0;
    }
    Json config = Json::read(vectors("hf/llama_bf16/config.json"));
    for (const char* name : {"bf16", "fp8"}) {
      fs::create_directory(place_ / name);
      const bool fp8 = name == std::string("fp8");
      write_raw(place_ / (name + std::string("/model.safetensors")), fp8 ? packed : plain);
      if (fp8)
        config.set("quantization_config",
                   Json::parse(R"({"activation_scheme": "dynamic", "fmt": "e4m3",
                                   "quant_method": "fp8", "weight_block_size": [16, 32]})"));
      write_file(place_ / (name + std::string("/config.json")), config.dump());
    }
  }

  Outcome succeeds(const std::string& line) const {
    Outcome r = place_.run(words(line));
    EXPECT_EQ(r.code, 0) << line << r.out << r.err;
    return r;
  }
  void expect_equal(const std::string& a, const std::string& b) const {
    const selftest::Report same = selftest::compare_directories(place_ / a, place_ / b, 0);
    EXPECT_TRUE(same.passed()) << same.text();
    EXPECT_GT(same.compared(), 15);
  }

  Workplace place_;
  int changed_ = 0;  // matrices that FP8 rounds
};

TEST_F(Fp8Model, IsReadAndWrittenAsBf16) {
  EXPECT_GT(changed_, 10);
  expect_equal("fp8", "bf16");
  const selftest::Report again = selftest::verify_rewrite(place_ / "fp8", place_ / "out");
  EXPECT_TRUE(again.passed()) << again.text();
  EXPECT_EQ(Json::read(place_ / "out/config.json").find("quantization_config"), nullptr);
  for (const RawTensor& t : read_raw(place_ / "out/model.safetensors"))
    EXPECT_EQ(t.dtype, "BF16") << t.name;
  expect_equal("out", "bf16");
}

TEST_F(Fp8Model, EvaluatesToTheSameBits) {
  std::string text = R"({"text": ")";
  for (int i = 0; i < 60; ++i) text += std::to_string(i * 37 % 159) + " ";
  write_file(place_ / "text.jsonl", text + "\"}\n");
  const std::string line = "eval --tokenizer-type NullTokenizer --threads 1 --input text.jsonl ";
  const Outcome fp8 = succeeds(line + "--json --load fp8");
  EXPECT_NE(fp8.err.find("tensors in FP8"), std::string::npos) << fp8.err;
  EXPECT_EQ(Json::parse(fp8.out)["loss"],
            Json::parse(succeeds(line + "--json --load bf16").out)["loss"]);
}

TEST_F(Fp8Model, TrainsToTheSameBitsInEveryLayout) {
  const char* const layouts[] = {"--tensor-model-parallel-size 2 --sequence-parallel --bf16",
                                 "--ranks 3 --data-parallel-sharding-strategy optim_grads_params",
                                 "--pipeline-model-parallel-size 3"};
  for (const char* layout : layouts) {
    for (const char* model : {"bf16", "fp8"}) {
      fs::remove_all(place_ / (std::string("run_") + model));
      succeeds(fmt::format(
          "train --model {} --finetune --mock-data --tokenizer-type NullTokenizer --seq-length 16 "
          "--micro-batch-size 1 --global-batch-size 6 --lr 1e-2 --lr-decay-style constant "
          "--train-iters 2 --save-interval 2 --threads 1 --save run_{} {}",
          model, model, layout));
    }
    expect_equal("run_fp8/iter_0000002", "run_bf16/iter_0000002");
  }
}

}  // namespace
}  // namespace megatron::testing::fp8_model_test
