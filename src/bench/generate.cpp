#include <fmt/core.h>

#include <algorithm>

#include "base/error.h"
#include "bench/bench.h"
#include "bench/device_text.h"
#include "bench/generate_measures.h"
#include "settings/presets.h"
#include "training/device_flag.h"

namespace megatron::bench {
namespace {

struct GenerateFlags {
  explicit GenerateFlags(std::string_view model) : shape(settings::preset_shape(model)) {}

  settings::RuntimeSettings runtime;
  std::string preset{settings::kDefaultPreset};
  bool bf16 = false;
  int64_t prompt = 128, max_tokens = 256, batch = 32, lora_rank = 16;
  std::optional<int64_t> late_position;
  inference::EngineOptions engine;
  models::ModelFlags shape;

  std::optional<int> read(const ReadFlags& read_flags) {
    Fields f;
    f.begin_group("model");
    f.add("preset", &preset, settings::preset_names(), "predefined model; other flags override it");
    f.begin_group("precision");
    f.add_switch("bf16", &bf16, true, "compute in bfloat16 instead of fp32");
    f.begin_group("measurement");
    f.add("prompt-tokens", &prompt, "length of the prompt");
    f.add("max-tokens", &max_tokens, "tokens to generate");
    f.add("batch-size", &batch, "sequences in the batched decode measurement");
    f.add(
        "lora-rank", &lora_rank,
        "rank of the adapters of all matrices in the measurement of a batch of 8 with 8 adapters; "
        "0: it is left out");
    f.add("late-position", &late_position,
          "the later of the two positions whose time per token is compared, for a model with more "
          "(--max-position-embeddings); default nine tenths of the context, 900 at most")
        .within(1, int64_t{1} << 31);
    shape.fields(f);
    f.begin_group("device");
    engine.latent_fields(f);
    f.add("inference-dynamic-batching-num-cuda-graphs", &engine.cuda_graphs,
          "on a GPU: as for megatron generate; 0: no graphs");
    training::add_bench_device(f, runtime);
    f.add("threads", &runtime.threads, "CPU threads; default all cores");
    f.common({"preset", "bf16", "prompt-tokens", "max-tokens", "batch-size", "device", "threads"});
    return read_flags(
        "megatron bench generate [flags]",
        "Measures generation with random weights (GPT-2 124M by default): decode tokens/s of 1, 8 "
        "and --batch-size sequences, compared with the machine's read bandwidth; 8 sequences with "
        "8 adapters, compared with "
        "none; prefill, compared "
        "with the GEMM peak and with training's forward pass; the time per token near the "
        "beginning and the end of the context; the time to the first token of a prompt whose "
        "beginning is in the cache.",
        f);
  }
};

}  // namespace

int measure_generate(const ReadFlags& read) {
  GenerateFlags first(settings::kDefaultPreset);
  if (const auto code = first.read(read)) return *code;
  GenerateFlags flags(first.preset);
  if (const auto code = flags.read(read)) return *code;
  const int64_t prompt = flags.prompt, max_tokens = flags.max_tokens, batch = flags.batch;
  settings::RuntimeSettings& runtime_settings = flags.runtime;
  const bool bf16 = flags.bf16;
  const models::Model model = models::model_from_flags(flags.shape, 1024);
  const int64_t positions = model->context_length();
  MG_CHECK(prompt > 0 && max_tokens >= 2 && prompt + std::min(max_tokens, positions) <= positions,
           "--prompt-tokens is {} and --max-tokens {}; they must be at least 1 and 2, and their "
           "sum at most the model's {} positions",
           prompt, max_tokens, positions);
  const int64_t early = std::min<int64_t>(100, positions / 10);
  MG_CHECK(!flags.late_position ||
               (early > 0 && *flags.late_position > early && *flags.late_position + 2 <= positions),
           "--late-position is {}; it must lie after the earlier position, {}, and at least two "
           "tokens before the end of the model's {} positions (--max-position-embeddings)",
           *flags.late_position, early, positions);
  MG_CHECK(batch > 0 && batch <= 65536, "--batch-size is {}; it must lie in [1, 65536]", batch);
  MG_CHECK(flags.lora_rank >= 0 && flags.lora_rank <= model->hidden_size(),
           "--lora-rank is {}; it must be from 0, for none, to the model's hidden size of {}",
           flags.lora_rank, model->hidden_size());
  flags.engine.check();
  runtime_settings.check();
  training::begin_on_device(runtime_settings);
  const Device device = runtime_settings.device_value();
  Runtime runtime(device, runtime_settings.threads_per_rank());
  GpuWatch watch(device);
  const DType type = bf16 ? DType::bf16 : DType::f32;
  plan::PeakMeter meter(runtime, type);
  meter.sample(1.0);
  plan::BandwidthMeter copies(runtime);
  GenerateMeasures measures(model, runtime, type, flags.engine, meter.peak());
  fmt::print("{} parameters in {}, {}; GEMM peak {:.3f} TFLOP/s\n", model->parameter_count(),
             name(type), device_text(device, runtime.pool().size()), meter.peak() * 1e-12);
  const double prefill = measures.prefill(std::min<int64_t>(512, positions));
  if (prompt != std::min<int64_t>(512, positions)) measures.prefill(prompt);
  watch.look();
  const double one = measures.decode(prompt, max_tokens, 1, copies);
  if (batch > 8) measures.decode(prompt, max_tokens, 8, copies);
  if (batch > 1) {
    const double many = measures.decode(prompt, max_tokens, batch, copies);
    const double most = std::min(static_cast<double>(batch) * one, prefill);
    fmt::print(
        "a batch of {} reaches {:.2f} of its bound, the lower of {} times one sequence's speed and "
        "the prefill speed of 512 tokens\n",
        batch, many / most, batch);
  }
  if (flags.lora_rank > 0) measures.adapters(prompt, max_tokens, 8, flags.lora_rank);
  watch.look();
  const int64_t late = flags.late_position.value_or(std::min<int64_t>(900, positions * 9 / 10));
  const int64_t count = std::min<int64_t>(40, positions - late);
  if (early > 0 && count >= 2) measures.positions(early, late, count);
  if (positions >= 1024) measures.cached_prefix(1016, 16);
  watch.look();
  if (const std::string clocks = watch.text(); !clocks.empty()) fmt::print("{}\n", clocks);
  meter.sample(1.0);
  if (meter.spread() > plan::kNoisySpread) {
    fmt::print("the GEMM peak drifted by {:.0f}% during the run: do not rely on these numbers\n",
               100 * meter.spread());
  }
  return 0;
}

}  // namespace megatron::bench
