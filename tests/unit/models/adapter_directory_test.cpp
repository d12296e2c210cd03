// Names and layouts of the tensors of adapters.
#include "models/adapters/adapter_directory.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <set>

#include "base/files.h"
#include "base/json.h"
#include "models/adapters/expert_layout.h"
#include "text.h"

namespace megatron::models {
namespace {

using megatron::testing::error_of;
using megatron::testing::expect_contains;

// The tensors' names and shapes in a safetensors file.
Json safetensors_header(const std::string& path) {
  const std::string bytes = read_file(path);
  uint64_t size = 0;
  for (size_t i = 8; i-- > 0;) size = size << 8 | static_cast<unsigned char>(bytes.at(i));
  return Json::parse(std::string_view(bytes).substr(8, size));
}

TEST(AdapterNames, OfPeftFilesAreReadAndWritten) {
  std::set<AdapterPart> parts;
  int64_t tensors = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(MEGATRON_GOLDEN) + "/adapters")) {
    const Json modules = Json::read(entry.path() / "case.json")["modules"];
    std::set<std::string> adapted;
    const Json header = safetensors_header(entry.path() / "adapter_model.safetensors");
    for (const auto& [tensor, value] : header.as_object()) {
      if (tensor == "__metadata__") continue;
      const StoredName name = parse_stored_name(tensor);
      EXPECT_EQ(stored_name(name), tensor);
      EXPECT_EQ(modules.contains(name.module), name.part != AdapterPart::whole) << tensor;
      EXPECT_EQ(name.nesting, 0);
      if (name.part == AdapterPart::a || name.part == AdapterPart::embedding_a) {
        adapted.insert(name.module);
        EXPECT_EQ(value["shape"].as_array()[0], modules[name.module]["r"]) << tensor;
      }
      parts.insert(name.part);
      ++tensors;
    }
    EXPECT_EQ(adapted.size(), modules.as_object().size()) << entry.path();
  }
  EXPECT_EQ(tensors, 142);
  EXPECT_EQ(parts.size(), 9) << "all but token_rows";
}

TEST(AdapterNames, SayModuleAndPart) {
  using Part = AdapterPart;
  const std::string base = "base_model.model.", q = "model.layers.0.self_attn.q_proj";
  EXPECT_EQ(stored_name(q, Part::a), base + q + ".lora_A.weight");
  EXPECT_EQ(stored_name(q, Part::magnitude), base + q + ".lora_magnitude_vector");
  EXPECT_EQ(stored_name("lm_head", Part::base_weight), base + "lm_head.base_layer.weight");
  EXPECT_EQ(parse_stored_name(base + "model.embed_tokens.token_adapter.trainable_tokens_delta"),
            (StoredName{.module = "model.embed_tokens", .part = Part::token_rows}));
  EXPECT_EQ(parse_stored_name(base + "model.layers.0.mlp.experts.7.gate_proj.lora_B.weight"),
            (StoredName{.module = "model.layers.0.mlp.experts.7.gate_proj", .part = Part::b}));
  EXPECT_EQ(parse_stored_name(base + "model.norm.weight"),
            (StoredName{.module = "model.norm", .part = Part::whole, .parameter = "weight"}));
  EXPECT_EQ(parse_stored_name(base + "h.0.ln_1.bias"),
            (StoredName{.module = "h.0.ln_1", .part = Part::whole, .parameter = "bias"}));
}

TEST(AdapterNames, NestTheAdaptersOfParameters) {
  const std::string experts = "model.layers.0.mlp.experts";
  const std::string inner = "base_model.model." + experts + ".base_layer.lora_A.weight";
  const StoredName name{.module = experts, .part = AdapterPart::a, .nesting = 1};
  EXPECT_EQ(parse_stored_name(inner), name);
  EXPECT_EQ(stored_name(name), inner);
  const std::vector<std::string> adapted = {"gate_up_proj", "down_proj"};
  EXPECT_EQ(nested_parameter(adapted, 1), "gate_up_proj");
  EXPECT_EQ(nested_parameter(adapted, 0), "down_proj");
  expect_contains(error_of([&] { nested_parameter(adapted, 2); }), {"3", "target_parameters", "2"});
}

TEST(AdapterNames, RefusesOthers) {
  for (const char* bad :
       {"model.layers.0.q_proj.lora_A.weight", "base_model.model.q_proj.lora_A.default.weight",
        "base_model.model.q_proj.lora_C.weight", "base_model.model.score.modules_to_save.weight",
        "base_model.model.q_proj.base_layer.lora_embedding_A",
        "base_model.model.x.base_layer.qweight", "base_model.model.weight",
        "base_model.model..lora_A.weight", "base_model.model.a..weight"})
    expect_contains(error_of([&] { parse_stored_name(bad); }), {bad});
}

// ---- experts in one parameter ----

// delta[e][o][i] = sum over r of B_e[o][r] A_e[r][i], from tensors reshaped as PEFT's code does
// (einsum "o r e, e r i -> e o i"; before 0.19, "-> e i o" for the weight's two dimensions).
double delta_of_peft(const ExpertLayout& l, const std::vector<double>& a,
                     const std::vector<double>& b, int64_t e, int64_t o, int64_t i) {
  const int64_t from = l.swapped ? o : i, to = l.swapped ? i : o, width = l.swapped ? l.out : l.in;
  double sum = 0;
  for (int64_t r = 0; r < l.rank; ++r)
    sum += b.at(static_cast<size_t>(to * l.rank * l.experts + r * l.experts + e)) *
           a.at(static_cast<size_t>(e * l.rank * width + r * width + from));
  return sum;
}

class Experts : public ::testing::TestWithParam<bool> {};

TEST_P(Experts, HaveTheDeltaOfPeft) {
  const ExpertLayout l{.experts = 3, .rank = 2, .in = 4, .out = 5, .swapped = GetParam()};
  std::vector<double> stored[2];
  for (const AdapterPart part : {AdapterPart::a, AdapterPart::b}) {
    const auto shape = l.stored_shape(part);
    auto& values = stored[static_cast<int>(part)];
    for (int64_t i = 0; i < shape[0] * shape[1]; ++i)
      values.push_back(std::sin(1.0 + static_cast<double>(i) + 100.0 * static_cast<int>(part)));
  }
  const auto at = [&](StoredElement e) {
    return stored[static_cast<int>(e.part)].at(static_cast<size_t>(e.index));
  };
  std::set<std::pair<AdapterPart, int64_t>> seen;
  const auto mark = [&](StoredElement e) { seen.emplace(e.part, e.index); };
  for (int64_t e = 0; e < l.experts; ++e)
    for (int64_t o = 0; o < l.out; ++o)
      for (int64_t i = 0; i < l.in; ++i) {
        double sum = 0;
        for (int64_t r = 0; r < l.rank; ++r) {
          sum += at(l.b(e, o, r)) * at(l.a(e, r, i));
          mark(l.b(e, o, r));
          mark(l.a(e, r, i));
        }
        EXPECT_EQ(sum, delta_of_peft(l, stored[0], stored[1], e, o, i)) << e << o << i;
      }
  EXPECT_EQ(seen.size(), stored[0].size() + stored[1].size()) << "every element has one place";
}

INSTANTIATE_TEST_SUITE_P(Layouts, Experts, ::testing::Bool());

FusedExperts square_experts(std::string_view version) {
  return {.name = "experts.down_proj",
          .experts = 3,
          .in = 4,
          .out = 4,
          .shape_a = {6, 4},
          .shape_b = {4, 6},
          .peft_version = version};
}

TEST(ExpertLayout, IsToldByShapeElseByVersion) {
  FusedExperts fused{.name = "experts.down_proj",
                     .experts = 3,
                     .in = 4,
                     .out = 5,
                     .shape_a = {6, 4},
                     .shape_b = {5, 6},
                     .peft_version = "0.18.0"};
  EXPECT_EQ(expert_layout(fused), (ExpertLayout{.experts = 3, .rank = 2, .in = 4, .out = 5}));
  fused.shape_a = {6, 5};
  fused.shape_b = {4, 6};
  fused.peft_version = "0.21.2";
  EXPECT_EQ(expert_layout(fused),
            (ExpertLayout{.experts = 3, .rank = 2, .in = 4, .out = 5, .swapped = true}));
  for (const char* old : {"", "0.9.0", "0.18.1", "0.18.1.dev0@UNKNOWN"})
    EXPECT_TRUE(expert_layout(square_experts(old)).swapped) << old;
  for (const char* later : {"0.19.0", "0.20.1.dev0@5d602fd", "1.0.0"})
    EXPECT_FALSE(expert_layout(square_experts(later)).swapped) << later;
  FusedExperts transposed = square_experts("0.18.0");
  transposed.transposed = true;
  EXPECT_FALSE(expert_layout(transposed).swapped);
}

TEST(ExpertLayout, RefusesShapes) {
  const auto refused = [](std::vector<int64_t> a, std::vector<int64_t> b, bool transposed,
                          std::initializer_list<std::string_view> parts) {
    const FusedExperts fused{.name = "experts.down_proj",
                             .experts = 3,
                             .in = 4,
                             .out = 5,
                             .transposed = transposed,
                             .shape_a = a,
                             .shape_b = b};
    const std::string error = error_of([&] { expert_layout(fused); });
    expect_contains(error, {"experts.down_proj"});
    expect_contains(error, parts);
  };
  refused({7, 4}, {5, 7}, false, {"[7, 4]", "[5, 7]", "3 experts", "[3 * rank, in]"});
  refused({6, 4}, {5, 9}, false, {"[6, 4]", "[5, 9]"});
  refused({6, 4, 1}, {5, 6}, false, {"[6, 4, 1]"});
  refused({6, 3}, {5, 6}, false, {"[6, 3]", "rank 2", "[6, 4]", "[5, 6]"});
  refused({6, 5}, {4, 6}, true, {"[6, 5]", "[6, 4]", "[5, 6]"});
}

}  // namespace
}  // namespace megatron::models
