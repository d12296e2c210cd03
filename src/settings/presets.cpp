#include "settings/presets.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/text_parts.h"
#include "settings/settings.h"

namespace megatron::settings {
namespace {

struct Preset {
  std::string_view name, flags;  // words separated by single spaces
  std::string_view more = {};    // additional flags
};

constexpr std::string_view kLlama8b =
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --vocab-size 128256 "
    "--ffn-hidden-size 14336 --group-query-attention --num-query-groups 8 "
    "--position-embedding-type rope --rotary-base 500000 --normalization RMSNorm --swiglu "
    "--disable-bias-linear --untie-embeddings-and-output-weights --hidden-dropout 0 "
    "--attention-dropout 0 --seq-length 4096 --global-batch-size 8 "
    "--recompute-granularity selective";

constexpr std::array kPresets = {
    Preset{"gpt2-124m",
           "--num-layers 12 --hidden-size 768 --num-attention-heads 12 --vocab-size 50257 "
           "--hidden-dropout 0 --attention-dropout 0 --seq-length 1024 --micro-batch-size 4"},
    Preset{"gpt2-1558m",
           "--num-layers 48 --hidden-size 1600 --num-attention-heads 25 --vocab-size 50257 "
           "--hidden-dropout 0 --attention-dropout 0 --seq-length 1024 --micro-batch-size 8"},
    Preset{"llama-160m",
           "--num-layers 12 --hidden-size 768 --num-attention-heads 12 --vocab-size 32000 "
           "--ffn-hidden-size 3072 --group-query-attention --num-query-groups 4 "
           "--position-embedding-type rope --rotary-base 10000 --normalization RMSNorm --swiglu "
           "--disable-bias-linear --untie-embeddings-and-output-weights --hidden-dropout 0 "
           "--attention-dropout 0 --seq-length 1024 --micro-batch-size 4"},
    Preset{"moe-300m",
           "--num-layers 12 --hidden-size 768 --num-attention-heads 12 --vocab-size 32000 "
           "--num-experts 64 --moe-router-topk 8 --moe-ffn-hidden-size 128 "
           "--moe-router-pre-softmax --moe-aux-loss-coeff 0.01 "
           "--group-query-attention --num-query-groups 4 "
           "--position-embedding-type rope --rotary-base 10000 --normalization RMSNorm --swiglu "
           "--disable-bias-linear --untie-embeddings-and-output-weights --hidden-dropout 0 "
           "--attention-dropout 0 --seq-length 1024 --micro-batch-size 4"},
    // llama-160m with latent attention in DeepSeek-V3's form: query compression, rotated parts half
    // as wide as the others.
    Preset{"mla-160m",
           "--num-layers 12 --hidden-size 768 --num-attention-heads 12 --vocab-size 32000 "
           "--ffn-hidden-size 3072 --multi-latent-attention --q-lora-rank 384 --kv-lora-rank 256 "
           "--qk-head-dim 64 --qk-pos-emb-head-dim 32 --v-head-dim 64 --rope-type rope "
           "--position-embedding-type rope --rotary-base 10000 --normalization RMSNorm --swiglu "
           "--disable-bias-linear --untie-embeddings-and-output-weights --hidden-dropout 0 "
           "--attention-dropout 0 --seq-length 1024 --micro-batch-size 4"},
    // Mamba-2 130M (Dao & Gu 2024): a state space in every layer.
    Preset{"mamba-130m",
           "--hybrid-layer-pattern MMMMMMMMMMMMMMMMMMMMMMMM --hidden-size 768 --vocab-size 50288 "
           "--mamba-num-groups 1 --position-embedding-type none --normalization RMSNorm "
           "--disable-bias-linear --hidden-dropout 0 --attention-dropout 0 --seq-length 1024 "
           "--micro-batch-size 4"},
    // The kinds of layers of Nemotron-H, in its proportions.
    Preset{"hybrid-300m",
           "--hybrid-layer-pattern M-M-M-M*-M-M-M-M*-M-M-M-M*-M- --hidden-size 1024 "
           "--num-attention-heads 16 --group-query-attention --num-query-groups 4 "
           "--vocab-size 32000 --position-embedding-type none --normalization RMSNorm "
           "--squared-relu --disable-bias-linear --untie-embeddings-and-output-weights "
           "--hidden-dropout 0 --attention-dropout 0 --seq-length 1024 --micro-batch-size 4"},
    Preset{"llama-1b",
           "--num-layers 16 --hidden-size 2048 --num-attention-heads 32 --vocab-size 128256 "
           "--ffn-hidden-size 8192 --group-query-attention --num-query-groups 8 "
           "--position-embedding-type rope --rotary-base 500000 --normalization RMSNorm --swiglu "
           "--disable-bias-linear --hidden-dropout 0 --attention-dropout 0 --seq-length 4096 "
           "--micro-batch-size 4"},
    Preset{"llama-3b",
           "--num-layers 28 --hidden-size 3072 --num-attention-heads 24 --vocab-size 128256 "
           "--ffn-hidden-size 8192 --group-query-attention --num-query-groups 8 "
           "--position-embedding-type rope --rotary-base 500000 --normalization RMSNorm --swiglu "
           "--disable-bias-linear --hidden-dropout 0 --attention-dropout 0 --seq-length 4096 "
           "--micro-batch-size 2 --global-batch-size 8"},
    Preset{"llama-8b", kLlama8b, "--micro-batch-size 1 --recompute-modules mlp_act layernorm"},
    // Uses the memory that bf16 moments free for larger micro-batches: larger products, and half as
    // many passes over the weights' gradients.
    Preset{"llama-8b-mb2", kLlama8b,
           "--micro-batch-size 2 --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16 "
           "--recompute-modules layernorm"}};

}  // namespace

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Preset& preset : kPresets) names.emplace_back(preset.name);
  return names;
}

std::vector<std::string> preset_flags(std::string_view name) {
  const auto preset = std::ranges::find(kPresets, name, &Preset::name);
  MG_ASSERT(preset != kPresets.end());
  std::vector<std::string> words;
  for (std::string_view rest : {preset->flags, preset->more}) {
    while (!rest.empty()) words.emplace_back(take_until(rest, ' '));
  }
  return words;
}

models::ModelFlags preset_shape(std::string_view name) {
  TrainSettings settings;
  Fields fields = settings.fields();
  const std::vector<std::string> words = preset_flags(name);
  for (size_t at = 0; at < words.size();) {
    Field* const field = fields.find(std::string_view(words[at++]).substr(2));
    std::vector<std::string> values;
    while (at < words.size() && !words[at].starts_with("--")) values.push_back(words[at++]);
    field->assign(values);
  }
  settings.shape.max_position_embeddings = settings.batch.seq_length;
  return settings.shape;
}

}  // namespace megatron::settings
