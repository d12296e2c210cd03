// Adapters that bring a head, made of golden models with one: the base is the model without its
// head and without the adapter's product, so that both together compute what transformers computed.
#pragma once

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/json.h"
#include "checkpoint/safetensors.h"
#include "golden/selftest/support.h"

namespace megatron::testing {

struct HeadAdapter {
  std::string name;                // of the golden model, and of this case
  std::string base_class;          // architectures of the base
  std::string dropped_prefix;      // which the base's files lack
  std::vector<std::string> saved;  // modules_to_save, and the head's modules in the model
  std::string matrix;              // of the adapter
  std::string task_type = "SEQ_CLS";
  std::vector<std::string> leftovers = {};  // tensors of the base's own head

  static constexpr int64_t kRank = 2;
  static constexpr double kScale = 2;  // alpha 4
};

inline std::vector<HeadAdapter> head_adapters() {
  return {
      {.name = "bert_classify",
       .base_class = "BertModel",
       .dropped_prefix = "bert.",
       .saved = {"classifier", "bert.pooler"},
       .matrix = "bert.encoder.layer.1.attention.self.query"},
      {.name = "bert_tokens",
       .base_class = "BertForMaskedLM",
       .dropped_prefix = "",
       .saved = {"classifier"},
       .matrix = "bert.encoder.layer.0.output.dense",
       .task_type = "TOKEN_CLS",
       .leftovers = {"cls.predictions.bias", "cls.predictions.transform.dense.weight"}},
      {.name = "bert_qa",
       .base_class = "BertModel",
       .dropped_prefix = "",
       .saved = {"qa_outputs"},
       .matrix = "bert.encoder.layer.2.attention.output.dense",
       .task_type = "QUESTION_ANS"},
      {.name = "llama_classify",
       .base_class = "LlamaForCausalLM",
       .dropped_prefix = "",
       .saved = {"score"},
       .matrix = "model.layers.1.mlp.down_proj",
       .leftovers = {"lm_head.weight"}},
  };
}

// Writes FOLDER/base, and FOLDER/adapter with expected values.
class HeadAdapterFiles {
 public:
  HeadAdapterFiles(const HeadAdapter& c, const std::string& folder)
      : case_(c),
        golden_(vectors("hf/" + c.name)),
        weights_(golden_ + "/model.safetensors"),
        expected_(golden_ + "/expected.safetensors") {
    const Shape shape = weights_.find(c.matrix + ".weight")->shape;
    out_ = shape[0];
    in_ = shape[1];
    std::filesystem::create_directories(folder + "/base");
    std::filesystem::create_directories(folder + "/adapter");
    write_base(folder + "/base");
    write_adapter(folder + "/adapter", folder + "/base");
    write_expected(folder + "/adapter");
  }

 private:
  using Tensors = std::vector<checkpoint::TensorToWrite>;

  double a(int64_t k, int64_t i) const {
    return static_cast<double>((5 * k + 3 * i) % 11 - 5) / 32;
  }
  double b(int64_t o, int64_t k) const {
    return static_cast<double>((7 * k + 2 * o) % 13 - 6) / 32;
  }
  bool is_saved(const std::string& tensor) const {
    return std::ranges::any_of(
        case_.saved, [&](const std::string& module) { return tensor.starts_with(module + "."); });
  }

  static void add(Tensors& tensors, const std::string& name, const Shape& shape,
                  std::vector<double> values) {
    const std::vector<float> single(values.begin(), values.end());
    tensors.push_back({name, DType::f32, shape, [single](std::span<std::byte> out) {
                         std::memcpy(out.data(), single.data(), out.size());
                       }});
  }
  static void copy(Tensors& tensors, const std::string& name,
                   const checkpoint::SafetensorsFile& file, const std::string& from) {
    const checkpoint::TensorInfo& info = *file.find(from);
    tensors.push_back({name, info.dtype, info.shape, [&file, &info](std::span<std::byte> out) {
                         std::ranges::copy(file.bytes(info), out.begin());
                       }});
  }

  void write_base(const std::string& folder) const {
    Json config = Json::read(golden_ + "/config.json");
    config.set("architectures", Json::Array{case_.base_class});
    std::erase_if(config.as_object(), [](const Json::Member& member) {
      return member.first == "id2label" || member.first == "label2id" ||
             member.first == "problem_type" || member.first == "num_labels";
    });
    write_file(folder + "/config.json", config.dump(2, true));
    Tensors tensors;
    for (const checkpoint::TensorInfo& info : weights_.tensors()) {
      if (is_saved(info.name)) continue;
      std::vector<double> values = weights_.doubles(info.name);
      if (info.name == case_.matrix + ".weight")
        for (int64_t o = 0; o < out_; ++o)
          for (int64_t i = 0; i < in_; ++i)
            for (int64_t k = 0; k < HeadAdapter::kRank; ++k)
              values[static_cast<size_t>(o * in_ + i)] -= HeadAdapter::kScale * b(o, k) * a(k, i);
      const bool drops = info.name.starts_with(case_.dropped_prefix);
      add(tensors, info.name.substr(drops ? case_.dropped_prefix.size() : 0), info.shape,
          std::move(values));
    }
    for (const std::string& name : case_.leftovers) {
      const int64_t vocabulary = config["vocab_size"].as_integer(),
                    hidden = config["hidden_size"].as_integer();
      const Shape shape = name == "lm_head.weight"  ? Shape{vocabulary, hidden}
                          : name.ends_with(".bias") ? Shape{vocabulary}
                                                    : Shape{hidden, hidden};
      add(tensors, name, shape, std::vector<double>(static_cast<size_t>(shape.elements()), 0.25));
    }
    const std::pair<std::string, std::string> format("format", "pt");
    checkpoint::write_safetensors(folder + "/model.safetensors", tensors, std::span(&format, 1));
  }

  void write_adapter(const std::string& folder, const std::string& base) const {
    Json::Array saved;
    for (const std::string& module : case_.saved)
      saved.push_back(module.substr(module.rfind('.') + 1));
    const Json config = Json::Object{{"peft_type", "LORA"},
                                     {"task_type", case_.task_type},
                                     {"base_model_name_or_path", base},
                                     {"r", HeadAdapter::kRank},
                                     {"lora_alpha", 4},
                                     {"target_modules", Json::Array{case_.matrix}},
                                     {"modules_to_save", std::move(saved)}};
    write_file(folder + "/adapter_config.json", config.dump(2, true));
    Tensors tensors;
    std::vector<double> left, right;
    for (int64_t k = 0; k < HeadAdapter::kRank; ++k)
      for (int64_t i = 0; i < in_; ++i) right.push_back(a(k, i));
    for (int64_t o = 0; o < out_; ++o)
      for (int64_t k = 0; k < HeadAdapter::kRank; ++k) left.push_back(b(o, k));
    add(tensors, kStored + case_.matrix + ".lora_A.weight", {HeadAdapter::kRank, in_}, right);
    add(tensors, kStored + case_.matrix + ".lora_B.weight", {out_, HeadAdapter::kRank}, left);
    for (const checkpoint::TensorInfo& info : weights_.tensors())
      if (is_saved(info.name)) copy(tensors, kStored + info.name, weights_, info.name);
    checkpoint::write_safetensors(folder + "/adapter_model.safetensors", tensors, {});
  }

  // With W = base + scale B A, the gradient of A is scale B^T dW, that of B scale dW A^T.
  void write_expected(const std::string& folder) const {
    Tensors tensors;
    const std::string prefix = "grad.";
    for (const checkpoint::TensorInfo& info : expected_.tensors()) {
      if (!info.name.starts_with(prefix)) copy(tensors, info.name, expected_, info.name);
      else if (is_saved(info.name.substr(prefix.size())))
        copy(tensors, prefix + kStored + info.name.substr(prefix.size()), expected_, info.name);
    }
    const std::vector<double> dw = expected_.doubles(prefix + case_.matrix + ".weight");
    std::vector<double> da(static_cast<size_t>(HeadAdapter::kRank * in_)),
        db(static_cast<size_t>(out_ * HeadAdapter::kRank));
    for (int64_t o = 0; o < out_; ++o)
      for (int64_t i = 0; i < in_; ++i)
        for (int64_t k = 0; k < HeadAdapter::kRank; ++k) {
          const double g = HeadAdapter::kScale * dw[static_cast<size_t>(o * in_ + i)];
          da[static_cast<size_t>(k * in_ + i)] += g * b(o, k);
          db[static_cast<size_t>(o * HeadAdapter::kRank + k)] += g * a(k, i);
        }
    const std::string matrix = prefix + kStored + case_.matrix;
    add(tensors, matrix + ".lora_A.weight", {HeadAdapter::kRank, in_}, da);
    add(tensors, matrix + ".lora_B.weight", {out_, HeadAdapter::kRank}, db);
    copy(tensors, "merged." + case_.matrix + ".weight", weights_, case_.matrix + ".weight");
    checkpoint::write_safetensors(folder + "/expected.safetensors", tensors, {});
  }

  inline static const std::string kStored = "base_model.model.";
  const HeadAdapter case_;
  const std::string golden_;
  const checkpoint::SafetensorsFile weights_, expected_;
  int64_t out_ = 0, in_ = 0;
};

}  // namespace megatron::testing
