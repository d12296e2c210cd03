#include <fmt/core.h>

#include <filesystem>

#include "base/error.h"
#include "checkpoint/checkpoint_directory.h"
#include "cli/command.h"
#include "cli/inspect_checkpoint.h"
#include "cli/inspect_dataset.h"
#include "corpus/vocabulary.h"
#include "data/indexed_dataset.h"
#include "tokenizers/tokenizer.h"

namespace megatron::cli {
namespace {

namespace fs = std::filesystem;

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

[[noreturn]] void neither(const std::string& path) {
  fail(
      "{} is not a model directory, a checkpoint, a --save directory, a run's log.jsonl, a "
      ".bin/.idx prefix, a weights file or a tokenizer",
      path);
}

// Returns false if the data are damaged.
bool inspect_path(const std::string& path, const DatasetInspection& inspection, bool tensors) {
  const bool verify = inspection.verify;
  const fs::path p(path);
  const std::string prefix = data::indexed_dataset_prefix(path);
  const bool tokens = data::indexed_dataset_exists(prefix);
  if (tokens) return inspect_dataset(prefix, inspection);
  MG_CHECK(fs::exists(p),
           "{} does not exist; a model directory, a checkpoint, a --save directory, a run's "
           "log.jsonl, a .bin/.idx prefix, a file of weights or a tokenizer is expected",
           path);
  if (checkpoint::is_checkpoint(path)) return inspect_checkpoint(path, verify, tensors);
  const bool model = fs::exists(p / "config.json");
  if (!model && fs::is_directory(p) && is_save_directory(path))
    return inspect_save_directory(path, verify, tensors);
  MG_CHECK(!verify,
           "--verify needs a checkpoint, whose checksums it compares, or a data set, which it "
           "reads; {} has no {} with checksums, and is not a .bin/.idx prefix",
           path, checkpoint::kTrainerState);
  if (p.extension() == ".safetensors" ||
      (p.extension() == ".bin" && checkpoint::is_torch_weights(p.filename().string()))) {
    inspect_tensors(path, tensors);
  } else if (model) {
    inspect_model(path, tensors);
  } else if (p.extension() == ".jsonl" || fs::exists(p / "log.jsonl")) {
    inspect_run(path);
  } else if (p.filename() == "tokenizer.json" || fs::exists(p / "tokenizer.json") ||
             fs::exists(p / "vocab.json")) {
    inspect_tokenizer(path);
  } else {
    neither(path);
  }
  return true;
}

}  // namespace

int inspect(const Arguments& arguments) {
  std::vector<std::string> paths;
  settings::TokenizerSettings settings;
  std::optional<int64_t> vocab_size;
  bool tensors = false;
  DatasetInspection inspection;
  Fields fields;
  settings.fields(fields);
  fields.add("vocab-size", &vocab_size, "vocabulary size, if the tokenizer's files do not give it");
  fields.add_switch(
      "verify", &inspection.verify, true,
      "recompute every checksum of a checkpoint, or of all checkpoints in a --save directory; "
      "read every token of a data set, and check the ids against a tokenizer or --vocab-size; "
      "exit code 1 if anything is damaged");
  fields.add_switch("tensors", &tensors, true,
                    "list every tensor and file of a model or checkpoint, with checksums; by "
                    "default tensors with the same shape in all layers share one line");
  fields.add("documents", &inspection.documents,
             "number of documents of a data set to decode, if a tokenizer is given");
  fields.add("characters", &inspection.characters,
             "characters to show of each decoded document; "
             "0: all");
  if (const auto code = parse(
          "megatron inspect PATH... [flags]",
          "Shows what is in a checkpoint, a --save directory, a run's log, a model directory, a "
          "data set, a file of weights or a tokenizer.",
          fields, {{"path", "paths to inspect", &paths, true}}, arguments)) {
    return *code;
  }
  MG_CHECK(inspection.documents >= 0, "--documents is {}; it must be at least 0",
           inspection.documents);
  MG_CHECK(inspection.characters >= 0, "--characters is {}; it must be at least 0",
           inspection.characters);
  std::shared_ptr<const tokenizers::Tokenizer> tokenizer;
  inspection.vocabulary = vocab_size;
  if (settings.tokenizer_type || settings.tokenizer_model) {
    const corpus::Vocabulary opened = corpus::open_vocabulary(settings, vocab_size);
    tokenizer = opened.tokenizer;
    inspection.vocabulary = opened.size;
  }
  inspection.tokenizer = tokenizer.get();
  bool whole = true;
  for (const std::string& path : paths) whole = inspect_path(path, inspection, tensors) && whole;
  return whole ? 0 : 1;
}

}  // namespace megatron::cli
