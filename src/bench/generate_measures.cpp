#include "bench/generate_measures.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "base/median.h"
#include "inference/generate.h"
#include "models/adapters/lora_config.h"
#include "plan/parameters.h"

namespace megatron::bench {
namespace {

constexpr int64_t kLongestPass = 2048;  // tokens of a single prompt in a pass

Tensor integers(Runtime& runtime, const std::vector<int32_t>& values) {
  Tensor t = Tensor::empty(runtime.arena(MemoryClass::activations),
                           {static_cast<int64_t>(values.size())}, DType::i32, "bench");
  copy_from(t, std::span<const int32_t>(values), runtime.stream());
  return t;
}

}  // namespace

GenerateMeasures::GenerateMeasures(const models::Model& model, Runtime& runtime, DType type,
                                   const inference::EngineOptions& engine, double peak)
    : runtime_(runtime), engine_(engine), peak_(peak), stage_(model.build(runtime, type, 1)) {
  models::initialize(*stage_, 1, runtime.stream());
}

// Share of the experts' weights that a pass over `tokens` tokens with random routing reads.
double GenerateMeasures::share_of_experts(int64_t tokens) const {
  const std::optional<models::ExpertFacts>& experts = stage_->model()->facts().experts;
  if (!experts) return 1;
  const double chosen = static_cast<double>(experts->chosen) / static_cast<double>(experts->count);
  return 1 - std::pow(1 - chosen, static_cast<double>(tokens));
}

// Elements of weights that a decode pass of `sequences` sequences reads: all except the position
// table, the embedding unless it serves as output weights, and experts without tokens.
double GenerateMeasures::weights_of_a_pass(int64_t sequences) const {
  const std::vector<plan::ParameterCount> counts = plan::count_parameters(*stage_);
  const bool untied =
      std::ranges::any_of(counts, [](const auto& c) { return c.group == "output"; });
  int64_t weights = 0;
  for (const plan::ParameterCount& c : counts)
    if (c.group != "position" && !(untied && c.group == "embedding")) weights += c.count;
  double left_out = 0;
  for (const parallel::ParameterSpec* placed : stage_->parameters())
    if (placed->parameter.name.find(".experts.") != std::string::npos)
      left_out += static_cast<double>(placed->parameter.value.elements()) *
                  (1 - share_of_experts(sequences));
  return static_cast<double>(weights) - left_out;
}

// Bytes of a sequence of `position` tokens that a pass reads from the cache: keys and values or
// latents of all tokens, and slots.
double GenerateMeasures::cached_bytes(double position) const {
  const auto element =
      static_cast<double>(size_of(stage_->parameters()[0]->parameter.value.dtype()));
  double bytes = 0;
  for (const nn::CacheGroup& group : nn::cache_groups(stage_->layer_caches()))
    bytes += position * element * static_cast<double>(group.token_elements) +
             static_cast<double>(group.slot_bytes);
  return bytes;
}

// FLOPs of the scores of one query and of the weighted sums of values, over `position` tokens in
// all layers. Absorbed latent attention has latents with rotary keys as keys, and latents as
// values; plain latent attention computes the keys and values of all tokens again.
double GenerateMeasures::attention_flops(double position) const {
  const models::ModelFacts facts = stage_->model()->facts();
  if (!facts.attention) return 0;
  const models::AttentionFacts& attention = *facts.attention;
  auto widths = static_cast<double>(2 * attention.head_size);
  if (const auto& latent = attention.latent) {
    const int64_t head = attention.head_size - latent->rotated + latent->value_size;
    const bool absorbed = engine_.latent_decode == inference::LatentDecode::absorbed;
    widths = static_cast<double>(absorbed ? 2 * latent->rank + latent->rotated
                                          : latent->rotated + head + latent->rank * head);
  }
  const std::string& pattern = facts.hybrid_pattern;
  const int64_t layers =
      pattern.empty() ? facts.num_layers
                      : std::ranges::count_if(pattern, [](char c) { return c == '*' || c == '+'; });
  return 2 * position * static_cast<double>(layers * attention.heads) * widths;
}

std::vector<int32_t> GenerateMeasures::prompt_of(int64_t length, int64_t number) const {
  std::vector<int32_t> tokens;
  for (int64_t t = 0; t < length; ++t)
    tokens.push_back(
        static_cast<int32_t>((t * 7919 + 13 + number * 104'729) % stage_->model()->vocab_size()));
  return tokens;
}

std::vector<double> GenerateMeasures::tokens(int64_t prompt, int64_t count, int64_t sequences,
                                             inference::Statistics& statistics,
                                             const Adapters& adapters) {
  std::vector<inference::Request> requests(static_cast<size_t>(sequences));
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].number = i;
    requests[i].max_tokens = count;
    requests[i].sampling.top_k = 40;
    requests[i].prompt = prompt_of(prompt, static_cast<int64_t>(i));
    if (!adapters.empty()) requests[i].adapter = adapters.at(i);
  }
  std::vector<double> seconds;
  double before = 0;
  // One pass reads all prompts, so that every later pass has one token per sequence; the prompt of
  // a single sequence that goes on may take several.
  const int64_t pass = std::max<int64_t>(
      512, sequences > 1 || count == 1 ? sequences * prompt : std::min(prompt, kLongestPass));
  inference::EngineOptions options = engine_;
  options.max_requests = sequences;
  options.max_tokens = pass;
  inference::generate(
      *stage_, runtime_, requests, options,
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

double GenerateMeasures::decode(int64_t prompt, int64_t count, int64_t sequences,
                                plan::BandwidthMeter& memory) {
  const bool host = runtime_.device().is_host();
  const auto sample = [&] { return host ? memory.sample_reading() : memory.sample(); };
  inference::Statistics s;
  const double before = sample();
  const double token = median(tokens(prompt, count, sequences, s));
  const double after = sample(), bandwidth = (before + after) / 2;
  const double middle = static_cast<double>(prompt) + static_cast<double>(count) / 2;
  const DType type = stage_->parameters()[0]->parameter.value.dtype();
  const auto n = static_cast<double>(sequences);
  const double bytes =
      static_cast<double>(size_of(type)) * weights_of_a_pass(sequences) + n * cached_bytes(middle);
  const double flops = n * (2 * weights_of_a_pass(1) + attention_flops(middle));
  const double floor = std::max(bytes / bandwidth, flops / peak_);
  const double rate = static_cast<double>(sequences) / token;
  const double all = s.prefill_seconds + s.decode_seconds;
  fmt::print(
      "decode, batch of {}: {:.1f} tokens/s ({:.2f} ms per step, median; {:.1f}% of a step in "
      "sampling, {:.1f}% between passes); reads {:.0f} MB per step, {:.1f} GB/s, {:.0f}% of the {} "
      "bandwidth ({:.1f} and {:.1f} GB/s before and after); {:.2f} GFLOP per step; {:.0f}% of the "
      "machine's limit, which is its {}\n",
      sequences, rate, token * 1e3, 100 * s.draw_seconds / all, 100 * s.between_seconds / all,
      bytes * 1e-6, bytes / token * 1e-9, 100 * bytes / token / bandwidth,
      host ? "reading" : "copy", before * 1e-9, after * 1e-9, flops * 1e-9, 100 * floor / token,
      bytes / bandwidth > flops / peak_ ? "bandwidth" : "GEMM peak");
  if (s.graph_launches > 0)
    fmt::print(
        "  {} of {} passes were launched as CUDA graphs; {} graphs were captured, which use {:.1f} "
        "MB\n",
        s.graph_launches, s.steps, s.graphs_recorded, static_cast<double>(s.graph_bytes) * 1e-6);
  return rate;
}

void GenerateMeasures::adapters(int64_t prompt, int64_t count, int64_t sequences, int64_t rank) {
  models::LoraConfig config;
  config.rank = rank;
  config.all_linear = true;
  config.init = models::LoraInit::random;
  const models::Model model =
      stage_->model()->with({.adapter = std::make_shared<const models::LoraConfig>(config)});
  const DType type = stage_->parameters()[0]->parameter.value.dtype();
  const int64_t bytes = inference::adapter_bytes(model, type);
  inference::AdapterMemory memory(runtime_.device(), sequences, bytes);
  Adapters adapters;
  for (int64_t i = 0; i < sequences; ++i) {
    const auto adapter = std::make_shared<inference::Adapter>(model, memory.take(), type,
                                                              inference::Adapter::next_number());
    for (parallel::ParameterSpec* tensor : adapter->tensors())
      parallel::initialize(*tensor, adapter->number(), adapter->runtime().stream());
    adapter->runtime().stream().synchronize();
    adapters.push_back(adapter);
  }
  std::vector<double> without, with;
  inference::Statistics s;
  for (int round = 0; round < 3; ++round) {
    for (const double t : tokens(prompt, count, sequences, s)) without.push_back(t);
    for (const double t : tokens(prompt, count, sequences, s, adapters)) with.push_back(t);
  }
  const double n = static_cast<double>(sequences), base = median(without), adapted = median(with);
  fmt::print(
      "decode, batch of {} with {} adapters of rank {} ({:.1f} MB each): {:.1f} tokens/s, without "
      "adapters {:.1f}; ratio {:.2f}\n",
      sequences, sequences, rank, static_cast<double>(bytes) * 1e-6, n / adapted, n / base,
      base / adapted);
}

double GenerateMeasures::prefill_seconds(int64_t prompt) {
  inference::Statistics s;
  tokens(prompt, 1, 1, s);
  return s.prefill_seconds;
}

// The forward pass and loss of training's evaluation.
double GenerateMeasures::forward_seconds(int64_t length) {
  const std::vector<int32_t> ids = prompt_of(length, 0);
  std::vector<int32_t> positions(ids.size());
  for (size_t t = 0; t < positions.size(); ++t) positions[t] = static_cast<int32_t>(t);
  const DType type = kernels::accumulator(stage_->parameters()[0]->parameter.value.dtype());
  Tensor weights = Tensor::empty(runtime_.arena(MemoryClass::activations), {length}, type, "bench");
  copy_from(weights, std::span<const double>(std::vector<double>(ids.size(), 1.0)),
            runtime_.stream());
  const nn::Batch batch{.layout = {.sequences = 1, .length = length},
                        .tokens = integers(runtime_, ids),
                        .positions = integers(runtime_, positions),
                        .labels = integers(runtime_, ids),
                        .loss_weights = weights};
  runtime_.stream().synchronize();
  const double begin = now_seconds();
  Tape tape(runtime_, Tape::Mode::infer);
  const Bundle out = models::forward(*stage_, tape, {}, batch, models::Phase::evaluate);
  models::head_loss(*stage_, tape, out, batch);
  runtime_.stream().synchronize();
  return now_seconds() - begin;
}

double GenerateMeasures::prefill(int64_t prompt) {
  double best = 1e30, forward = 1e30;
  for (int round = 0; round < 3; ++round) {
    best = std::min(best, prefill_seconds(prompt));
    forward = std::min(forward, forward_seconds(prompt));
  }
  // Only the last token goes through the output layer.
  const models::Model& c = stage_->model();
  const double head = 2.0 * static_cast<double>(c->vocab_size() * c->hidden_size());
  const double whole = c->training_flops(prompt) / 3;
  const double share = (whole - head * static_cast<double>(prompt - 1)) / best / peak_;
  const double of_forward = whole / forward / peak_;
  const double rate = static_cast<double>(prompt) / best;
  fmt::print(
      "prefill of {} tokens: {:.0f} tokens/s, {:.0f}% of the GEMM peak; training's forward pass "
      "{:.0f}%; ratio {:.2f}\n",
      prompt, rate, 100 * share, 100 * of_forward, share / of_forward);
  return rate;
}

// Alternates between the two in rounds, so that a slow phase of the machine affects both.
void GenerateMeasures::positions(int64_t early, int64_t late, int64_t count) {
  std::vector<double> at_early, at_late;
  inference::Statistics s;
  for (int round = 0; round < 3; ++round) {
    for (const double t : tokens(early, count, 1, s)) at_early.push_back(t);
    for (const double t : tokens(late, count, 1, s)) at_late.push_back(t);
  }
  fmt::print("a token at position {}: {:.2f} ms, at {}: {:.2f} ms, {:.2f} times as long\n", early,
             median(at_early) * 1e3, late, median(at_late) * 1e3,
             median(at_late) / median(at_early));
}

void GenerateMeasures::cached_prefix(int64_t prompt, int64_t rest) {
  inference::EngineOptions options = engine_;
  options.max_requests = 2;
  options.max_tokens = prompt;
  options.max_length = prompt + 1;
  inference::Engine engine(*stage_, runtime_, options);
  const auto first_token = [&](std::vector<int32_t> tokens) {
    const double begin = now_seconds();
    engine.submit({.prompt = std::move(tokens), .max_tokens = 1});
    while (!engine.idle()) engine.step();
    return now_seconds() - begin;
  };
  std::vector<double> cached, whole;
  for (int64_t round = 0; round < 3; ++round) {
    std::vector<int32_t> tokens = prompt_of(prompt, 2 * round + 1);
    whole.push_back(first_token(tokens));
    const std::vector<int32_t> other = prompt_of(prompt, 2 * round + 2);
    std::copy(other.end() - rest, other.end(), tokens.end() - rest);
    cached.push_back(first_token(tokens));
  }
  fmt::print(
      "time to the first token of a prompt of {} tokens: {:.2f} ms; with the first {} of them in "
      "the cache: {:.2f} ms, {:.1f} times faster\n",
      prompt, median(whole) * 1e3, prompt - rest, median(cached) * 1e3,
      median(whole) / median(cached));
}

}  // namespace megatron::bench
