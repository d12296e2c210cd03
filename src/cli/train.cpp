#include "cli/command.h"
#include "training/trainer.h"

namespace megatron::cli {

int train(const Arguments& arguments) {
  training::TrainSettings settings;
  Fields fields = settings.fields();
  if (const auto code =
          parse("megatron train [flags]",
                "Trains a GPT-2 or Llama style model. Flags have Megatron-LM's names and meanings.",
                fields, {}, arguments)) {
    return *code;
  }
  training::train(settings);
  return 0;
}

}  // namespace megatron::cli
