#include "golden/cli/flag_effects.h"

namespace megatron::testing {

std::vector<FlagRow> model_flags() {
  const std::string rope = "--position-embedding-type rope";
  const std::string grouped = "--num-attention-heads 4 --group-query-attention";
  return {
      {"preset", "loss", "--preset gpt2-124m", "!hidden-dropout"},
      {"num-layers", "shape", "--num-layers 3"},
      {"hidden-size", "shape", "--hidden-size 32"},
      {"ffn-hidden-size", "shape", "--ffn-hidden-size 24", "", "--ffn-hidden-size 64"},
      {"num-attention-heads", "shape", "--num-attention-heads 4"},
      {"kv-channels", "shape", "--kv-channels 4", "", "--kv-channels 8"},
      {"group-query-attention", "shape", "--group-query-attention",
       "--num-attention-heads 4 --num-query-groups 2"},
      {"num-query-groups", "shape", "--num-query-groups 2", grouped},
      {"max-position-embeddings", "shape", "--max-position-embeddings 32", "",
       "--max-position-embeddings 16"},
      {"vocab-size", "shape", "--vocab-size 80"},
      {"position-embedding-type", "shape", rope},
      {"rotary-base", "loss", "--rotary-base 500", rope},
      {"normalization", "shape", "--normalization RMSNorm"},
      {"norm-epsilon", "loss", "--norm-epsilon 1e-3"},
      {"swiglu", "shape", "--swiglu"},
      {"disable-bias-linear", "shape", "--disable-bias-linear"},
      {"add-qkv-bias", "shape", "--add-qkv-bias", "--disable-bias-linear"},
      {"untie-embeddings-and-output-weights", "shape", "--untie-embeddings-and-output-weights"},
      {"hidden-dropout", "loss", "--hidden-dropout 0.2", "!hidden-dropout", "--hidden-dropout 0.1"},
      {"attention-dropout", "loss", "--attention-dropout 0.2", "!attention-dropout",
       "--attention-dropout 0.1"},
      {"init-method-std", "loss", "--init-method-std 0.05", "", "", "",
       "--init-method-xavier-uniform"},
      {"embedding-init-method-std", "loss", "--embedding-init-method-std 0.05", "",
       "--embedding-init-method-std 0.02"},
      {"init-method-xavier-uniform", "loss", "--init-method-xavier-uniform"},
      {"no-bias-gelu-fusion", "loss", "--no-bias-gelu-fusion", "", "", "", "--swiglu"},
      {"model", "shape",
       "!num-layers !hidden-size !num-attention-heads !vocab-size --model {vectors}/hf/gpt2"},
      {"seed", "loss", "--seed 4321"},
      {"bf16", "loss", "--bf16"},
      {"fp16", "loss", "--fp16"},
  };
}

}  // namespace megatron::testing
