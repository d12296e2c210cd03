// Small GPT-2 and Llama models for tests. Weights, batches and gradients are named by the tensors
// of the whole model, whichever ranks hold them.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "base/philox.h"
#include "models/model.h"
#include "models/model_flags.h"
#include "models/stage.h"
#include "tensor/tensor.h"

namespace megatron::testing {

// Sizes of a small decoder.
struct TinyConfig {
  int64_t num_layers = 3, hidden_size = 24, num_attention_heads = 4, num_query_groups = 4,
          kv_channels = 6, ffn_hidden_size = 50, max_position_embeddings = 16, vocab_size = 61;
  bool llama = false;  // else GPT-2
  bool untied = false, bias = true;
  double hidden_dropout = 0.25, attention_dropout = 0.25;
  bool xavier_init = false;

  models::Model model() const {
    models::ModelFlags flags{.num_layers = num_layers,
                             .hidden_size = hidden_size,
                             .num_attention_heads = num_attention_heads,
                             .ffn_hidden_size = ffn_hidden_size,
                             .kv_channels = kv_channels,
                             .max_position_embeddings = max_position_embeddings,
                             .vocab_size = vocab_size};
    flags.group_query_attention = num_query_groups != num_attention_heads;
    if (flags.group_query_attention) flags.num_query_groups = num_query_groups;
    flags.add_bias_linear = bias;
    flags.untie = untied;
    flags.hidden_dropout = hidden_dropout;
    flags.attention_dropout = attention_dropout;
    flags.init_method_std = 0.2;
    flags.init_method_xavier_uniform = xavier_init;
    if (llama) {
      flags.position_embedding = models::PositionEmbedding::rope;
      flags.normalization = nn::Normalization::rms_norm;
      flags.swiglu = true;
    }
    return models::model_from_flags(flags, 0);
  }
};

inline TinyConfig tiny_gpt2(int64_t heads = 4) {
  return {.num_attention_heads = heads, .num_query_groups = heads};
}

inline TinyConfig tiny_llama(int64_t heads, int64_t kv_heads, bool untied) {
  return {.num_attention_heads = heads,
          .num_query_groups = kv_heads,
          .llama = true,
          .untied = untied,
          .bias = !untied,
          .hidden_dropout = 0,
          .attention_dropout = 0};
}

// One part of the tiny model.
class TinyModel final : public models::Stage {
 public:
  TinyModel(const TinyConfig& config, Runtime& runtime, DType type, uint64_t seed,
            const parallel::ModelPart& part, const parallel::ModelRanks& ranks)
      : inner_(config.model().build(runtime, type, seed, part, ranks)) {}
  const models::Model& model() const override { return inner_->model(); }
  const parallel::ModelPart& part() const override { return inner_->part(); }
  std::span<const models::Block> blocks() const override { return inner_->blocks(); }
  Tensor loss(Tape& tape, const Bundle& in, const nn::Batch& batch) const override {
    return inner_->loss(tape, in, batch);
  }
  Var logits(Tape& tape, const Bundle& in, const nn::Batch& batch) const override {
    return inner_->logits(tape, in, batch);
  }
  Var objective_values(Tape& tape, const Bundle& in, const nn::Batch& batch) const override {
    return inner_->objective_values(tape, in, batch);
  }
  Tensor loss_logits(Tape& tape, const Bundle& in) const override {
    return inner_->loss_logits(tape, in);
  }
  Var final_norm(Tape& tape, const Bundle& in) const override {
    return inner_->final_norm(tape, in);
  }
  const Span& head() const override { return inner_->head(); }
  std::span<parallel::ParameterSpec* const> parameters() const override {
    return inner_->parameters();
  }
  std::vector<nn::LayerCache> layer_caches() const override { return inner_->layer_caches(); }

 private:
  std::unique_ptr<models::Stage> inner_;
};

// Gives every element of a model's parameters its own value, the same in any layout.
inline void fill_with_noise(std::span<parallel::ParameterSpec* const> parameters) {
  for (parallel::ParameterSpec* placed : parameters) {
    Tensor& value = placed->parameter.value;
    std::vector<double> values(static_cast<size_t>(value.elements()));
    for_each_run(*placed, [&](const parallel::CanonicalTensor& part, int64_t canonical,
                              int64_t local, int64_t size) {
      const RandomStream stream(11, part.name);
      const double mean = part.name.find("norm") != std::string::npos ? 1 : 0;
      for (int64_t i = 0; i < size; ++i) {
        values[static_cast<size_t>(local + i)] =
            mean + 0.2 * stream.normal(static_cast<uint64_t>(canonical + i));
      }
    });
    copy_from(value, std::span<const double>(values));
  }
}

// Two sequences of eight tokens. Some labels are masked.
inline nn::Batch tiny_batch(Runtime& runtime, const TinyConfig& config, DType type) {
  constexpr int64_t sequences = 2, length = 8, tokens = sequences * length;
  Arena& arena = runtime.arena(MemoryClass::activations);
  const auto ids = [&](std::string_view name, int64_t end) {
    const RandomStream stream(5, name);
    std::vector<int32_t> values;
    for (int64_t t = 0; t < tokens; ++t)
      values.push_back(
          static_cast<int32_t>(stream.bits(static_cast<uint64_t>(t)) % static_cast<uint64_t>(end)));
    Tensor tensor = Tensor::empty(arena, {tokens}, DType::i32, name);
    copy_from(tensor, std::span<const int32_t>(values));
    return tensor;
  };
  nn::Batch batch{.layout = {.sequences = sequences, .length = length}};
  batch.tokens = ids("tokens", config.vocab_size);
  batch.labels = ids("labels", config.vocab_size);
  batch.positions = Tensor::empty(arena, {tokens}, DType::i32, "positions");
  batch.loss_weights = Tensor::empty(arena, {tokens}, kernels::accumulator(type), "weights");
  batch.sample_ids = Tensor::empty(arena, {sequences}, DType::i64, "samples");
  std::vector<int32_t> positions;
  std::vector<double> weights;
  for (int32_t t = 0; t < tokens; ++t) {
    positions.push_back(t % length);
    weights.push_back(t % 5 == 3 ? 0.0 : 0.75);
  }
  copy_from(batch.positions, std::span<const int32_t>(positions));
  copy_from(batch.loss_weights, std::span<const double>(weights));
  batch.sample_ids.data<int64_t>()[0] = 7;
  batch.sample_ids.data<int64_t>()[1] = 1003;
  return batch;
}

// Allocates separate gradient accumulators, without a shared buffer.
inline void give_gradients(std::span<parallel::ParameterSpec* const> parameters, Runtime& runtime) {
  for (parallel::ParameterSpec* placed : parameters) {
    Parameter& p = placed->parameter;
    for (Parameter::Use& use : p.uses) {
      use = {.grad = Tensor::empty(runtime.arena(MemoryClass::gradients), p.value.shape(),
                                   kernels::accumulator(p.value.dtype()), p.name)};
    }
  }
}

// The parameter's gradient, summed over all its uses.
inline std::vector<double> gradient_of(const Parameter& p) {
  std::vector<double> sum(static_cast<size_t>(p.value.elements()));
  for (const Parameter::Use& use : p.uses) {
    EXPECT_TRUE(use.started) << p.name;
    const std::vector<double> values = to_doubles(use.grad);
    for (size_t i = 0; i < sum.size(); ++i) {
      sum[i] += values[i];
      if (use.grad.dtype() == DType::f32) sum[i] = static_cast<float>(sum[i]);
    }
  }
  return sum;
}

// Values of the whole model by tensor and element, assembled from the ranks that hold them.
class Canonical {
 public:
  // Adds the elements of a parameter that one rank holds. Elements of divided parameters come from
  // one rank. Other elements may come from several ranks, which must agree.
  void add(const parallel::ParameterSpec& placed, const std::vector<double>& values) {
    for_each_run(placed, [&](const parallel::CanonicalTensor& part, int64_t canonical,
                             int64_t local, int64_t size) {
      auto& tensor = tensors_[part.name];
      auto& seen = seen_[part.name];
      tensor.resize(static_cast<size_t>(part.global.elements()));
      seen.resize(tensor.size());
      for (int64_t i = 0; i < size; ++i) {
        const auto at = static_cast<size_t>(canonical + i);
        const double value = values[static_cast<size_t>(local + i)];
        if (seen[at]) {
          ASSERT_FALSE(placed.is_divided()) << part.name << " has two holders of " << at;
          ASSERT_EQ(tensor[at], value) << part.name << " " << at;
        }
        seen[at] = true;
        tensor[at] = value;
      }
    });
  }
  // Adds to the values that are already there, for another part of the model that uses the same
  // parameter.
  void accumulate(const parallel::ParameterSpec& placed, const std::vector<double>& values,
                  bool in_f32) {
    for_each_run(placed, [&](const parallel::CanonicalTensor& part, int64_t canonical,
                             int64_t local, int64_t size) {
      auto& tensor = tensors_.at(part.name);
      for (int64_t i = 0; i < size; ++i) {
        double& slot = tensor.at(static_cast<size_t>(canonical + i));
        slot += values[static_cast<size_t>(local + i)];
        if (in_f32) slot = static_cast<float>(slot);
      }
    });
  }

  const std::map<std::string, std::vector<double>>& tensors() const { return tensors_; }
  bool complete() const {
    for (const auto& [name, seen] : seen_)
      for (const bool s : seen)
        if (!s) return false;
    return true;
  }

 private:
  std::map<std::string, std::vector<double>> tensors_;
  std::map<std::string, std::vector<bool>> seen_;
};

}  // namespace megatron::testing
