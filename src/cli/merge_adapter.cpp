#include <fmt/core.h>

#include "base/error.h"
#include "base/machine_limits.h"
#include "base/progress.h"
#include "cli/command.h"
#include "training/merged_adapter.h"

namespace megatron::cli {

int merge_adapter(const Arguments& arguments) {
  std::optional<std::string> adapter, model, save;
  std::optional<int64_t> threads;
  Fields f;
  f.add("adapter", &adapter,
        "directory of a LoRA adapter: adapter_config.json and adapter_model.safetensors, as PEFT "
        "writes them");
  f.add("model", &model,
        "directory of the base model; default: the one that adapter_config.json names");
  f.add("save", &save, "new directory for the merged model");
  f.add("threads", &threads, "CPU threads; default: all cores").within(1, 1024);
  if (const auto code =
          parse("megatron merge-adapter --adapter DIR [--model BASE] --save OUT",
                "Merges a LoRA adapter into its base model. The merged model has the base's "
                "configuration, tokenizer, types and shards, and needs no adapter any more.",
                f, {}, arguments)) {
    return *code;
  }
  MG_CHECK(adapter.has_value(), "--adapter DIR is needed");
  MG_CHECK(save.has_value(), "--save OUT is needed");
  f.check();
  const checkpoint::ModelDirectory directory(*adapter, {.base = model.value_or("")});
  const training::MergedAdapter merged(directory);
  ThreadPool pool(static_cast<int>(threads.value_or(available_processors())));
  {
    std::optional<Progress> progress;
    training::save_merged(merged, *save, pool, [&](int64_t bytes, int64_t total) {
      if (!progress) progress.emplace("merging", total, "B");
      progress->update(bytes);
    });
  }
  fmt::print("{}: '{}' merged into '{}': {}\n", *save, directory.path(), merged.base().path(),
             merged.text());
  return 0;
}

}  // namespace megatron::cli
