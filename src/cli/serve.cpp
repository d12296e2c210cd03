#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <optional>
#include <thread>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/machine_limits.h"
#include "base/progress.h"
#include "base/signal_watch.h"
#include "cli/command.h"
#include "cli/engine_flags.h"
#include "cli/serving_ranks.h"
#include "inference/end_tokens.h"
#include "resume/found_checkpoints.h"
#include "resume/trainer_state.h"
#include "server/server.h"
#include "server/stored_pooling.h"
#include "settings/settings.h"
#include "training/device_flag.h"
#include "training/model_source.h"

namespace megatron::cli {
namespace {

struct ServeSettings {
  training::ModelToRead model;
  std::optional<std::string> tokenizer_model, chat_template, served_model_name, api_key_file;
  server::ServerOptions server;
  EngineFlags engine;
  EngineRankFlags ranks;
  bool bf16 = false;
  double drain_timeout = 30;
  bool enable_lora = false;
  std::vector<std::string> lora_modules;
  int64_t max_lora_rank = 64;
  settings::RuntimeSettings runtime;

  Fields fields();
  void check();
  void check_adapters();
  void join(const comm::Processes& processes);
  ModelRankOptions rank_options() const {
    return {.ranks = ranks,
            .runtime = runtime,
            .type = bf16 ? DType::bf16 : DType::f32,
            .reading = model.reading,
            .max_length = server.engine.max_length};
  }
};

Fields ServeSettings::fields() {
  Fields f;
  f.begin_group("model");
  model.fields(f);
  f.add("tokenizer-model", &tokenizer_model,
        "tokenizer.json or its directory; default the model's");
  f.add(
      "chat-template", &chat_template,
      "file with a Jinja chat template; default the model directory's, else roles and contents as "
      "plain lines");
  f.add("served-model-name", &served_model_name,
        "name of the model in requests and answers; default the last part of --adapter or --load");
  f.begin_group("adapters");
  f.add_switch(
      "enable-lora", &enable_lora, true,
      "serve adapters (LoRA) by name: a request's model is the model's name or an adapter's");
  f.add("lora-modules", &lora_modules,
        "adapters to load at start, as NAME=DIR or as JSON objects with name, path and "
        "base_model_name; others can be loaded by POST /v1/load_lora_adapter");
  f.add("max-lora-rank", &max_lora_rank,
        "max rank of such an adapter; memory is reserved for adapters of all linear layers with "
        "this rank");
  f.add("max-loras", &server.adapters.most,
        "max adapters loaded at once; memory for them, and for one more that replaces another, is "
        "reserved at start");
  f.begin_group("network");
  f.add("host", &server.host, "address to listen on; 0.0.0.0: every address of this machine");
  f.add("port", &server.port, "port to listen on; 0: a free one");
  f.add("api-key-file", &api_key_file,
        "file with the API keys that are accepted, one per line; default the environment variable "
        "MEGATRON_API_KEY, else no key is needed");
  f.add("cors-origin", &server.service.cors_origin,
        "origin whose web pages may call the API from a browser (https://example.com, or * for "
        "all); default none");
  f.begin_group("limits");
  f.add("max-waiting-requests", &server.max_waiting,
        "max sequences that wait to be generated; when the queue is full, requests are refused "
        "with status 429");
  f.add("request-timeout", &server.request_timeout, "time limit of a request in seconds");
  f.add("drain-timeout", &drain_timeout,
        "after SIGTERM or SIGINT, seconds that running requests may take to finish");
  f.add("max-connections", &server.http.connections, "max clients connected at once");
  f.add("max-body-bytes", &server.http.body_bytes, "max size of a request's body in bytes");
  f.add("header-timeout", &server.http.header_seconds,
        "seconds that a client may take to send the headers of a request");
  engine.fields(f);
  engine.latent_fields(f);
  f.add("replicas", &server.replicas,
        "number of engines, which share the weights and divide the threads; each has its own KV "
        "cache and its own limits on sequences");
  ranks.fields(f);
  f.begin_group("precision");
  f.add_switch("bf16", &bf16, true, "compute in bfloat16 instead of fp32");
  f.begin_group("device");
  f.add("threads", &runtime.threads, "CPU threads per rank; default cores / ranks");
  runtime.add_device(f);
  f.common({"load", "adapter", "chat-template", "host", "port", "api-key-file",
            "inference-dynamic-batching-max-requests", "inference-max-seq-length", "bf16",
            "threads", "device"});
  return f;
}

void ServeSettings::check() {
  MG_CHECK(model.load || model.adapter, "--load DIR is needed: the model to serve");
  MG_CHECK(server.port >= 0 && server.port <= 65535, "--port is {}; it must be from 0 to 65535",
           server.port);
  MG_CHECK(server.max_waiting >= 0, "--max-waiting-requests is {}; it cannot be negative",
           server.max_waiting);
  MG_CHECK(server.http.body_bytes > 0 && server.http.body_bytes <= int64_t{1} << 30,
           "--max-body-bytes is {}; it must be from 1 to {}", server.http.body_bytes,
           int64_t{1} << 30);
  constexpr double kLongest = 1e7;  // seconds, a third of a year
  for (const auto& [name, seconds] : {std::pair{"--request-timeout", server.request_timeout},
                                      {"--header-timeout", server.http.header_seconds}})
    MG_CHECK(seconds > 0 && seconds <= kLongest, "{} is {}; it must be above 0, and at most {}",
             name, seconds, kLongest);
  MG_CHECK(drain_timeout >= 0 && drain_timeout <= kLongest,
           "--drain-timeout is {}; it must be from 0 to {}", drain_timeout, kLongest);
  MG_CHECK(server.replicas >= 1 && server.replicas <= 1024,
           "--replicas is {}; it must be from 1 to 1024", server.replicas);
  check_adapters();
  engine.check();
  server.engine = engine.options();
}

void ServeSettings::check_adapters() {
  MG_CHECK(enable_lora || lora_modules.empty(), "--lora-modules {} needs --enable-lora",
           lora_modules[0]);
  MG_CHECK(!enable_lora || !model.adapter,
           "--adapter {} is a part of the model being served, and --enable-lora lets requests "
           "choose adapters of a whole model: give it as --lora-modules NAME={} instead",
           model.adapter.value_or(""), model.adapter.value_or(""));
  MG_CHECK(max_lora_rank >= 1, "--max-lora-rank is {}; it must be positive", max_lora_rank);
  MG_CHECK(server.adapters.most >= 1, "--max-loras is {}; it must be positive",
           server.adapters.most);
  for (const std::string& module : lora_modules)
    server.adapters.modules.push_back(server::read_adapter_module(module));
}

void ServeSettings::join(const comm::Processes& processes) {
  ranks.check(processes);
  MG_CHECK(server.replicas == 1 || ranks.ranks() == 1,
           "--replicas is {}, but --tensor-model-parallel-size {} times "
           "--pipeline-model-parallel-size {} divides the model among {} ranks, and replicas need "
           "an undivided model; use one replica, or start several servers",
           server.replicas, ranks.layout().tensor, ranks.layout().stages, ranks.ranks());
  runtime.ranks = ranks.ranks();
  runtime.join(processes);
  runtime.check();
  // Weights and caches of each rank have an equal part of their machine's memory.
  if (ranks.ranks() > 1) server.memory = available_memory() / runtime.ranks_here();
  if (!processes.lead()) return;
  const char* key = std::getenv("MEGATRON_API_KEY");
  server.service.keys = server::ApiKeys::read(
      api_key_file, key == nullptr ? std::nullopt : std::optional<std::string>(key));
}

// The served objects, in the order required for their destruction.
struct Served {
  Served(ServeSettings s, ServingRanks& ranks) : ranks_of_model(ranks) {
    const checkpoint::ModelDirectory directory = s.model.open("to serve");
    model = served_model(directory, s);
    tokenizer_path =
        training::tokenizer_path(s.tokenizer_model, training::tokenizer_directory(directory));
    tokenizer_files = training::tokenizer_files(tokenizer_path);
    text.emplace(text_parts(s, directory));
    server::ServedWeights weights = load(s, directory);
    s.server.load_weights = [this, s](const std::optional<std::string>& other) {
      const checkpoint::ModelDirectory now = opened_again(s.model, other);
      check_same(s, now);
      return load(s, now);
    };
    if (s.enable_lora) enable_adapters(s, directory.path());
    s.server.engine.vocabulary = text->vocabulary();
    s.server.engine.max_length = text->context();
    http.emplace(*text, std::move(weights), s.server);
  }

  // The positions of encoder-decoders (T5) have no end, and the cache needs one.
  static models::Model served_model(const checkpoint::ModelDirectory& directory,
                                    const ServeSettings& s) {
    constexpr int64_t kUsualLength = 4096;
    const models::Model own = models::model_of(directory);
    const bool encodes = own->facts().encoder_layers > 0;
    int64_t length = s.server.engine.max_length;
    if (encodes && length == 0 && own->context_length() > kUsualLength) {
      length = kUsualLength;
      log::info(
          "prompts and texts have up to {} tokens each; --inference-max-seq-length changes it",
          length);
    }
    return models::with_context_length(own, length);
  }

  server::ServedWeights load(const ServeSettings& s,
                             const checkpoint::ModelDirectory& directory) const {
    {
      ThreadPool pool(s.runtime.threads_per_rank());
      training::require_whole_model(directory, pool);
    }
    return ranks_of_model.load(directory);
  }

  void enable_adapters(ServeSettings& s, const std::string& base) const {
    server::AdapterOptions& adapters = s.server.adapters;
    std::vector<std::string> directories;
    for (const server::AdapterModule& module : adapters.modules)
      directories.push_back(adapter_in(module.directory));
    const inference::AdapterMemory& memory =
        ranks_of_model.reserve_adapters(base, adapters.most, s.max_lora_rank, directories);
    const int64_t bytes = memory.adapters() * memory.bytes_of_one();
    log::info("adapters: {} are reserved{} for {} (--max-loras) and one more for replacing one",
              format_bytes(static_cast<double>(bytes)),
              ranks_of_model.count() == 1 ? "" : " on each rank", adapters.most);
    int64_t& host = s.server.memory;
    host = std::max<int64_t>(1, (host > 0 ? host : available_memory()) - bytes);
    adapters.load = [this, threads = s.runtime.threads_per_rank()](const std::string& path) {
      const std::string own = adapter_in(path);
      ThreadPool pool(threads);
      resume::require_whole_model(own, pool);
      return ranks_of_model.load_adapter(own);
    };
  }

  static std::string adapter_in(const std::string& path) {
    std::string own = resume::resolve_model_directory(path);
    MG_CHECK(checkpoint::is_adapter(own), "'{}' is not an adapter's directory: it needs {} and {}",
             path, checkpoint::kAdapterConfig, checkpoint::kAdapterFile);
    return own;
  }

  // `other` replaces the adapter if it is one, else the model of --load.
  static checkpoint::ModelDirectory opened_again(training::ModelToRead served,
                                                 const std::optional<std::string>& other) {
    if (other) {
      const bool adapter = checkpoint::is_adapter(resume::resolve_model_directory(*other));
      (adapter && served.adapter ? served.adapter : served.load) = other;
    }
    return served.open("to serve");
  }

  // Only the weights may differ from those at the server's start.
  void check_same(const ServeSettings& s, const checkpoint::ModelDirectory& directory) const {
    const std::string different =
        resume::differences(models::model_of(directory)->describe(), model->describe());
    MG_CHECK(
        different.empty(),
        "{} contains a different model than the one being served: {}; start another server for it",
        directory.path(), different);
    const std::string path =
        training::tokenizer_path(s.tokenizer_model, training::tokenizer_directory(directory));
    MG_CHECK(training::tokenizer_files(path) == tokenizer_files,
             "the tokenizer files in {} differ from those that {} had when the server started; "
             "start another server for it",
             path, tokenizer_path);
  }

  server::TextModel::Parts text_parts(const ServeSettings& s,
                                      const checkpoint::ModelDirectory& directory) const {
    server::TextModel::Parts parts{.name = s.served_model_name.value_or(
                                       name_of(s.model.adapter ? *s.model.adapter : *s.model.load)),
                                   .tokenizer = tokenizers::Tokenizer::load(tokenizer_path),
                                   .context = model->context_length(),
                                   .created = server::seconds_since_1970(),
                                   .facts = model->facts(),
                                   .pooling = server::stored_pooling(directory.base_path())};
    MG_CHECK(parts.tokenizer.vocabulary_size() <= model->vocab_size(),
             "the tokenizer has {} tokens, but the model has {}: give the model's own tokenizer "
             "(--tokenizer-model)",
             parts.tokenizer.vocabulary_size(), model->vocab_size());
    training::report_missing_tokens(parts.tokenizer.vocabulary_size(), model->vocab_size());
    parts.end_tokens =
        inference::end_tokens({directory.path(), directory.base_path()}, parts.tokenizer);
    parts.chat = tokenizers::ChatTemplate::load(training::chat_template_directory(directory));
    if (s.chat_template) parts.chat.set_template(read_file(*s.chat_template), *s.chat_template);
    if (parts.chat.empty() && !parts.facts.two_sided && parts.facts.encoder_layers == 0)
      log::info(
          "the model has no chat template, so chats are rendered as plain lines of roles and "
          "contents (docs/serve.md); give a template with --chat-template FILE");
    return parts;
  }

  static std::string name_of(const std::string& path) {
    const auto whole = std::filesystem::absolute(path).lexically_normal();
    return (whole.has_filename() ? whole : whole.parent_path()).filename().string();
  }

  ServingRanks& ranks_of_model;
  models::Model model;
  std::string tokenizer_path;
  training::NamedFiles tokenizer_files;  // as they were at start
  std::optional<server::TextModel> text;
  std::optional<server::Server> http;
};

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kTick{50};
constexpr double kEndSeconds = 30;  // for the last step and the exit of other ranks

// Serves until a signal arrives and running requests are finished.
void serve_requests(const ServeSettings& settings, ServingRanks& ranks, SignalWatch& watch,
                    std::atomic<bool>& loading) {
  Served served(settings, ranks);
  loading = false;
  const std::string& host = settings.server.host;
  const bool brackets = host.find(':') != host.npos;  // an IPv6 address
  log::info("serving {} at http://{}:{}{}{}", served.text->name(),
            brackets ? "[" + host + "]" : host, served.http->port(),
            settings.server.service.keys.empty() ? "" : ", API key required",
            ranks.count() == 1 ? "" : fmt::format(", divided among {} ranks", ranks.count()));
  while (!watch.caught()) {
    const std::string failure = ranks.failure();
    MG_CHECK(failure.empty(), "the server ends, because the model is divided among {} ranks and {}",
             ranks.count(), failure);
    std::this_thread::sleep_for(kTick);
  }
  log::info(
      "{}: no new requests are accepted; running ones have {} s to finish; another signal, a "
      "second or more later, ends the server at once",
      signal_name(*watch.caught()), settings.drain_timeout);
  if (!served.http->drain(settings.drain_timeout))
    log::warning("requests that were not finished after {} s were stopped", settings.drain_timeout);
}

// Rank 0 answers requests, and the others follow.
void run_ranks(const ServeSettings& settings, comm::Processes& processes, SignalWatch& watch) {
  training::begin_on_device(settings.runtime);
  std::atomic<bool> loading = true;
  const auto on_rank = [&](comm::Group& world) {
    ServingRanks ranks(settings.rank_options(), world);
    if (world.rank() > 0) return ranks.follow();
    serve_requests(settings, ranks, watch, loading);
  };
  const comm::WaitLimits limits(0, 0);  // no limit: ranks wait for requests
  auto running = std::async(std::launch::async,
                            [&] { processes.run(settings.ranks.ranks(), on_rank, limits); });
  std::optional<Clock::time_point> ending;
  while (running.wait_for(kTick) != std::future_status::ready) {
    const auto signal = watch.caught();
    if (!signal || !processes.lead()) continue;  // the leading process gets the signal, too
    if (loading) {
      log::info("{} while the model was being loaded", signal_name(*signal));
      std::_Exit(128 + *signal);  // its thread may be writing a file
    }
    if (!ending) ending = Clock::now();
    const double seconds = std::chrono::duration<double>(Clock::now() - *ending).count();
    if (settings.ranks.ranks() == 1 || seconds < settings.drain_timeout + kEndSeconds) continue;
    log::error("the server has not ended {:.0f} s after {}: a rank does not answer", seconds,
               signal_name(*signal));
    processes.abort(2);
    std::_Exit(2);
  }
  running.get();
}

}  // namespace

int serve(const Arguments& arguments) {
  ServeSettings settings;
  Fields fields = settings.fields();
  if (const auto code = parse(
          "megatron serve --load DIR [--adapter DIR] [flags]",
          "Serves a model over HTTP with OpenAI's API (completions, chats, models), "
          "tokenization, metrics and a chat page; a model with a score head with vLLM's "
          "(classify, score, pooling); an encoder fills masks (fill-mask); an encoder-decoder "
          "(T5) reads the prompts of completions with its encoder. SIGTERM or SIGINT "
          "ends the server once "
          "running requests are finished; a second signal ends it at once.",
          fields, {}, arguments)) {
    return *code;
  }
  const int signals[] = {SIGTERM, SIGINT};
  SignalWatch watch(signals);  // must precede other threads
  return with_processes("serve", fields, [&](comm::Processes& processes) {
    settings.check();
    settings.join(processes);
    run_ranks(settings, processes, watch);
    return 0;
  });
}

}  // namespace megatron::cli
