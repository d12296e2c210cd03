#include <fmt/core.h>

#include <filesystem>

#include "base/error.h"
#include "base/progress.h"
#include "checkpoint/model_directory.h"
#include "cli/command.h"
#include "cli/inspect_dataset.h"
#include "data/indexed_dataset.h"
#include "tokenizers/tokenizer.h"
#include "training/flops.h"
#include "training/model_source.h"
#include "training/vocabulary.h"

namespace megatron::cli {
namespace {

namespace fs = std::filesystem;

void print_tensors(const std::vector<checkpoint::TensorInfo>& tensors) {
  int64_t elements = 0, bytes = 0;
  for (const auto& t : tensors) {
    fmt::print("  {:<56} {:<5} {:<20} {}\n", t.name, name(t.dtype), t.shape.str(),
               format_bytes(static_cast<double>(t.end - t.begin)));
    elements += t.shape.elements();
    bytes += t.end - t.begin;
  }
  fmt::print("{} tensors, {} elements, {}\n", tensors.size(), elements,
             format_bytes(static_cast<double>(bytes)));
}

void inspect_model(const std::string& path) {
  const checkpoint::ModelDirectory directory(path);
  const models::GptConfig c = models::config_from_hugging_face(directory.config());
  fmt::print("{}: Hugging Face model of type {}\n", path,
             directory.config()["model_type"].as_string());
  fmt::print(
      "{} layers, hidden {}, feed-forward {}, {} heads ({} key heads) of {}, vocabulary {}, {} "
      "positions, {}, {}\n",
      c.num_layers, c.hidden_size, c.ffn_hidden_size, c.num_attention_heads, c.num_query_groups,
      c.kv_channels, c.vocab_size, c.max_position_embeddings,
      c.position_embedding == models::PositionEmbedding::rope ? "rotary" : "learned positions",
      c.untied ? "untied" : "tied");
  fmt::print("{} parameters; {:.3g} FLOPs to train on a sequence of {} tokens\n",
             training::parameter_count(c), training::training_flops(c, c.max_position_embeddings),
             c.max_position_embeddings);
  std::vector<checkpoint::TensorInfo> tensors;
  for (const std::string& name : directory.tensor_names()) tensors.push_back(*directory.find(name));
  print_tensors(tensors);
}

void inspect_tokenizer(const std::string& path) {
  const auto t = tokenizers::Tokenizer::load(path);
  fmt::print("{}: {} tokens\n", path, t.vocabulary_size());
  const auto show = [&t](std::string_view what, std::optional<int32_t> id) {
    if (id) fmt::print("  {:<16} {:>7}  {}\n", what, *id, t.token(*id));
  };
  show("end of document", t.eod());
  show("begin", t.bos());
  show("end", t.eos());
  show("padding", t.pad());
}

void inspect_path(const std::string& path, const DatasetInspection& inspection) {
  const fs::path p(path);
  const std::string prefix = data::indexed_dataset_prefix(path);
  if (data::indexed_dataset_exists(prefix)) return inspect_dataset(prefix, inspection);
  MG_CHECK(fs::exists(p),
           "{} does not exist; a model directory, a --save directory, a .bin/.idx prefix, a "
           "safetensors file or a "
           "tokenizer is wanted",
           path);
  if (p.extension() == ".safetensors") {
    const checkpoint::SafetensorsFile file(path);
    return print_tensors(file.tensors());
  }
  const bool model = fs::is_directory(p) && (fs::exists(p / "config.json") ||
                                             fs::exists(p / "latest_checkpointed_iteration.txt"));
  if (model) return inspect_model(training::resolve_model_directory(path));
  if (p.filename() == "tokenizer.json" || fs::exists(p / "tokenizer.json") ||
      fs::exists(p / "vocab.json"))
    return inspect_tokenizer(path);
  fail(
      "{} is neither a model directory, a --save directory, a .bin/.idx prefix, a safetensors file "
      "nor a tokenizer",
      path);
}

}  // namespace

int inspect(const Arguments& arguments) {
  std::vector<std::string> paths;
  training::TokenizerSettings settings;
  std::optional<int64_t> vocab_size;
  DatasetInspection inspection;
  Fields fields;
  settings.fields(fields);
  fields.add("vocab-size", &vocab_size,
             "number of tokens, where the tokenizer's files do not tell");
  fields.add("documents", &inspection.documents,
             "documents of a data set to decode, when a tokenizer is given");
  fields.add("characters", &inspection.characters, "of each document that is decoded; 0: all");
  if (const auto code = parse(
          "megatron inspect PATH... [flags]",
          "Tells what is in a model directory, a data set, a safetensors file or a tokenizer.",
          fields, {{"path", "what to look at", &paths, true}}, arguments)) {
    return *code;
  }
  MG_CHECK(inspection.documents >= 0, "--documents is {}; it must be at least 0",
           inspection.documents);
  MG_CHECK(inspection.characters >= 0, "--characters is {}; it must be at least 0",
           inspection.characters);
  std::shared_ptr<const tokenizers::Tokenizer> tokenizer;
  if (settings.tokenizer_type || settings.tokenizer_model)
    tokenizer = training::open_vocabulary(settings, vocab_size).tokenizer;
  inspection.tokenizer = tokenizer.get();
  for (const std::string& path : paths) inspect_path(path, inspection);
  return 0;
}

}  // namespace megatron::cli
