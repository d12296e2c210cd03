#include "cli/generate_output.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/command_output.h"
#include "base/json.h"
#include "inference/expert_choices.h"

namespace megatron::cli {
namespace {

std::string_view name(inference::Finish finish) {
  constexpr std::string_view kNames[] = {"length", "end_token", "stop", "positions"};
  return kNames[static_cast<size_t>(finish)];
}

Json integers(std::span<const int32_t> ids) {
  Json::Array all;
  for (const int32_t id : ids) all.emplace_back(int64_t{id});
  return Json(std::move(all));
}

Json ids_of(const std::vector<inference::GeneratedToken>& tokens) {
  Json::Array ids;
  for (const auto& token : tokens) ids.emplace_back(int64_t{token.draw.token});
  return Json(std::move(ids));
}

void add_log_probabilities(const std::vector<inference::GeneratedToken>& tokens,
                           Json::Object& object) {
  Json::Array log_probabilities, alternatives;
  for (const auto& token : tokens) {
    log_probabilities.emplace_back(token.draw.log_probability);
    Json::Array others;
    for (const auto& other : token.alternatives)
      others.emplace_back(Json::Array{int64_t{other.token}, other.log_probability});
    alternatives.emplace_back(std::move(others));
  }
  object.emplace_back("logprobs", std::move(log_probabilities));
  object.emplace_back("top_logprobs", std::move(alternatives));
}

std::string quoted(const tokenizers::Tokenizer& tokenizer, int32_t id) {
  return Json(tokenizer.decode(std::span(&id, 1))).dump();
}

void print_tokens(const std::vector<inference::GeneratedToken>& tokens,
                  const tokenizers::Tokenizer& tokenizer) {
  if (tokens.empty()) return;
  fmt::print("\n{:>10}  token\n", "log-prob");
  for (const auto& token : tokens) {
    fmt::print("{:>10.4f}  {}", token.draw.log_probability, quoted(tokenizer, token.draw.token));
    for (size_t i = 0; i < token.alternatives.size(); ++i) {
      const auto& other = token.alternatives[i];
      fmt::print("{}{} {:.4f}", i == 0 ? "   of " : ", ", quoted(tokenizer, other.token),
                 other.log_probability);
    }
    fmt::print("\n");
  }
}

}  // namespace

GrowingText::GrowingText(const tokenizers::Tokenizer& tokenizer, std::span<const int32_t> prompt,
                         const std::vector<std::string>& stops, std::vector<int32_t> end_tokens)
    : stream_(tokenizer), stop_(stops), end_tokens_(std::move(end_tokens)) {
  for (const int32_t token : prompt) prompt_ += stream_.push(token);
}

std::string GrowingText::keep(std::string piece) {
  text_ += piece;
  return piece;
}

std::string GrowingText::push(int32_t token) {
  if (std::ranges::find(end_tokens_, token) != end_tokens_.end()) return {};
  return keep(stop_.push(stream_.push(token)));
}

std::string GrowingText::finish() {
  const std::string last = stop_.push(stream_.finish());
  return keep(last + stop_.finish());
}

std::vector<std::string> texts_of_beams(const inference::Generation& generation,
                                        const tokenizers::Tokenizer& tokenizer,
                                        std::span<const int32_t> prompt,
                                        const std::vector<int32_t>& end_tokens) {
  std::vector<std::string> texts;
  for (const inference::BeamResult& beam : generation.beams) {
    GrowingText text(tokenizer, prompt, {}, end_tokens);
    for (const auto& token : beam.tokens) text.push(token.draw.token);
    text.finish();
    texts.push_back(text.text());
  }
  return texts;
}

std::string json_line(const Continuation& c, size_t request, const LineParts& parts) {
  const inference::Generation& generation = c.generation;
  Json::Object line = {{"request", static_cast<int64_t>(request)},
                       {"prompt", c.prompt},
                       {"text", c.text},
                       {"finish", name(generation.finish)},
                       {"prompt_tokens", integers(c.prompt_tokens)},
                       {"tokens", ids_of(generation.tokens)}};
  if (parts.logprobs) {
    Json::Array of_prompt = {Json()};
    for (const double p : generation.prompt_log_probabilities) of_prompt.emplace_back(p);
    add_log_probabilities(generation.tokens, line);
    if (parts.predicts_prompts) line.emplace_back("prompt_logprobs", std::move(of_prompt));
  }
  Json::Array beams;
  for (size_t b = 0; b < generation.beams.size(); ++b) {
    const inference::BeamResult& beam = generation.beams[b];
    Json::Object of_beam = {{"text", c.beam_texts[b]},
                            {"finish", name(beam.finish)},
                            {"score", beam.score},
                            {"tokens", ids_of(beam.tokens)}};
    if (parts.logprobs) add_log_probabilities(beam.tokens, of_beam);
    beams.emplace_back(std::move(of_beam));
  }
  if (!beams.empty()) line.emplace_back("beams", std::move(beams));
  if (parts.routed_experts)
    line.emplace_back("routed_experts", inference::expert_choices_json(c.generation.expert_choices,
                                                                       *parts.routed_experts));
  return Json(std::move(line)).dump();
}

bool is_generate_output(std::string_view beginning) {
  return beginning.starts_with(R"({"request": )") &&
         first_line(beginning).find(R"("prompt": )") != beginning.npos;
}

void print_log_probabilities(const Continuation& c, const tokenizers::Tokenizer& tokenizer) {
  const std::vector<double>& of_prompt = c.generation.prompt_log_probabilities;
  if (!of_prompt.empty()) {
    const double mean = std::accumulate(of_prompt.begin(), of_prompt.end(), 0.0) /
                        static_cast<double>(of_prompt.size());
    fmt::print("\nprompt: mean log-probability {:.4f} of tokens 2 to {}, perplexity {:.2f}\n", mean,
               of_prompt.size() + 1, std::exp(-mean));
  }
  if (c.generation.beams.size() < 2) return print_tokens(c.generation.tokens, tokenizer);
  for (const inference::BeamResult& beam : c.generation.beams) print_tokens(beam.tokens, tokenizer);
}

void print_beams(const Continuation& c, const std::string& title) {
  for (size_t b = 0; b < c.beam_texts.size(); ++b)
    fmt::print("{}== {}text {} of {}, score {:.6g}\n{}\n", b == 0 ? "" : "\n", title, b + 1,
               c.beam_texts.size(), c.generation.beams[b].score, c.beam_texts[b]);
}

void print_statistics(const inference::Statistics& s) {
  std::string line = fmt::format("{} prompt tokens", s.prompt_tokens);
  if (s.prefill_seconds > 0) {
    line +=
        fmt::format(", {:.0f} tokens/s", static_cast<double>(s.prompt_tokens) / s.prefill_seconds);
  }
  line += fmt::format(" | {} generated tokens", s.generated_tokens);
  if (s.decode_seconds > 0) {
    line +=
        fmt::format(", {:.1f} tokens/s", static_cast<double>(s.decoded_tokens) / s.decode_seconds);
  }
  if (s.graph_launches > 0) {
    line += fmt::format(" | {} of {} passes launched as CUDA graphs ({} captured, {:.1f} MB)",
                        s.graph_launches, s.steps, s.graphs_recorded,
                        static_cast<double>(s.graph_bytes) * 1e-6);
  }
  fmt::print(stderr, "{}\n", line);
}

}  // namespace megatron::cli
