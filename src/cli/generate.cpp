#include "training/generate.h"

#include <cstdio>

#include "base/error.h"
#include "base/log.h"
#include "cli/command.h"
#include "tokenizers/tokenizer.h"
#include "training/model_source.h"
#include "training/settings.h"

namespace megatron::cli {

int generate(const Arguments& arguments) {
  std::optional<std::string> load, tokenizer_model, prompt, prompt_file;
  int64_t max_tokens = 128;
  bool bf16 = false, ignore_eos = false;
  training::SamplingOptions sampling;
  training::RuntimeSettings runtime_settings;
  int64_t seed = 1234;
  Fields f;
  f.add("load", &load, "Hugging Face model directory, or the --save directory of a run");
  f.add("tokenizer-model", &tokenizer_model,
        "tokenizer.json or its directory; default the model's");
  f.add("prompt", &prompt, "text to continue");
  f.add("prompt-file", &prompt_file, "file with the text to continue");
  f.add("max-tokens", &max_tokens, "tokens to generate at most");
  f.add("temperature", &sampling.temperature,
        "1: the model's own distribution; 0: always the most likely token");
  f.add("top-k", &sampling.top_k, "choose among the k most likely tokens; 0: all");
  f.add_switch("ignore-eos", &ignore_eos, true, "go on after an end-of-document token");
  f.add_switch("bf16", &bf16, true, "compute in bfloat16; else fp32");
  f.add("seed", &seed, "of the draws");
  f.add("threads", &runtime_settings.threads, "CPU threads; default all cores");
  f.add("device", &runtime_settings.device, {"cpu", "reference"},
        "cpu, or reference: plain loops, slow, for checking");
  if (const auto code = parse("megatron generate --load DIR --prompt TEXT [flags]",
                              "Continues a prompt.", f, {}, arguments))
    return *code;
  MG_CHECK(load.has_value(), "--load DIR is needed: the model to use");
  MG_CHECK(prompt.has_value() != prompt_file.has_value(),
           "give the text to continue by --prompt or by --prompt-file");
  MG_CHECK(max_tokens >= 0, "--max-tokens is {}; it cannot be negative", max_tokens);
  runtime_settings.seed = seed;
  runtime_settings.check();
  sampling.seed = static_cast<uint64_t>(seed);
  sampling.check();
  const checkpoint::ModelDirectory directory(training::resolve_model_directory(*load));
  const models::GptConfig config = models::config_from_hugging_face(directory.config());
  const auto tokenizer =
      tokenizers::Tokenizer::load(training::tokenizer_path(tokenizer_model, directory.path()));
  MG_CHECK(tokenizer.vocabulary_size() <= config.vocab_size,
           "the tokenizer has {} tokens and the model {}; they do not fit together",
           tokenizer.vocabulary_size(), config.vocab_size);
  sampling.vocabulary = tokenizer.vocabulary_size();
  Runtime runtime(runtime_settings.device_value(), runtime_settings.threads_per_rank());
  const auto model =
      training::load_model(directory, config, runtime, bf16 ? DType::bf16 : DType::f32, 0);
  std::vector<int32_t> tokens =
      tokenizer.encode(prompt_file ? read_file(*prompt_file) : *prompt, true);
  if (static_cast<int64_t>(tokens.size()) > config.max_position_embeddings) {
    log::warning("the prompt has {} tokens, and the model {} positions: it sees the last {} only",
                 tokens.size(), config.max_position_embeddings, config.max_position_embeddings);
  }
  tokenizers::DecodeStream stream(tokenizer);
  const auto print = [](const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  };
  for (const int32_t token : tokens) print(stream.push(token));
  training::generate(*model, runtime, tokens, max_tokens, sampling,
                     ignore_eos ? std::nullopt : tokenizer.eod(),
                     [&](int32_t token) { print(stream.push(token)); });
  print(stream.finish() + "\n");
  return 0;
}

}  // namespace megatron::cli
