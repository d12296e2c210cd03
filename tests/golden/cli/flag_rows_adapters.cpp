#include "golden/cli/flag_effects.h"

namespace megatron::testing {

std::vector<FlagRow> adapter_flags() {
  const std::string begin =
      "!num-layers !hidden-size !num-attention-heads !vocab-size --finetune --tokenizer-type "
      "NullTokenizer --model {vectors}/";
  const std::string model = begin + "post_training/models/policy", rank = model + " --lora-rank 2",
                    with_biases = begin + "hf/gpt2", fused = begin + "hf/gpt_oss";
  return {
      {"lora-rank", "loss", "--lora-rank 2", model},
      {"adapter", "loss", "--adapter {vectors}/adapters/qv", model},
      {"lora-alpha", "loss", "--lora-alpha 8", rank, "--lora-alpha 2", "", model},
      {"lora-target", "loss", "--lora-target q_proj", rank, "--lora-target all-linear", "", model},
      {"lora-exclude", "loss", "--lora-exclude q_proj", rank, "", "", model},
      {"lora-layers", "loss", "--lora-layers 1", rank + " --lora-target q_proj",
       "--lora-layers 0-1", "", model},
      {"lora-rank-pattern", "loss", "--lora-rank-pattern q_proj=3", rank,
       "--lora-rank-pattern q_proj=2", "", model},
      {"lora-alpha-pattern", "loss", "--lora-alpha-pattern q_proj=8", rank,
       "--lora-alpha-pattern q_proj=2", "", model},
      {"lora-modules-to-save", "loss", "--lora-modules-to-save lm_head", rank, "", "", model},
      {"lora-token-indices", "loss", "--lora-token-indices 1-60", rank, "", "", model},
      {"lora-bias", "loss", "--lora-bias all", with_biases + " --lora-rank 2", "", "", with_biases},
      {"lora-target-parameters", "loss", "--lora-target-parameters experts.down_proj",
       fused + " --lora-rank 2 --lora-target q_proj", "", "", fused},
      {"use-rslora", "loss", "--use-rslora", rank, "", "", model},
      {"use-dora", "loss", "--use-dora", rank, "", "", model},
      {"lora-dropout", "loss", "--lora-dropout 0.5", rank, "", "", model},
      {"lora-plus-ratio", "loss", "--lora-plus-ratio 16", rank, "", "", model},
  };
}

}  // namespace megatron::testing
