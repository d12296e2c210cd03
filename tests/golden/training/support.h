// Small runs and temporary folders for the tests of whole runs.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "hang_limit.h"
#include "models/model_flags.h"
#include "models/stage.h"
#include "training/trainer.h"

namespace megatron::training {

inline std::string vectors(const std::string& name) {
  return std::string(MEGATRON_GOLDEN) + "/" + name;
}

// A temporary directory, removed at the end.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "megatron-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// Recompute mode in which every layer keeps only its input.
inline models::RecomputeOptions recomputed_layers() {
  return {.granularity = models::RecomputeOptions::Granularity::full};
}

// Five steps of a two-layer Llama on synthetic tokens: sequences of 32, eight a step.
inline settings::TrainSettings tiny_llama() {
  settings::TrainSettings s;
  s.shape.num_layers = 2;
  s.shape.hidden_size = 32;
  s.shape.num_attention_heads = 4;
  s.shape.group_query_attention = true;
  s.shape.num_query_groups = 2;
  s.shape.ffn_hidden_size = 48;
  s.shape.vocab_size = 97;
  s.shape.position_embedding = models::PositionEmbedding::rope;
  s.shape.normalization = nn::Normalization::rms_norm;
  s.shape.swiglu = true;
  s.shape.add_bias_linear = false;
  s.shape.untie = true;
  s.shape.hidden_dropout = s.shape.attention_dropout = 0;
  s.batch.seq_length = 32;
  s.batch.micro_batch_size = 2;
  s.batch.global_batch_size = 8;
  s.batch.train_iters = 5;
  s.optimizer.lr = 5e-3;
  s.optimizer.lr_decay_style = optim::DecayStyle::cosine;
  s.data.mock_data = true;
  s.runtime.ranks = 1;
  s.runtime.threads = 1;
  s.runtime.timeout_minutes = testing::kHangSeconds / 60.0;
  return s;
}

// A GPT-2 of the same size: learned positions, LayerNorm, GELU, biases, tied embeddings.
inline settings::TrainSettings tiny_gpt2() {
  settings::TrainSettings s = tiny_llama();
  const models::ModelFlags plain;
  s.shape.group_query_attention = false;
  s.shape.position_embedding = plain.position_embedding;
  s.shape.normalization = plain.normalization;
  s.shape.swiglu = s.shape.untie = false;
  s.shape.add_bias_linear = true;
  return s;
}

inline std::vector<double> losses(const TrainResult& result) {
  std::vector<double> values;
  for (const IterationReport& report : result.iterations) values.push_back(report.loss);
  return values;
}

// Does not measure the machine's peak unless the hooks ask for it.
inline std::vector<double> train_losses(const settings::TrainSettings& settings,
                                        const TrainHooks& hooks = {.peak = 1e12}) {
  return losses(train(settings, hooks));
}

inline bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::bit_cast<uint64_t>(a[i]) != std::bit_cast<uint64_t>(b[i])) return false;
  }
  return !a.empty();
}

// Largest relative difference; infinity if the lengths differ.
inline double distance(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size() || a.empty()) return INFINITY;
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i)
    worst = std::max(worst, std::abs(a[i] - b[i]) / std::abs(b[i]));
  return worst;
}

}  // namespace megatron::training
