#include "golden/cli/flag_effects.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <set>
#include <thread>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/signal_watch.h"
#include "cli/options.h"
#include "corpus/vocabulary.h"
#include "data/indexed_dataset.h"
#include "faulty_files.h"
#include "plan/plan_json.h"
#include "post_training/tasks.h"
#include "training/plan/make_plan.h"
#include "training/trainer.h"
#include "unit/checkpoint/raw_tensors.h"

namespace {

std::atomic<int> threads_started = 0;

}  // namespace

// Counts new threads before calling the system's pthread_create.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*body)(void*), void* argument) noexcept {
  static const auto create =
      reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  ++threads_started;
  return create(thread, attributes, body, argument);
}

namespace megatron::testing {
namespace {

namespace fs = std::filesystem;
using settings::TrainSettings;
using training::IterationReport;
using training::TrainResult;

// Pairs of flag and value.
std::vector<std::pair<std::string, std::string>> tiny_run() {
  return {{"num-layers", "2"},
          {"hidden-size", "16"},
          {"num-attention-heads", "2"},
          {"seq-length", "16"},
          {"micro-batch-size", "1"},
          {"global-batch-size", "2"},
          {"train-iters", "3"},
          {"lr", "1e-2"},
          {"vocab-size", "64"},
          {"mock-data", ""},
          {"hidden-dropout", "0"},
          {"attention-dropout", "0"},
          {"ranks", "1"},
          {"threads", "1"},
          {"log-interval", "1"},
          {"log-jsonl", "{w}/log"}};
}

std::vector<std::string> split_words(const std::string& text) {
  std::vector<std::string> all;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(' ', at), text.size());
    if (end > at) all.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return all;
}

void replace_all(std::string& text, const std::string& what, const std::string& with) {
  for (size_t at = 0; (at = text.find(what, at)) != text.npos; at += with.size())
    text.replace(at, what.size(), with);
}

// Removes values that differ between any two runs.
void drop_times(Json& value) {
  static const std::set<std::string> kChanging = {"time",
                                                  "seconds",
                                                  "tokens_per_second",
                                                  "flops_per_second",
                                                  "peak_share",
                                                  "data_wait",
                                                  "seconds_left",
                                                  "communication_wait",
                                                  "save_wait",
                                                  "process",
                                                  "command",
                                                  "flags",
                                                  "wait",
                                                  "path",
                                                  "overall_tokens_per_second",
                                                  "step_seconds",
                                                  "evaluation_seconds",
                                                  "save_seconds"};
  if (!value.is_object()) return;
  Json::Object kept;
  for (auto& [key, member] : value.as_object()) {
    if (kChanging.contains(key)) continue;
    if (key == "least" || key == "most") member = Json(true);  // the timer was measured
    if (key == "ranks" && member.is_array()) member = Json(true);
    drop_times(member);
    kept.emplace_back(key, std::move(member));
  }
  value = Json(std::move(kept));
}

std::vector<Json> records(const std::string& path) {
  std::vector<Json> all;
  if (!fs::exists(path)) return all;
  const std::string text = read_file(path);
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    if (end > at) all.push_back(Json::parse(text.substr(at, end - at)));
    drop_times(all.back());
    at = end + 1;
  }
  return all;
}

void read_log(const std::string& path, std::map<std::string, std::string>& values) {
  for (const Json& record : records(path)) {
    const std::string type = record["type"].as_string();
    values["log"] += record.dump() + "\n";
    if (type == "validation") values["validation"] += record.dump() + "\n";
    if (type == "run") values["shape"] = record["model"].dump() + " " + record["parameters"].dump();
    if (type == "step") values["memory"] = record["memory"].dump();
    if (type == "end") values["end"] = record["reason"].as_string();
  }
}

// Returns the printed lines without measured figures.
std::string steady_lines(const std::string& printed) {
  std::string kept;
  for (size_t at = 0; at < printed.size();) {
    const size_t end = std::min(printed.find('\n', at), printed.size() - 1);
    const std::string line = printed.substr(at, end + 1 - at);
    const bool measured = line.find("iteration ") != line.npos || line.find(" in ") != line.npos ||
                          line.find("training:") != line.npos ||
                          line.find("memory per process") != line.npos ||
                          line.find(" s)") != line.npos;
    const size_t clock = line.size() > 8 && line[2] == ':' && line[5] == ':' ? 8 : 0;  // hh:mm:ss
    if (!measured) kept += line.substr(clock);
    at = end + 1;
  }
  return kept;
}

std::string files_in(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string name = fs::relative(entry.path(), folder).string();
    names.insert(name.substr(0, name.find("events.out")));  // drops the time and process
  }
  std::string all;
  for (const std::string& name : names) all += name + "\n";
  return all;
}

std::string index_sizes(const std::string& folder) {
  std::string all;
  if (!fs::exists(folder + "/cache")) return all;
  std::multiset<uintmax_t> sizes;
  for (const auto& entry : fs::recursive_directory_iterator(folder + "/cache"))
    if (entry.is_regular_file()) sizes.insert(entry.file_size());
  for (const uintmax_t size : sizes) all += fmt::format("{} ", size);
  return all;
}

std::string event_sizes(const std::string& folder) {
  std::multiset<uintmax_t> sizes;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.path().filename().string().starts_with("events.out"))
      sizes.insert(fs::file_size(entry.path()));
  std::string all;
  for (const uintmax_t size : sizes) all += fmt::format("{} ", size);
  return all;
}

// Number of events in the traces of a folder.
std::string events_in(const std::string& folder) {
  size_t events = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (!name.ends_with(".json") || name.find("trace") == name.npos) continue;
    const std::string text = read_file(entry.path().string());
    for (size_t at = 0; (at = text.find("\"ph\"", at)) != text.npos; ++at) ++events;
  }
  return fmt::format("{} events", events);
}

std::string ids_of(const TrainSettings& s) {
  const corpus::Vocabulary v = corpus::open_vocabulary(s.data, s.shape.vocab_size);
  std::string text = fmt::format("{} tokens, {} rows, eod {}, pad {}:", v.size, v.padded_size,
                                 v.eod, v.pad.value_or(-1));
  if (v.tokenizer == nullptr) return text;
  for (const std::string line : {"ab 12 Hello, hello, w\xc3\xb6rld's 3456", "abba", "aB"}) {
    try {
      for (const int32_t id : v.tokenizer->encode(line, v.add_special_tokens))
        text += fmt::format(" {}", id);
    } catch (const Error& error) {  // the tokenizer has a small vocabulary
      text += fmt::format(" ({})", error.what());
    }
  }
  return text;
}

void tell_steps(const TrainResult& result, std::map<std::string, std::string>& values) {
  for (const IterationReport& r : result.iterations) {
    values["loss"] += fmt::format("{:a} {:a}\n", r.loss, r.gradient_norm);
    values["batch"] += fmt::format("{} {} {}\n", r.iteration, r.batch, r.consumed);
    values["schedule"] += fmt::format("{:a} {:a}\n", r.learning_rate, r.weight_decay);
  }
  values["resumed"] = fmt::format("{} {:a}", result.first_iteration,
                                  result.iterations.empty() ? 0.0 : result.iterations.front().loss);
}

struct Parsed {
  TrainSettings settings;
  std::string idle;  // the flag's Field::idle
};

Parsed parse(const std::vector<std::string>& words, const std::string& flag) {
  Parsed parsed;
  Fields fields = parsed.settings.fields();
  std::vector<std::string> notes;
  cli::parse_training("train", "", fields, words, notes);
  parsed.settings.settle_task();
  const Field* field = fields.find(flag);
  if (field != nullptr && field->idle) parsed.idle = field->idle();
  return parsed;
}

// Records whether the rank's own thread writes files.
class WatchedFiles final : public FileSystem {
 public:
  explicit WatchedFiles(const FileSystem& files) : files_(files) {}

  std::string writers() const { return others_ ? (rank_ ? "both" : "others") : "the rank's"; }

  int open(const std::string& path, int flags) const override { return files_.open(path, flags); }
  int64_t write(int file, std::span<const std::byte> bytes) const override {
    return files_.write(file, bytes);
  }
  int64_t write_at(int file, std::span<const std::byte> bytes, int64_t offset) const override {
    (std::this_thread::get_id() == rank_thread ? rank_ : others_) = true;
    return files_.write_at(file, bytes, offset);
  }
  int resize(int file, int64_t bytes) const override { return files_.resize(file, bytes); }
  int sync(int file) const override { return files_.sync(file); }
  int close(int file) const override { return files_.close(file); }
  int rename(const std::string& from, const std::string& to) const override {
    return files_.rename(from, to);
  }
  int exchange(const std::string& a, const std::string& b) const override {
    return files_.exchange(a, b);
  }
  int make_directory(const std::string& path) const override { return files_.make_directory(path); }
  int remove(const std::string& path) const override { return files_.remove(path); }
  int64_t free_bytes(const std::string& path) const override { return files_.free_bytes(path); }

  std::atomic<std::thread::id> rank_thread;

 private:
  const FileSystem& files_;
  mutable std::atomic<bool> rank_ = false, others_ = false;
};

// Runs training as the program does, but without measuring the peak; sends SIGUSR1 after the first
// step.
TrainResult train_once(const TrainSettings& settings, const FileSystem& given_files,
                       std::map<std::string, std::string>& values) {
  WatchedFiles files(given_files);
  static constexpr std::array kSignals = {SIGUSR1};
  std::optional<SignalWatch> signals;
  if (settings.checkpoint.exit_signal_handler) signals.emplace(kSignals);
  training::TrainHooks hooks;
  if (!settings.runtime.measure_peak) hooks.peak = 1e12;
  hooks.files = &files;
  hooks.signals = signals ? &*signals : nullptr;
  hooks.after_step = [&](const IterationReport& report) {
    files.rank_thread = std::this_thread::get_id();
    if (report.iteration == 1) kill(getpid(), SIGUSR1);
    const std::string maps = read_file("/proc/self/maps");
    values["maps"] = maps.find(".bin\n") != maps.npos ? "mapped" : "none";
  };
  const int before = threads_started;
  hooks.task = post_training::make_task(settings.data);
  TrainResult result = training::train(settings, hooks);
  values["threads"] = fmt::format("{}", threads_started - before);
  values["writers"] = files.writers();
  return result;
}

// Writes `documents` documents of 40 tokens, the last of them 63, that count upwards by `step`.
void write_corpus(const std::string& prefix, int documents, int step) {
  data::IndexedDatasetBuilder builder(prefix, DType::u16);
  for (int d = 0; d < documents; ++d) {
    std::vector<int32_t> tokens;
    for (int t = 0; t < 39; ++t) tokens.push_back((d + t * step) % 63);
    tokens.push_back(63);
    builder.add_item(std::span<const int32_t>(tokens));
    builder.end_document();
  }
  builder.finalize();
}

// The 256 bytes, "ab" and "aB" in the format of Megatron-LM's TikTokenizer.
std::string tik_token_list() {
  constexpr std::string_view kAlphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string list = "[";
  for (size_t i = 0; i < 256; ++i)
    list += fmt::format(R"({{"rank": {}, "token_bytes": "{}{}==", "token_str": ""}},)", i,
                        kAlphabet[i >> 2], kAlphabet[(i & 3) << 4]);
  return list + R"({"rank": 256, "token_bytes": "YWI=", "token_str": "ab"},)"
                R"({"rank": 257, "token_bytes": "YUI=", "token_str": "aB"}])";
}

}  // namespace

FlagBench::FlagBench() {
  std::string pattern = (fs::temp_directory_path() / "megatron-XXXXXX").string();
  folder_ = mkdtemp(pattern.data());
  std::signal(SIGUSR1, SIG_IGN);
  prepare();
}

FlagBench::~FlagBench() {
  std::signal(SIGUSR1, SIG_DFL);
  fs::remove_all(folder_);
}

void FlagBench::prepare() {
  const std::string data = folder_ + "/data";
  fs::create_directories(data);
  write_corpus(data + "/a", 60, 1);
  write_corpus(data + "/b", 60, 5);
  write_corpus(data + "/c", 60, 7);
  write_file(data + "/list", data + "/b");
  write_file(data + "/precision.yaml",
             "configs:\n  a: {transformer_engine_config_type: TEQuantizationParams, "
             "training_recipe: {}}\nmatchers:\n  m: {type: glob, pattern: '*mlp*', config: a, "
             "enabled: true}\n");
  write_file(data + "/splits.json",
             fmt::format(R"({{"train": ["{0}/b"], "valid": ["{0}/c"], "test": ["{0}/a"]}})", data));
  write_file(data + "/vocab.json", R"({"a": 0, "b": 1, "ab": 2, "ba": 3, "<|endoftext|>": 4})");
  write_file(data + "/other.json", R"({"b": 0, "a": 1, "ab": 2, "ba": 3, "<|endoftext|>": 4})");
  write_file(data + "/merges.txt", "a b\n");
  write_file(data + "/no_merges.txt", "b a\n");
  write_file(data + "/tik.json", tik_token_list());
  std::string chats;
  for (const char* text :
       {"one, two, three", "four", "five and six", "seven", "eight, nine and ten"})
    chats += fmt::format(R"({{"messages": [{{"role": "user", "content": "{}"}}, )"
                         R"({{"role": "assistant", "content": "{}"}}]}})"
                         "\n",
                         text, text);
  write_file(data + "/chats.jsonl", chats);
  write_file(data + "/pairs.jsonl",
             R"({"prompt": "one", "chosen": " two", "rejected": " three and four"})");
  write_file(data + "/labels.jsonl",
             R"([{"text": "one", "label": "yes"}, {"text": "two", "label": "no"},
                 {"text": "three and four", "label": "yes"}])");
  write_file(data + "/questions.jsonl",
             R"({"question": "q", "context": "a b c d e f g h i j k l m n o p", )"
             R"("answers": {"text": ["m"], "answer_start": [24]}})");
  write_file(data + "/words.txt",
             "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\nc\nd\ne\nf\ng\nh\nm\n");
  write_file(data + "/chat.jinja",
             "{% for m in messages %}{{ m.role }}: {% generation %}{{ m.content }}"
             "{% endgeneration %}{% endfor %}");
  write_file(data + "/blocks.json",
             R"({"block_configs": [{"attention": {"n_heads_in_group": 2}, "ffn": {"no_op": true}},
                 {"attention": {"replace_with_linear": true}, "mlp": {"ffn_hidden_size": 24}}]})");
  write_file(data + "/vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nab\nhello\n12\n");
  const std::string llama = std::string(MEGATRON_GOLDEN) + "/hf/llama";
  std::vector<RawTensor> tensors = read_raw(llama + "/model.safetensors");
  tensors.push_back({"surplus", "BOOL", "[1]", "1"});
  fs::create_directories(data + "/surplus");
  fs::copy_file(llama + "/config.json", data + "/surplus/config.json");
  write_raw(data + "/surplus/model.safetensors", tensors);
}

std::vector<std::string> FlagBench::words(const FlagRow& row, const std::string& more,
                                          const std::string& folder) const {
  std::vector<std::string> given = split_words(row.base + " " + more), all;
  std::set<std::string> dropped;
  for (const std::string& word : given)
    if (word[0] == '!') dropped.insert(word.substr(1));
  for (const auto& [flag, value] : tiny_run()) {
    if (dropped.contains(flag)) continue;
    all.push_back("--" + flag);
    if (!value.empty()) all.push_back(value);
  }
  std::erase_if(given, [](const std::string& word) { return word[0] == '!'; });
  all.insert(all.end(), given.begin(), given.end());
  for (std::string& word : all) {
    replace_all(word, "{w}", folder);
    replace_all(word, "{data}", folder_ + "/data");
    replace_all(word, "{vectors}", MEGATRON_GOLDEN);
  }
  return all;
}

std::string FlagBench::usual(const FlagRow& row) const {
  if (!row.same.empty()) return row.same;
  TrainSettings settings;
  Fields fields = settings.fields();
  const Field* field = fields.find(row.flag);
  if (field == nullptr) return "";
  if (field->is_switch) return fmt::format("--{}={}", row.flag, field->initial);
  return field->initial.empty() ? "" : fmt::format("--{} {}", row.flag, field->initial);
}

bool FlagBench::has_mode(const FlagRow& row) const {
  TrainSettings settings;
  Fields fields = settings.fields();
  const Field* field = fields.find(row.flag);
  return field != nullptr && field->idle != nullptr;
}

const Observed& FlagBench::without(const FlagRow& row) {
  // The first run of a process may start threads that later ones reuse, and rows of "tokenizer" and
  // "plan" make no run: these rows do not share a result.
  const bool own =
      row.observable == "threads" || row.observable == "tokenizer" || row.observable == "plan";
  const std::string key = row.base + "|" + row.before + "|" + (own ? row.flag : "");
  const auto found = without_.find(key);
  return found != without_.end() ? found->second
                                 : without_.emplace(key, run(row, "")).first->second;
}

Observed FlagBench::run(const FlagRow& row, const std::string& more) {
  const std::string folder = fmt::format("{}/{:03}", folder_, runs_++);
  fs::create_directories(folder);
  Observed seen;
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  try {
    if (!row.before.empty()) {
      FlagRow first = row;
      first.base = row.before;
      std::map<std::string, std::string> unused;
      train_once(parse(words(first, "", folder), "").settings, FaultyFiles(), unused);
      fs::remove(folder + "/log");
    }
    const Parsed parsed = parse(words(row, more, folder), row.flag);
    const TrainSettings& settings = parsed.settings;
    seen.idle = parsed.idle;
    if (row.observable == "tokenizer") {
      seen.values["tokenizer"] = ids_of(settings);
    } else if (row.observable == "plan") {
      const Json plan = plan::to_json(
          training::make_plan(settings, {.task = post_training::make_task(settings.data)}));
      seen.values["plan"] = plan["flops"].dump() + plan["memory"]["megatron"].dump();
    } else {
      const FaultyFiles files =
          row.base.find("!disk") == row.base.npos ? FaultyFiles() : FaultyFiles(Fault::io_error, 9);
      tell_steps(train_once(settings, files, seen.values), seen.values);
      seen.values["trace"] = events_in(folder);
    }
  } catch (const std::exception& error) {  // a gtest failure would go to the captured output
    seen.error = error.what();
  }
  std::string printed = ::testing::internal::GetCapturedStderr();
  printed += ::testing::internal::GetCapturedStdout();
  read_log(folder + "/log", seen.values);
  seen.values["console"] = steady_lines(printed);
  seen.values["note"] = seen.values["console"];
  seen.values["files"] = files_in(folder);
  seen.values["index"] = index_sizes(folder);
  seen.values["tensorboard"] = event_sizes(folder);
  if (!seen.error.empty()) seen.values["end"] = seen.error;
  seen.values["error"] = seen.error;
  for (auto& [name, value] : seen.values) replace_all(value, folder, "{w}");
  fs::remove_all(folder);
  return seen;
}

}  // namespace megatron::testing
