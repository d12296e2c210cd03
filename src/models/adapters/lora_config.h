// The configuration of LoRA adapters as a value: what adapter_config.json says (PEFT's file), which
// modules it adapts, and with which rank and scale. Modules have their names in Hugging Face's
// format, "model.layers.0.self_attn.q_proj".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "models/adapters/name_pattern.h"

namespace megatron::models {

// Base biases that are trained: none, every one, or those of adapted modules.
enum class LoraBias : uint8_t { none, all, lora_only };

enum class LoraInit : uint8_t {
  standard,  // A uniform in +-1/sqrt(in), B zero
  gaussian,  // A normal with variance 1/rank^2, B zero
  random,    // init_lora_weights false: A and B uniform, so that the adapter changes the model
};

// Modules by name: a list of whole names or their ends after a dot, or a pattern of whole names.
struct ModuleNames {
  std::vector<std::string> names;
  std::optional<NamePattern> pattern;  // if present, names is empty

  bool empty() const { return names.empty() && !pattern; }
  bool fit(std::string_view module) const;
  bool operator==(const ModuleNames&) const = default;
};

struct LoraConfig {
  int64_t rank = 8;
  double alpha = 8;
  double dropout = 0;
  bool rank_stabilized = false;    // use_rslora: scale alpha / sqrt(rank) instead of alpha / rank
  bool weight_decomposed = false;  // use_dora
  bool lora_bias = false;          // B has a bias
  bool fan_in_fan_out = false;     // base weights are [in, out] (GPT-2's Conv1D)
  LoraBias bias = LoraBias::none;
  LoraInit init = LoraInit::standard;

  bool all_linear = false;  // "all-linear": every linear module but the output head
  ModuleNames targets;      // empty if all_linear
  ModuleNames excluded;
  // The layers whose modules are adapted; empty: all. A target that is a whole name is adapted in
  // any layer. layers_pattern: name of the list of layers ("layers"); empty: the first number in
  // the module's name after two names is the layer's.
  std::vector<int64_t> layers_to_transform;
  std::vector<NamePattern> layers_pattern;
  // Ranks and alphas of modules that differ, by patterns of their names' ends. The first that fits
  // counts.
  std::vector<std::pair<NamePattern, int64_t>> rank_pattern;
  std::vector<std::pair<NamePattern, double>> alpha_pattern;
  std::vector<std::string> target_parameters;  // "mlp.experts.gate_up_proj"
  std::vector<std::string> modules_to_save;    // trained and stored whole
  // Rows of embeddings that are trained, by the embedding's name or its end after a dot; "": the
  // model's input embedding. A tied output layer has them, too.
  std::vector<std::pair<std::string, std::vector<int64_t>>> trainable_token_indices;

  double b_rate = 1;  // learning rate of B by that of A (LoRA+); not in the file

  std::string base_model;               // base_model_name_or_path
  std::string task_type = "CAUSAL_LM";  // or SEQ_CLS, TOKEN_CLS, QUESTION_ANS; "": not stated
  std::string peft_version = "0.21.2";  // of the PEFT that wrote the file; "": before 0.18
  Json file;                            // all keys as read; null if it was not read from a file
};

// adapter_config: the contents of adapter_config.json; path: for errors. Throws Error naming the
// key, its value and what is supported. Logs unknown keys, which are kept and have no effect.
LoraConfig lora_from_json(const Json& adapter_config, const std::string& path);
// Throws Error naming the key and the value that is out of range or contradicts another. path:
// where the configuration comes from. lora_from_json() calls it.
void check(const LoraConfig& config, const std::string& path);
// All keys that PEFT 0.21 writes, sorted; PEFT's file is dump(2, true) of them. A configuration
// that was read from a file has the file's keys and values wherever its own agree with them, so
// that writing what was read gives the same bytes. all_linear is written as the words; PEFT writes
// the list of modules found, which a caller can put into `targets` instead.
Json to_json(const LoraConfig& config);

struct ModuleAdapter {
  int64_t rank = 0;
  double alpha = 0, scale = 0;
  bool operator==(const ModuleAdapter&) const = default;
};

// output: the output head, which all_linear leaves out.
enum class ModuleKind : uint8_t { linear, embedding, output };

// The adapter of a module; nothing if it has none. Throws Error if the module is also saved whole,
// or if two patterns fit it of which PEFT, which sorts them when it saves, would choose another.
std::optional<ModuleAdapter> adapter_of(const LoraConfig& config, std::string_view module,
                                        ModuleKind kind);
// The same for a parameter that target_parameters names: "model.layers.0.mlp.experts.down_proj".
std::optional<ModuleAdapter> adapter_of_parameter(const LoraConfig& config,
                                                  std::string_view parameter);
// The rows of an embedding or an output layer that are trained in the place of its own, by the ids
// of their tokens, in the order in which they are stored. Throws Error if two entries fit it.
std::vector<int64_t> token_rows_of(const LoraConfig& config, std::string_view module,
                                   ModuleKind kind);
// True if modules_to_save has the module or one that it is part of: as in PEFT, a name in
// modules_to_save fits every module whose name ends with it, also within a word.
bool saves_module(const LoraConfig& config, std::string_view module);

}  // namespace megatron::models
