// Complete training runs of small models, on the ranks that the flags ask for.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/tolerances.h"
#include "checkpoint/safetensors.h"
#include "golden/training/support.h"

namespace megatron::training {

constexpr const char* kReplicas = "--ranks 2";
constexpr const char* kTensor = "--tensor-model-parallel-size 2";

// Parses flags as on a command line.
inline settings::TrainSettings with_flags(settings::TrainSettings settings,
                                          const std::string& flags) {
  Fields fields = settings.fields();
  std::istringstream words(flags);
  std::vector<std::pair<std::string, std::vector<std::string>>> given;
  for (std::string word; words >> word;) {
    if (word.starts_with("--")) {
      given.emplace_back(word.substr(2), std::vector<std::string>());
    } else {
      given.back().second.push_back(word);
    }
  }
  for (const auto& [name, values] : given) {
    Field* field = fields.find(name);
    MG_CHECK(field != nullptr, "there is no --{}", name);
    field->assign(values);
  }
  return settings;
}

inline settings::TrainSettings four_layers(settings::TrainSettings s) {
  s.shape.num_layers = 4;
  s.batch.seq_length = 16;
  s.runtime.ranks.reset();  // defaults to the product of the sizes
  return s;
}

inline settings::TrainSettings deep_gpt2() {
  return with_flags(four_layers(tiny_gpt2()), "--hidden-dropout 0.1 --attention-dropout 0.1");
}
inline settings::TrainSettings deep_llama() { return four_layers(tiny_llama()); }

inline TrainResult run(const settings::TrainSettings& settings) {
  return train(settings, {.peak = 1e12});
}

inline std::vector<double> norms(const TrainResult& result) {
  std::vector<double> values;
  for (const IterationReport& report : result.iterations) values.push_back(report.gradient_norm);
  return values;
}

using Tensors = std::map<std::string, std::vector<double>>;

// Tensors of a checkpoint's files, with weights and optimizer state kept apart.
struct SavedTensors {
  Tensors weights, states;
};

inline SavedTensors saved_tensors(const std::string& directory) {
  SavedTensors saved;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.path().extension() != ".safetensors") continue;
    const checkpoint::SafetensorsFile file(entry.path().string());
    const bool model = entry.path().filename().string().starts_with("model");
    Tensors& tensors = model ? saved.weights : saved.states;
    for (const checkpoint::TensorInfo& info : file.tensors())
      tensors[info.name] = file.doubles(info.name);
  }
  return saved;
}

// Largest tensor_metric. Infinity if the sets of tensors differ.
inline double distance(const Tensors& tensors, const Tensors& expected) {
  double squares = 0, elements = 0, worst = 0;
  for (const auto& [name, values] : expected) {
    for (const double v : values) squares += v * v;
    elements += static_cast<double>(values.size());
  }
  if (tensors.size() != expected.size() || expected.empty()) return INFINITY;
  const double rms = std::sqrt(squares / elements);
  for (const auto& [name, values] : expected) {
    const auto found = tensors.find(name);
    if (found == tensors.end() || found->second.size() != values.size()) return INFINITY;
    double difference = 0, norm = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      difference += (found->second[i] - values[i]) * (found->second[i] - values[i]);
      norm += values[i] * values[i];
    }
    worst = std::max(worst, tolerance::tensor_metric(std::sqrt(difference), std::sqrt(norm), rms,
                                                     static_cast<int64_t>(values.size())));
  }
  return worst;
}

}  // namespace megatron::training
