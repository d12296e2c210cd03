#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>

#include "base/error.h"
#include "base/log.h"
#include "bench/bench.h"
#include "bench/serve/random_server.h"
#include "bench/serve/summary.h"
#include "settings/presets.h"
#include "training/device_flag.h"

namespace megatron::bench {
namespace {

constexpr int64_t kMaxAtOnce = 512;

struct ServeFlags {
  explicit ServeFlags(std::string_view model) : shape(settings::preset_shape(model)) {}

  std::optional<std::string> url, lengths_file;
  int64_t num_requests = 32;
  std::optional<int64_t> concurrency, vocabulary;
  std::optional<double> request_rate;
  int64_t prompt = 128, max_tokens = 64, shared_prefix = 0, seed = 1;
  double max_seconds = 60;
  bool json = false;

  std::string preset{settings::kDefaultPreset};
  bool bf16 = false;
  models::ModelFlags shape;
  server::ServerOptions server;
  settings::RuntimeSettings runtime;

  std::optional<int> read(const ReadFlags& read_flags);
  void check() const;
  std::vector<RequestLengths> lengths() const;
  int64_t at_once() const { return concurrency.value_or(request_rate ? 256 : 8); }

 private:
  void load_fields(Fields& f);
  void server_fields(Fields& f);
};

void ServeFlags::load_fields(Fields& f) {
  f.begin_group("measurement");
  f.add("url", &url,
        "the server's address, http://HOST:PORT; default a server that is started in this process");
  f.add("num-requests", &num_requests, "number of requests to send");
  f.add("concurrency", &concurrency,
        "number of requests in flight: a new one is sent when another ends; default 8. With "
        "--request-rate the maximum; default 256");
  f.add("request-rate", &request_rate,
        "requests per second, sent at random times (a Poisson process) without waiting for others "
        "to end");
  f.add("prompt-tokens", &prompt, "length of a prompt");
  f.add("max-tokens", &max_tokens, "tokens to generate for a prompt");
  f.add("lengths-file", &lengths_file,
        "file with a line {\"prompt_tokens\": P, \"output_tokens\": N} for each request, read "
        "again from the beginning after its end");
  f.add("shared-prefix-tokens", &shared_prefix,
        "number of tokens at the beginning of each prompt that are the same in all prompts");
  f.add("prompt-vocab-size", &vocabulary,
        "prompts are random token ids below this; default the model's vocabulary size, with --url "
        "256");
  f.add("seed", &seed, "random seed of the prompts and of the times of --request-rate");
  f.add("max-seconds", &max_seconds,
        "time limit in seconds: no more requests are sent after it, and running ones are aborted");
  f.add_switch("json", &json, true, "print JSON");
}

void ServeFlags::server_fields(Fields& f) {
  f.begin_group("model");
  f.add("preset", &preset, settings::preset_names(), "predefined model; other flags override it");
  f.begin_group("precision");
  f.add_switch("bf16", &bf16, true, "compute in bfloat16 instead of fp32");
  f.begin_group("engine");
  f.add("inference-dynamic-batching-max-requests", &server.engine.max_requests,
        "max sequences generated at once; others wait");
  f.add("inference-dynamic-batching-max-tokens", &server.engine.max_tokens,
        "max tokens per forward pass, counting the next token of each sequence and chunks of "
        "prompts");
  f.add("inference-max-seq-length", &server.engine.max_length,
        "max tokens of prompt and output; 0: the model's positions");
  f.add("max-waiting-requests", &server.max_waiting,
        "max sequences that wait to be generated; when the queue is full, requests are refused "
        "with status 429");
  shape.fields(f);
  f.begin_group("device");
  training::add_bench_device(f, runtime);
  f.add("threads", &runtime.threads, "CPU threads; default all cores");
}

std::optional<int> ServeFlags::read(const ReadFlags& read_flags) {
  Fields f;
  load_fields(f);
  const size_t of_load = f.all().size();
  server_fields(f);
  f.common({"url", "num-requests", "concurrency", "request-rate", "prompt-tokens", "max-tokens",
            "shared-prefix-tokens", "max-seconds", "json", "preset", "bf16",
            "inference-dynamic-batching-max-requests", "device", "threads"});
  const auto code = read_flags(
      "megatron bench serve [flags]",
      "Sends requests to a server with OpenAI's API (/v1/completions, streamed) such as `megatron "
      "serve`, or without --url to a server in this process with random weights (GPT-2 124M by "
      "default), and reports requests and tokens per second, the time to the first token, between "
      "tokens and of whole requests, refused and failed requests, and cached prompt tokens. An API "
      "key is taken from the environment variable MEGATRON_API_KEY.",
      f);
  if (code || !url) return code;
  for (size_t i = of_load; i < f.all().size(); ++i)
    MG_CHECK(!f.all()[i].given,
             "--{} applies only to a server in this process, but --url is {}; drop one",
             f.all()[i].name, *url);
  return code;
}

void ServeFlags::check() const {
  MG_CHECK(num_requests >= 1 && num_requests <= 1'000'000,
           "--num-requests is {}; it must lie in [1, 1000000]", num_requests);
  MG_CHECK(at_once() >= 1 && at_once() <= kMaxAtOnce, "--concurrency is {}; it must lie in [1, {}]",
           at_once(), kMaxAtOnce);
  MG_CHECK(!request_rate || (*request_rate > 0 && *request_rate <= 1e5),
           "--request-rate is {}; it must be above 0, and at most 100000",
           request_rate.value_or(0));
  MG_CHECK(max_seconds > 0 && max_seconds <= 86400,
           "--max-seconds is {}; it must be above 0, and at most 86400", max_seconds);
  MG_CHECK(prompt >= 1 && max_tokens >= 1,
           "--prompt-tokens is {} and --max-tokens {}; both must be at least 1", prompt,
           max_tokens);
  MG_CHECK(shared_prefix >= 0, "--shared-prefix-tokens is {}; it cannot be negative",
           shared_prefix);
  MG_CHECK(!vocabulary || (*vocabulary >= 1 && *vocabulary <= INT32_MAX),
           "--prompt-vocab-size is {}; it must lie in [1, {}]", vocabulary.value_or(0), INT32_MAX);
  MG_CHECK(seed >= 0, "--seed is {}; it cannot be negative", seed);
  MG_CHECK(server.max_waiting >= 0, "--max-waiting-requests is {}; it cannot be negative",
           server.max_waiting);
  server.engine.check();
}

std::vector<RequestLengths> ServeFlags::lengths() const {
  std::vector<RequestLengths> of_file;
  if (lengths_file) of_file = read_lengths(*lengths_file);
  std::vector<RequestLengths> all;
  for (size_t i = 0; std::ssize(all) < num_requests; ++i)
    all.push_back(of_file.empty() ? RequestLengths{prompt, max_tokens}
                                  : of_file[i % of_file.size()]);
  return all;
}

void check_fit(const std::vector<RequestLengths>& lengths, int64_t shared_prefix,
               const ServedModelInfo& model) {
  for (const RequestLengths& one : lengths) {
    MG_CHECK(!model.context || one.prompt + one.output <= *model.context,
             "a request has {} prompt tokens and generates {}, but {} supports at most {} in all; "
             "shorten it",
             one.prompt, one.output, model.name, *model.context);
    MG_CHECK(one.prompt >= shared_prefix,
             "--shared-prefix-tokens is {}, but a prompt has only {} tokens", shared_prefix,
             one.prompt);
  }
}

// Takes the one-time costs of a first request; also detects a server that does not answer.
void warm_up(Load load) {
  load.lengths = {{std::min<int64_t>(load.lengths[0].prompt, 16),
                   std::min<int64_t>(load.lengths[0].output, 4)}};
  load.due = {0};
  load.shared_prefix = 0;
  load.seed = ~load.seed;  // different prompts from those of the measurement
  const RequestTimes first = run_load(load)[0];
  MG_CHECK(first.ending == Ending::complete, "{} did not complete a first request: {}",
           load.address.url,
           first.ending == Ending::refused      ? "it is busy with other requests (status 429)"
           : first.ending == Ending::unfinished ? "it took longer than --max-seconds"
                                                : first.error);
}

int measure(const ServeFlags& flags) {
  std::unique_ptr<RandomServer> own;
  Load load{.lengths = flags.lengths(),
            .due = arrival_times(flags.num_requests, flags.request_rate,
                                 static_cast<uint64_t>(flags.seed)),
            .concurrency = flags.at_once(),
            .shared_prefix = flags.shared_prefix,
            .vocabulary = flags.vocabulary.value_or(256),
            .seed = static_cast<uint64_t>(flags.seed),
            .seconds = flags.max_seconds};
  if (flags.url) {
    const char* key = std::getenv("MEGATRON_API_KEY");
    load.address = {*flags.url, key == nullptr ? "" : key};
  } else {
    const models::Model model = models::model_from_flags(flags.shape, 1024);
    load.vocabulary = flags.vocabulary.value_or(model->vocab_size());
    check_fit(load.lengths, load.shared_prefix,
              {.name = "the model", .context = model->context_length()});
    server::ServerOptions options = flags.server;
    options.http.connections = kMaxAtOnce;
    training::begin_on_device(flags.runtime);
    log::set_level(log::Level::warning);  // suppresses a line per request
    own = std::make_unique<RandomServer>(model, flags.preset, flags.runtime.device_value(),
                                         flags.runtime.threads_per_rank(),
                                         flags.bf16 ? DType::bf16 : DType::f32, options);
    load.address = {own->url(), ""};
  }
  const ServedModelInfo model = ask_model(load.address, flags.max_seconds);
  load.model = model.name;
  check_fit(load.lengths, load.shared_prefix, model);
  warm_up(load);
  const LoadSummary summary = summarize(run_load(load));
  if (flags.json) {
    Json json = as_json(summary);
    json.set("model", model.name);
    json.set("concurrency", load.concurrency);
    json.set("request_rate", flags.request_rate ? Json(*flags.request_rate) : Json());
    fmt::print("{}\n", json.dump(1));
  } else {
    const std::string how = flags.request_rate
                                ? fmt::format("{:g} requests/s at random times, at most {} at once",
                                              *flags.request_rate, load.concurrency)
                                : fmt::format("{} at once", load.concurrency);
    fmt::print("{} at {}, {}\n", model.name, load.address.url, how);
    print(summary);
  }
  return summary.complete > 0 && summary.failed == 0 ? 0 : 1;
}

}  // namespace

int measure_serve(const ReadFlags& read) {
  ServeFlags first(settings::kDefaultPreset);
  if (const auto code = first.read(read)) return *code;
  ServeFlags flags(first.preset);
  if (const auto code = flags.read(read)) return *code;
  flags.check();
  flags.runtime.check();
  return measure(flags);
}

}  // namespace megatron::bench
