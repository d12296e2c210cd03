#include "inference/generate.h"

#include <fmt/core.h>

#include <algorithm>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/median.h"
#include "bench/bench.h"
#include "bench/device_text.h"
#include "plan/flops.h"
#include "plan/machine_rates.h"
#include "plan/parameters.h"
#include "settings/presets.h"
#include "settings/settings.h"
#include "training/device_flag.h"

namespace megatron::bench {
namespace {

// What the decode pass of a token reads: every weight but the position table and, of the embedding,
// what serves as output weights; keys and values of the tokens before.
double bytes_of_a_token(const models::Stage& stage, double position) {
  const std::vector<plan::ParameterCount> counts = plan::count_parameters(stage);
  const bool untied =
      std::ranges::any_of(counts, [](const auto& c) { return c.group == "output"; });
  int64_t weights = 0;
  for (const plan::ParameterCount& c : counts)
    if (c.group != "position" && !(untied && c.group == "embedding")) weights += c.count;
  double cache = 0;  // elements of a token
  for (const nn::CacheGroup& group : nn::cache_groups(stage.layer_caches()))
    cache += static_cast<double>(group.token_elements);
  const DType type = stage.parameters()[0]->parameter.value.dtype();
  return static_cast<double>(size_of(type)) * (static_cast<double>(weights) + cache * position);
}

class GenerateBench {
 public:
  GenerateBench(const models::Model& model, Runtime& runtime, DType type)
      : runtime_(runtime), stage_(model.build(runtime, type, 1)) {
    models::initialize(*stage_, 1, runtime.stream());
  }

  // Seconds of each token after the first, by one sequence or several at once.
  std::vector<double> tokens(int64_t prompt, int64_t count, int64_t sequences,
                             inference::Statistics& statistics) {
    std::vector<inference::Request> requests(static_cast<size_t>(sequences));
    for (size_t i = 0; i < requests.size(); ++i) {
      requests[i].number = i;
      requests[i].max_tokens = count;
      requests[i].sampling.top_k = 40;
      for (int64_t t = 0; t < prompt; ++t)
        requests[i].prompt.push_back(
            static_cast<int32_t>((t * 7919 + 13) % stage_->model()->vocab_size()));
    }
    std::vector<double> seconds;
    double before = 0;
    inference::generate(
        *stage_, runtime_, requests, {.max_requests = sequences},
        [&](size_t request, const inference::GeneratedToken&) {
          if (request != 0) return true;
          const double now = now_seconds();
          if (before > 0) seconds.push_back(now - before);
          before = now;
          return true;
        },
        &statistics);
    return seconds;
  }

  const models::Stage& stage() const { return *stage_; }

 private:
  Runtime& runtime_;
  const std::unique_ptr<models::Stage> stage_;
};

// Memory may be shared with others: it is measured before and after.
void print_decode(GenerateBench& bench, int64_t prompt, int64_t count, int64_t sequences,
                  plan::BandwidthMeter& copies) {
  inference::Statistics s;
  const double before = copies.sample();
  const double token = median(bench.tokens(prompt, count, sequences, s));
  const double after = copies.sample(), bandwidth = (before + after) / 2;
  const double middle = static_cast<double>(prompt) + static_cast<double>(count) / 2;
  const double weights = bytes_of_a_token(bench.stage(), 0);
  const double cache = bytes_of_a_token(bench.stage(), middle) - weights;
  const double bytes = weights + cache * static_cast<double>(sequences);
  fmt::print(
      "decode, batch of {}: {:.1f} tokens/s ({:.2f} ms per step, median); reads {:.0f} MB per "
      "step, {:.1f} GB/s, {:.0f}% of the copy bandwidth ({:.1f} and {:.1f} GB/s before and "
      "after)\n",
      sequences, static_cast<double>(sequences) / token, token * 1e3, bytes * 1e-6,
      bytes / token * 1e-9, 100 * bytes / token / bandwidth, before * 1e-9, after * 1e-9);
}

void print_prefill(GenerateBench& bench, int64_t prompt, double peak) {
  double best = 1e30;
  for (int round = 0; round < 3; ++round) {
    inference::Statistics s;
    bench.tokens(prompt, 1, 1, s);
    best = std::min(best, s.prefill_seconds);
  }
  // The vocabulary's product is of the last token alone.
  const models::Model& c = bench.stage().model();
  const double head = 2.0 * static_cast<double>(c->vocab_size() * c->hidden_size());
  const double flops = c->training_flops(prompt) / 3 - head * static_cast<double>(prompt - 1);
  fmt::print("prefill of {} tokens: {:.0f} tokens/s, {:.3f} TFLOP/s, {:.0f}% of the GEMM peak\n",
             prompt, static_cast<double>(prompt) / best, flops / best * 1e-12,
             100 * flops / best / peak);
}

// Median seconds of `count` tokens from a position on, round by round in turn, so that a slow
// moment of the machine meets both.
void print_positions(GenerateBench& bench, int64_t early, int64_t late, int64_t count) {
  std::vector<double> at_early, at_late;
  inference::Statistics s;
  for (int round = 0; round < 3; ++round) {
    for (const double t : bench.tokens(early, count, 1, s)) at_early.push_back(t);
    for (const double t : bench.tokens(late, count, 1, s)) at_late.push_back(t);
  }
  fmt::print("a token at position {}: {:.2f} ms, at {}: {:.2f} ms, {:.2f} times\n", early,
             median(at_early) * 1e3, late, median(at_late) * 1e3,
             median(at_late) / median(at_early));
}

}  // namespace

namespace {

struct GenerateFlags {
  explicit GenerateFlags(std::string_view model) : shape(settings::preset_shape(model)) {}

  settings::RuntimeSettings runtime;
  std::string preset{settings::kDefaultPreset};
  bool bf16 = false;
  int64_t prompt = 128, max_tokens = 256, batch = 8;
  models::ModelFlags shape;

  std::optional<int> read(const ReadFlags& read_flags) {
    Fields f;
    f.begin_group("model");
    f.add("preset", &preset, settings::preset_names(), "a model by name; other flags win over it");
    f.begin_group("precision");
    f.add_switch("bf16", &bf16, true, "bfloat16; else fp32");
    f.begin_group("measurement");
    f.add("prompt-tokens", &prompt, "length of the prompt");
    f.add("max-tokens", &max_tokens, "tokens to generate");
    f.add("batch-size", &batch, "sequences in the batched decode measurement");
    shape.fields(f);
    f.begin_group("device");
    training::add_bench_device(f, runtime);
    f.add("threads", &runtime.threads, "CPU threads; default all cores");
    f.common({"preset", "bf16", "prompt-tokens", "max-tokens", "batch-size", "device", "threads"});
    return read_flags(
        "megatron bench generate [flags]",
        "Generation with random weights (GPT-2 124M by default): decode tokens/s against the "
        "machine's copy bandwidth, prefill against its GEMM peak, and the time per token near "
        "the beginning and the end of the context.",
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
  const int64_t positions = model->max_position_embeddings();
  MG_CHECK(prompt > 0 && max_tokens >= 2 && prompt + std::min(max_tokens, positions) <= positions,
           "--prompt-tokens is {} and --max-tokens {}; there must be 1 and 2, and together no more "
           "than the model's {} positions",
           prompt, max_tokens, positions);
  MG_CHECK(batch > 0, "--batch-size is {}; it must be positive", batch);
  runtime_settings.check();
  training::tell_device(runtime_settings);
  const Device device = runtime_settings.device_value();
  Runtime runtime(device, runtime_settings.threads_per_rank());
  GpuWatch watch(device);
  const DType type = bf16 ? DType::bf16 : DType::f32;
  plan::PeakMeter meter(runtime, type);
  meter.sample(1.0);
  plan::BandwidthMeter copies(runtime);
  GenerateBench bench(model, runtime, type);
  inference::Statistics warm_up;
  bench.tokens(prompt, 2, 1, warm_up);
  fmt::print("{} parameters in {}, {}; GEMM peak {:.3f} TFLOP/s\n", model->parameter_count(),
             name(type), device_text(device, runtime.pool().size()), meter.peak() * 1e-12);
  print_decode(bench, prompt, max_tokens, 1, copies);
  watch.look();
  if (batch > 1) print_decode(bench, prompt, max_tokens, batch, copies);
  watch.look();
  print_prefill(bench, prompt, meter.peak());
  print_prefill(bench, std::min<int64_t>(512, positions), meter.peak());
  const int64_t early = positions / 10, late = positions * 9 / 10;
  const int64_t count = std::min<int64_t>(40, positions - late);
  if (early > 0 && count >= 2) {
    print_positions(bench, positions >= 1000 ? 100 : early, positions >= 1000 ? 900 : late, count);
  }
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
