#include "inference/generate.h"

#include <cstdio>
#include <iostream>

#include "base/command_output.h"
#include "base/error.h"
#include "base/log.h"
#include "base/thread_pool.h"
#include "cli/command.h"
#include "cli/engine_flags.h"
#include "cli/generate_lines.h"
#include "cli/generate_masks.h"
#include "cli/generate_output.h"
#include "cli/generate_prompts.h"
#include "cli/generate_sampling.h"
#include "cli/model_rank.h"
#include "inference/end_tokens.h"
#include "inference/fill_mask.h"
#include "inference/follow.h"
#include "settings/settings.h"
#include "tokenizers/tokenizer.h"
#include "training/device_flag.h"
#include "training/model_source.h"

namespace megatron::cli {
namespace {

struct GenerateSettings {
  training::ModelToRead model;
  std::optional<std::string> output;
  settings::TokenizerSettings tokenizer;
  PromptSettings prompts;
  SamplingSettings sampling;
  EngineFlags engine;
  EngineRankFlags ranks;
  std::optional<int64_t> logprobs;
  bool routed_experts = false, fill_mask = false;
  bool bf16 = false;
  settings::RuntimeSettings runtime;

  Fields fields();
  void check();
  void join(const comm::Processes& processes);
  void check_output() const;
  Json::Object flags_of_texts;  // flags that texts depend on
};

Fields GenerateSettings::fields() {
  Fields f;
  f.begin_group("model");
  model.fields(f);
  prompts.fields(f);
  f.add_switch("fill-mask", &fill_mask, true,
               "an encoder: print the --top-k (5) most likely tokens at each mask ([MASK]) of the "
               "prompts as JSON");
  sampling.fields(f);
  f.begin_group("tokenizer");
  tokenizer.fields(f);
  f.begin_group("output");
  f.add(
      "logprobs", &logprobs,
      "print the log-probability of each token, and of this many of the most likely alternatives");
  f.add("output", &output,
        "write JSON lines to this file instead of printing; an existing file is overwritten only "
        "if generate wrote it; after an interruption the same command continues");
  f.add_switch("return-routed-experts", &routed_experts, true,
               "with --output: list the experts that each token was sent to, by layer");
  engine.fields(f);
  engine.latent_fields(f);
  ranks.fields(f);
  f.begin_group("precision");
  f.add_switch("bf16", &bf16, true, "compute in bfloat16 instead of fp32");
  f.begin_group("device");
  f.add("threads", &runtime.threads, "CPU threads per rank; default cores / ranks");
  runtime.add_device(f);
  f.common({"load", "adapter", "tokenizer-model", "prompt", "prompt-file", "interactive",
            "max-tokens", "stop", "fill-mask", "temperature", "top-k", "top-p", "seed", "logprobs",
            "output", "bf16", "threads", "device"});
  return f;
}

void GenerateSettings::check() {
  MG_CHECK(model.load || model.adapter, "--load DIR is needed: the model to use");
  MG_CHECK(logprobs.value_or(0) >= 0, "--logprobs is {}; it cannot be negative", *logprobs);
  MG_CHECK(!routed_experts || output,
           "--return-routed-experts lists experts in the file of --output; give one");
  MG_CHECK(!routed_experts || !sampling.beams,
           "--num-beams and --return-routed-experts exclude each other: experts are listed for one "
           "text; drop one of them");
  engine.check();
  sampling.check();
  MG_CHECK(!sampling.beams || sampling.beams->beams <= engine.options().max_requests,
           "--num-beams is {}, but --inference-dynamic-batching-max-requests is only {}; raise the "
           "latter, or use fewer beams",
           sampling.beams->beams, engine.options().max_requests);
  MG_CHECK(!fill_mask || !prompts.is_conversation(),
           "--fill-mask prints tokens for the masks of --prompt or --prompt-file; drop "
           "--interactive");
  if (!prompts.interactive) return;
  MG_CHECK(prompts.prompts.empty() && !prompts.file,
           "--interactive reads its text line by line; drop --prompt and --prompt-file");
  MG_CHECK(!output && !logprobs, "--interactive writes text only; drop --output and --logprobs");
  MG_CHECK(!sampling.beams || sampling.beams->returned == 1,
           "--interactive continues one text; drop --num-return-sequences");
}

void GenerateSettings::join(const comm::Processes& processes) {
  ranks.check(processes);
  runtime.ranks = ranks.ranks();
  runtime.seed = sampling.seed;
  runtime.join(processes);
  runtime.check();
}

void GenerateSettings::check_output() const {
  if (!output) return;
  std::vector<std::string> inputs;
  if (prompts.file) inputs.push_back(*prompts.file);
  for (const auto& file : {tokenizer.tokenizer_model, tokenizer.vocab_file, tokenizer.merge_file})
    if (file) inputs.push_back(*file);
  megatron::check_output({*output, "--output", {"an output of generate", is_generate_output}},
                         inputs);
}

void print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

models::Model checked_model(const checkpoint::ModelDirectory& directory,
                            const GenerateSettings& s) {
  models::Model model = models::model_of(directory);
  if (s.fill_mask) inference::require_masked_model(model, "megatron generate --fill-mask");
  else models::require_generating_model(model, "megatron generate");
  return models::with_context_length(model, s.engine.options().max_length);
}

// A model with its tokenizer, checked before any weight is read.
struct TextModel {
  explicit TextModel(const GenerateSettings& s)
      : directory(s.model.open("to use")),
        model(checked_model(directory, s)),
        opened(training::open_tokenizer(s.tokenizer, training::tokenizer_directory(directory),
                                        model->vocab_size())),
        tokenizer(*opened.tokenizer) {
    MG_CHECK(s.logprobs.value_or(0) <= tokenizer.vocabulary_size(),
             "--logprobs is {}, but the tokenizer has only {} tokens", *s.logprobs,
             tokenizer.vocabulary_size());
    MG_CHECK(!s.routed_experts || model->facts().experts,
             "--return-routed-experts is given, but the model in {} has no layer with experts",
             directory.path());
    s.sampling.check_ids(tokenizer.vocabulary_size());
    end_tokens = s.sampling.stop_tokens;
    if (s.sampling.ignore_eos) return;
    const std::vector<int32_t> own =
        inference::end_tokens({directory.path(), directory.base_path()}, tokenizer);
    end_tokens.insert(end_tokens.end(), own.begin(), own.end());
  }

  checkpoint::ModelDirectory directory;
  models::Model model;
  training::ModelTokenizer opened;
  const tokenizers::Tokenizer& tokenizer;
  std::vector<int32_t> end_tokens;  // includes those of --stop-token-ids
};

// numbers: numbers of the prompts, which select their random numbers; by default 0, 1, ... Called
// for each token, and for each prompt whose text is complete.
struct Listener {
  std::vector<size_t> numbers = {};
  std::function<void()> on_token = {};
  inference::OnDone on_done = {};
};

// Generates continuations of texts.
class Session {
 public:
  Session(const GenerateSettings& settings, const TextModel& text, ModelRank& rank)
      : settings_(settings),
        model_(text.model),
        tokenizer_(text.tokenizer),
        rank_(rank),
        followers_(rank.ranks),
        end_tokens_(text.end_tokens) {}

  const tokenizers::Tokenizer& tokenizer() const { return tokenizer_; }
  const std::vector<int32_t>& end_tokens() const { return end_tokens_; }
  const inference::Statistics& statistics() const { return statistics_; }
  bool failed() const { return rank_.ranks.failed(); }  // permanently

  // Never empty: an empty prompt is encoded as the beginning-of-sequence or the end-of-document
  // token.
  std::vector<int32_t> encode(const std::string& prompt) const {
    std::vector<int32_t> tokens =
        tokenizer_.encode(prompt, settings_.tokenizer.hf_include_special_tokens);
    if (!tokens.empty()) return tokens;
    const std::optional<int32_t> begin = tokenizer_.bos() ? tokenizer_.bos() : tokenizer_.eod();
    MG_CHECK(begin.has_value(),
             "the prompt is empty, and the tokenizer has neither a beginning-of-text nor an "
             "end-of-document token to start from; give some text");
    return {*begin};
  }

  // Tokens that the text of a prompt follows.
  std::vector<int32_t> given(const std::vector<int32_t>& prompt) const {
    return inference::Request{.prompt = prompt}.given(model_->facts());
  }
  // True if an encoder reads the prompts, which the texts do not continue.
  bool encodes() const { return model_->facts().encoder_layers > 0; }

  // If a prompt leaves no room, keeps its last tokens so that the requested text fits, but at least
  // half of the positions; for an encoder, which leaves the text its own, all of them.
  void fit(std::vector<int32_t>& tokens) const {
    const int64_t positions = model_->context_length();
    const auto length = static_cast<int64_t>(tokens.size());
    if (length <= positions) return;
    const int64_t kept =
        encodes() ? positions : positions - std::min(settings_.sampling.max_tokens, positions / 2);
    log::warning(
        "the prompt has {} tokens, but the model has only {} positions: it sees only the last {}",
        length, positions, kept);
    tokens.erase(tokens.begin(), tokens.end() - kept);
  }

  // Generates all continuations and appends them to `texts`. streams: prints text as it becomes
  // certain.
  std::vector<inference::Generation> run(const std::vector<std::vector<int32_t>>& prompts,
                                         std::vector<GrowingText>& texts, bool streams,
                                         const Listener& listener = {}) {
    std::vector<inference::Request> requests;
    for (size_t i = 0; i < prompts.size(); ++i) {
      inference::Request request{.number = listener.numbers.empty() ? i : listener.numbers[i],
                                 .prompt = prompts[i],
                                 .max_tokens = settings_.sampling.max_tokens,
                                 .sampling = settings_.sampling.options,
                                 .end_tokens = end_tokens_,
                                 .logprobs = settings_.logprobs.value_or(-1),
                                 .expert_choices = settings_.routed_experts,
                                 .beams = settings_.sampling.beams};
      texts.emplace_back(tokenizer_, request.given(model_->facts()), settings_.sampling.stop,
                         end_tokens_);
      requests.push_back(std::move(request));
    }
    inference::EngineOptions options = settings_.engine.options();
    options.vocabulary = tokenizer_.vocabulary_size();
    auto results = inference::generate(
        *rank_.stage, rank_.runtime, requests, options,
        [&](size_t request, const inference::GeneratedToken& token) {
          const std::string piece = texts[request].push(token.draw.token);
          if (streams) print(piece);
          if (listener.on_token) listener.on_token();
          return !texts[request].stopped();
        },
        &statistics_, rank_.ranks,
        [&](size_t request, const inference::Generation& generation) {
          const std::string rest = texts[request].finish();
          if (streams) print(rest + "\n");
          if (listener.on_done) listener.on_done(request, generation);
        });
    return results;
  }

 private:
  const GenerateSettings& settings_;
  const models::Model& model_;
  const tokenizers::Tokenizer& tokenizer_;
  ModelRank& rank_;
  const inference::Followers followers_;
  std::vector<int32_t> end_tokens_;
  inference::Statistics statistics_;
};

// Tokens of a prompt as the model reads them.
std::vector<int32_t> tokens_of(const Session& session, const std::string& prompt) {
  std::vector<int32_t> tokens = session.encode(prompt);
  session.fit(tokens);
  return tokens;
}

LineParts parts_of(const GenerateSettings& s, const TextModel& text) {
  LineParts parts{.logprobs = s.logprobs.has_value(),
                  .predicts_prompts = text.model->facts().encoder_layers == 0};
  if (s.routed_experts) parts.routed_experts = text.model->facts().experts;
  return parts;
}

void write_continuations(Session& session, const GenerateSettings& s, const TextModel& model,
                         const std::vector<std::string>& prompts) {
  ContinuationLines lines({.output = *s.output,
                           .model = training::fingerprint(model.directory),
                           .tokenizer = model.opened.path,
                           .flags = s.flags_of_texts,
                           .parts = parts_of(s, model)},
                          prompts);
  Listener listener{.numbers = lines.missing()};
  std::vector<std::vector<int32_t>> tokens;
  for (const size_t number : listener.numbers)
    tokens.push_back(tokens_of(session, prompts[number]));
  std::vector<GrowingText> texts;
  texts.reserve(tokens.size());
  listener.on_token = [&] { lines.count_token(); };
  listener.on_done = [&](size_t i, const inference::Generation& generation) {
    const size_t number = listener.numbers[i];
    lines.add(number, {prompts[number], tokens[i], texts[i].text(), generation,
                       texts_of_beams(generation, session.tokenizer(), session.given(tokens[i]),
                                      session.end_tokens())});
  };
  session.run(tokens, texts, false, listener);
  lines.commit();
}

void print_continuations(Session& session, const GenerateSettings& s,
                         const std::vector<std::string>& prompts) {
  std::vector<Continuation> all(prompts.size());
  std::vector<std::vector<int32_t>> tokens(prompts.size());
  for (size_t i = 0; i < prompts.size(); ++i) {
    all[i].prompt = prompts[i];
    tokens[i] = tokens_of(session, prompts[i]);
    all[i].prompt_tokens = tokens[i];
  }
  const bool several = s.sampling.beams && s.sampling.beams->returned > 1;
  const bool streams = prompts.size() == 1 && !several;
  std::vector<GrowingText> texts;
  texts.reserve(prompts.size());
  if (streams && !session.encodes())
    print(GrowingText(session.tokenizer(), tokens[0], {}, {}).prompt());
  auto generations = session.run(tokens, texts, streams);
  for (size_t i = 0; i < all.size(); ++i) {
    all[i].text = texts[i].text();
    all[i].generation = std::move(generations[i]);
    if (several) {
      all[i].beam_texts = texts_of_beams(all[i].generation, session.tokenizer(),
                                         session.given(tokens[i]), session.end_tokens());
      print_beams(all[i], fmt::format("prompt {} of {}, ", i + 1, all.size()));
    } else if (!streams) {
      fmt::print("{}== prompt {} of {}\n{}{}\n", i == 0 ? "" : "\n", i + 1, all.size(),
                 texts[i].prompt(), texts[i].text());
    }
    if (s.logprobs) print_log_probabilities(all[i], session.tokenizer());
  }
}

// Appends the user's lines to the text unchanged, and lets the model continue. An encoder reads
// each line by itself.
void converse(Session& session) {
  fmt::print(stderr, "{}",
             session.encodes()
                 ? "Enter text for the encoder; /quit or Ctrl-D quits.\n"
                 : "Enter text to have it continued, or an empty line to continue further; /reset "
                   "clears the text so far, /quit or Ctrl-D quits.\n");
  std::vector<int32_t> history;
  std::string line;
  for (print("> "); std::getline(std::cin, line); print("> ")) {
    if (line == "/quit") return;
    if (line == "/reset") {
      history.clear();
      continue;
    }
    try {
      std::vector<int32_t> tokens = history;
      if (history.empty()) {
        tokens = session.encode(line);
      } else {
        session.tokenizer().encode(line, false, tokens);
      }
      session.fit(tokens);
      std::vector<GrowingText> texts;
      texts.reserve(1);
      const auto results = session.run({tokens}, texts, true);
      for (const auto& token : results[0].tokens) tokens.push_back(token.draw.token);
      if (results[0].finish == inference::Finish::end_token) tokens.pop_back();
      if (!session.encodes()) history = std::move(tokens);
    } catch (const Error& e) {
      if (session.failed()) throw;
      log::error("{}", e.what());
    }
  }
  print("\n");
}

// Rank 0 continues the prompts, and the others follow.
void run_ranks(const GenerateSettings& settings, comm::Processes& processes) {
  const bool lead = processes.lead(), conversation = settings.prompts.is_conversation();
  std::vector<std::string> prompts;
  if (lead && !conversation) prompts = settings.prompts.read();
  if (lead) settings.check_output();
  training::begin_on_device(settings.runtime);
  const TextModel text(settings);
  if (lead) {
    ThreadPool pool(settings.runtime.threads_per_rank());
    training::require_whole_model(text.directory, pool);
  }
  // Ranks wait for typed input, and for the reader of the text, without a time limit.
  const comm::WaitLimits limits(0, 0);
  processes.run(
      settings.ranks.ranks(),
      [&](comm::Group& world) {
        ModelRank rank({settings.ranks, settings.runtime, settings.bf16 ? DType::bf16 : DType::f32},
                       text.directory, text.model, world);
        if (world.rank() > 0) return inference::follow(*rank.stage, rank.runtime, rank.ranks);
        if (settings.fill_mask) {
          const int64_t top = settings.sampling.options.top_k;
          return fill_masks(prompts, top > 0 ? top : inference::kUsualFillings, text.tokenizer,
                            rank, settings.engine.options());
        }
        Session session(settings, text, rank);
        if (conversation) return converse(session);
        if (settings.output) {
          write_continuations(session, settings, text, prompts);
        } else {
          print_continuations(session, settings, prompts);
        }
        print_statistics(session.statistics());
      },
      limits);
}

// Predictions of masks are not sampled and have one form of output.
void check_flags_of_masks(const Fields& fields) {
  for (const Field& field : fields.all()) {
    const bool idle =
        (field.group == "sampling" && field.name != "top-k") || field.group == "output";
    MG_CHECK(!idle || !field.given,
             "--{} has no effect with --fill-mask, which prints the --top-k most likely tokens at "
             "each mask; leave it out",
             field.name);
  }
}

}  // namespace

int generate(const Arguments& arguments) {
  GenerateSettings settings;
  Fields fields = settings.fields();
  if (const auto code =
          parse("megatron generate --load DIR [--adapter DIR] [--prompt TEXT ...] [flags]",
                "Generates text from prompts: from --prompt, a file or standard input, or line by "
                "line on a terminal. An encoder-decoder (T5) reads them with its encoder. The text "
                "is streamed to standard output (several texts are "
                "printed one after the other when all are done); the speed is printed to standard "
                "error. The result depends on the model, the prompt, its position among the "
                "prompts and the sampling flags, not on the batch size or the number of threads.",
                fields, {}, arguments)) {
    return *code;
  }
  return with_processes("generate", fields, [&](comm::Processes& processes) {
    if (settings.fill_mask) check_flags_of_masks(fields);
    settings.check();
    settings.flags_of_texts = flags_of_texts(fields);
    settings.join(processes);
    run_ranks(settings, processes);
    return 0;
  });
}

}  // namespace megatron::cli
