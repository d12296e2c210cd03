#include <fmt/core.h>

#include "base/error.h"
#include "base/machine_limits.h"
#include "base/progress.h"
#include "cli/command.h"
#include "plan/figures.h"
#include "training/save_quantized.h"

namespace megatron::cli {

int quantize(const Arguments& arguments) {
  std::optional<std::string> model, save;
  std::string format = "fp8-block";
  std::optional<int64_t> threads;
  Fields f;
  f.add("model", &model, "directory of the model: config.json and weights");
  f.add("save", &save, "new directory for the quantized model");
  f.add("save-quantized", &format, {"fp8-block"},
        "format of the weights of linear layers and experts: e4m3 with a scale for 128 x 128 "
        "elements");
  f.add("threads", &threads, "CPU threads; default: all cores").within(1, 1024);
  if (const auto code = parse("megatron quantize --model DIR --save OUT",
                              "Writes a model with weights of 8 bits, as DeepSeek-V3 is published. "
                              "Embedding, output layer, norms and routers keep their types.",
                              f, {}, arguments)) {
    return *code;
  }
  MG_CHECK(model.has_value(), "--model DIR is needed");
  MG_CHECK(save.has_value(), "--save OUT is needed");
  f.check();
  const checkpoint::ModelDirectory directory(*model);
  training::QuantizedSave result;
  {
    std::optional<Progress> progress;
    result = training::save_quantized(directory, *save,
                                      static_cast<int>(threads.value_or(available_processors())),
                                      [&](int64_t bytes, int64_t total) {
                                        if (!progress) progress.emplace("quantizing", total, "B");
                                        progress->update(bytes);
                                      });
  }
  fmt::print("{}: {} of the {} tensors of '{}' in FP8, weights of {} instead of {}\n", *save,
             result.quantized, result.quantized + result.kept, directory.path(),
             plan::bytes_text(static_cast<double>(result.bytes_after)),
             plan::bytes_text(static_cast<double>(result.bytes_before)));
  return 0;
}

}  // namespace megatron::cli
