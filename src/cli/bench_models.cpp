#include "cli/bench_models.h"

#include <algorithm>
#include <array>

#include "base/error.h"

namespace megatron::cli {
namespace {

struct BenchModel {
  std::string_view name;
  int64_t layers, hidden, heads;
  int64_t groups = 0, ffn = 0, vocabulary = 50257;  // groups 0: GPT-2
  double rotary_base = 10000;
  bool tied = true;
  int64_t length = 1024, micro_batch = 4, global_batch = 0;  // 0: one micro-batch
  bool recompute = false;
};

constexpr std::array kModels = {
    BenchModel{.name = "gpt2-124m", .layers = 12, .hidden = 768, .heads = 12},
    BenchModel{.name = "gpt2-1558m", .layers = 48, .hidden = 1600, .heads = 25, .micro_batch = 8},
    BenchModel{.name = "llama-160m",
               .layers = 12,
               .hidden = 768,
               .heads = 12,
               .groups = 4,
               .ffn = 3072,
               .vocabulary = 32000,
               .tied = false},
    BenchModel{.name = "llama-1b",
               .layers = 16,
               .hidden = 2048,
               .heads = 32,
               .groups = 8,
               .ffn = 8192,
               .vocabulary = 128256,
               .rotary_base = 5e5,
               .length = 4096},
    BenchModel{.name = "llama-3b",
               .layers = 28,
               .hidden = 3072,
               .heads = 24,
               .groups = 8,
               .ffn = 8192,
               .vocabulary = 128256,
               .rotary_base = 5e5,
               .length = 4096,
               .micro_batch = 2,
               .global_batch = 8},
    BenchModel{.name = "llama-8b",
               .layers = 32,
               .hidden = 4096,
               .heads = 32,
               .groups = 8,
               .ffn = 14336,
               .vocabulary = 128256,
               .rotary_base = 5e5,
               .tied = false,
               .length = 4096,
               .micro_batch = 1,
               .global_batch = 8,
               .recompute = true}};

void make_llama(models::GptFlags& shape, const BenchModel& m) {
  shape.ffn_hidden_size = m.ffn;
  shape.group_query_attention = true;
  shape.num_query_groups = m.groups;
  shape.position_embedding = models::PositionEmbedding::rope;
  shape.rotary_base = m.rotary_base;
  shape.normalization = nn::Normalization::rms_norm;
  shape.swiglu = true;
  shape.add_bias_linear = false;
  shape.untie = !m.tied;
}

}  // namespace

std::vector<std::string> bench_models() {
  std::vector<std::string> names;
  for (const BenchModel& m : kModels) names.emplace_back(m.name);
  return names;
}

void set_bench_model(training::TrainSettings& s, std::string_view name) {
  const auto m = std::ranges::find(kModels, name, &BenchModel::name);
  MG_ASSERT(m != kModels.end());
  s.shape.num_layers = m->layers;
  s.shape.hidden_size = m->hidden;
  s.shape.num_attention_heads = m->heads;
  s.shape.vocab_size = m->vocabulary;
  s.shape.hidden_dropout = s.shape.attention_dropout = 0;
  if (m->groups > 0) make_llama(s.shape, *m);
  s.batch.seq_length = m->length;
  s.batch.micro_batch_size = m->micro_batch;
  if (m->global_batch > 0) s.batch.global_batch_size = m->global_batch;
  if (m->recompute) {
    s.recompute.granularity = "selective";
    s.recompute.modules = {"mlp", "layernorm"};
  }
}

models::GptFlags shape_of(std::string_view name) {
  training::TrainSettings settings;
  set_bench_model(settings, name);
  settings.shape.max_position_embeddings = settings.batch.seq_length;
  return settings.shape;
}

}  // namespace megatron::cli
