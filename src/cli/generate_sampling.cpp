#include "cli/generate_sampling.h"

#include <optional>

#include "base/error.h"
#include "base/text_parts.h"
#include "inference/request.h"
#include "inference/stop_text.h"

namespace megatron::cli {
namespace {

std::optional<int32_t> parse_id(std::string_view text) {
  const auto id = parse_number<int32_t>(text);
  return id && *id >= 0 ? id : std::nullopt;
}

std::map<int32_t, double> parse_logit_bias(const std::vector<std::string>& values) {
  std::map<int32_t, double> bias;
  for (const std::string& text : values) {
    std::string_view rest = text;
    const auto id = parse_id(take_until(rest, ':'));
    const auto value = parse_number<double>(rest);
    MG_CHECK(
        id && value,
        "--logit-bias is '{}'; give a token id and the value to add to its logit, such as 262:-100",
        text);
    MG_CHECK(bias.emplace(*id, *value).second, "--logit-bias names token {} twice; give one value",
             *id);
  }
  return bias;
}

std::vector<int32_t> parse_ids(const std::vector<std::string>& values) {
  std::vector<int32_t> ids;
  for (const std::string& text : values) {
    const auto id = parse_id(text);
    MG_CHECK(id.has_value(), "--stop-token-ids is '{}'; give token ids, such as 262", text);
    ids.push_back(*id);
  }
  return ids;
}

}  // namespace

void SamplingSettings::fields(Fields& f) {
  f.begin_group("sampling");
  f.add("max-tokens", &max_tokens, "max tokens to generate per prompt");
  f.add("min-tokens", &options.min_tokens,
        "min tokens to generate; end tokens and --stop-token-ids are not sampled earlier");
  f.add("stop", &stop, "strings that end the generation; they are not part of the output");
  f.add("stop-token-ids", &stop_token_ids_,
        "token ids that end the generation, in addition to the model's end tokens");
  f.add_switch("ignore-eos", &ignore_eos, true,
               "continue after the model's end tokens (eos_token_id)");
  f.add("temperature", &options.temperature,
        "sampling temperature; 1: the model's own distribution; 0: greedy");
  f.add("top-k", &options.top_k, "sample from the k most likely tokens; 0: all");
  f.add("top-p", &options.top_p,
        "nucleus sampling: sample from the smallest set of most likely tokens with at least this "
        "total probability; 1: all");
  f.add("min-p", &options.min_p,
        "min-p: sample from tokens whose probability is at least this fraction of the most likely "
        "token's; 0: all");
  f.add("repetition-penalty", &options.repetition_penalty,
        "values above 1 make tokens that are already in the text less likely");
  f.add("presence-penalty", &options.presence_penalty,
        "subtract this from the logits of tokens that were already generated; -2 to 2");
  f.add("frequency-penalty", &options.frequency_penalty,
        "subtract this from the logit of a token for each time it was already generated; -2 to 2");
  f.add("logit-bias", &logit_bias_,
        "token ids and values to add to their logits, as ID:VALUE; values from -100 to 100");
  f.add("num-beams", &num_beams_,
        "beam search instead of sampling: continue this many texts at a time, and return the best")
      .within(1, inference::BeamOptions::kMostBeams);
  f.add("num-return-sequences", &num_return_sequences_,
        "with --num-beams: number of texts to return, the best ones; default 1")
      .within(1, inference::BeamOptions::kMostBeams);
  f.add("length-penalty", &length_penalty_,
        "with --num-beams: exponent p of a text's score, log-probability / tokens^p; above 0 "
        "favours long texts, below 0 short ones; default 1");
  f.add_enum<inference::EarlyStopping>(
      "early-stopping", &early_stopping_,
      {{"false", inference::EarlyStopping::no},
       {"true", inference::EarlyStopping::yes},
       {"never", inference::EarlyStopping::never}},
      "with --num-beams: stop once there are as many whole texts as beams (true), once the best "
      "beam, as it is, scores no better than the worst of them (false), or once none that "
      "continues can (never)");
  f.add("seed", &seed,
        "random seed; a sampled token depends on the seed, the prompt's position among the "
        "prompts, and the token's position");
}

// Excludes what beam search does not take here; Request::check() excludes sampling options.
void SamplingSettings::check_beams() {
  if (!num_beams_) {
    const auto needs_beams = [](bool given, const char* flag) {
      MG_CHECK(!given, "{} belongs to beam search; give --num-beams, too", flag);
    };
    needs_beams(num_return_sequences_.has_value(), "--num-return-sequences");
    needs_beams(length_penalty_.has_value(), "--length-penalty");
    needs_beams(early_stopping_ != inference::EarlyStopping::no, "--early-stopping");
    return;
  }
  MG_CHECK(stop.empty(),
           "--num-beams and --stop exclude each other: beams end at tokens; give --stop-token-ids");
  beams = inference::BeamOptions{};
  beams->beams = *num_beams_;
  beams->returned = num_return_sequences_.value_or(beams->returned);
  beams->length_penalty = length_penalty_.value_or(beams->length_penalty);
  beams->early_stopping = early_stopping_;
  inference::Request request;
  request.max_tokens = max_tokens;
  request.sampling = options;
  request.beams = beams;
  request.check_beams();
}

void SamplingSettings::check() {
  MG_CHECK(max_tokens >= 0, "--max-tokens is {}; it cannot be negative", max_tokens);
  const inference::StopText stops(stop);
  options.logit_bias = parse_logit_bias(logit_bias_);
  stop_tokens = parse_ids(stop_token_ids_);
  options.seed = static_cast<uint64_t>(seed);
  options.check();
  MG_CHECK(
      options.min_tokens <= max_tokens,
      "--min-tokens is {}, but --max-tokens is only {}; lower --min-tokens or raise --max-tokens",
      options.min_tokens, max_tokens);
  check_beams();
}

void SamplingSettings::check_ids(int64_t vocabulary) const {
  const auto check = [&](const char* flag, int32_t id) {
    MG_CHECK(id < vocabulary, "{} names token {}, but the tokenizer has only {} tokens", flag, id,
             vocabulary);
  };
  for (const int32_t id : stop_tokens) check("--stop-token-ids", id);
  for (const auto& [id, bias] : options.logit_bias) check("--logit-bias", id);
}

}  // namespace megatron::cli
