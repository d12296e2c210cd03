#include "report/log/json_lines_log.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <optional>
#include <set>
#include <system_error>

#include "base/error.h"
#include "base/files.h"
#include "base/machine_limits.h"
#include "base/version.h"
#include "report/log/machine.h"
#include "report/log/timers.h"

namespace megatron::report {
namespace {

constexpr int64_t kSchema = 1;
constexpr std::string_view kBegin = R"({"type": ")";  // beginning of every line
constexpr std::array<std::string_view, 7> kTypes = {"run",    "step", "validation", "save",
                                                    "sample", "note", "end"};

Json number(double value) { return std::isfinite(value) ? Json(value) : Json(); }

Json::Object begin_line(std::string_view type, double time) {
  return {{"type", type}, {"time", time}};
}

Json machine(const RunRecord& run) {
  Json::Object object;
  if (const std::string cpu = cpu_name(); !cpu.empty()) object.emplace_back("cpu", readable(cpu));
  object.emplace_back("cores", core_count());
  if (const int64_t bytes = available_memory(); bytes > 0)
    object.emplace_back("memory_bytes", bytes);
  object.emplace_back("device", readable(run.device));
  return object;
}

// The layers, and for each metric by layer one value per layer; null: there are no metrics by
// layer.
Json layer_metrics(const std::vector<MetricValue>& metrics) {
  std::set<int64_t> layers;
  for (const MetricValue& m : metrics)
    for (const MetricValue::Layer& layer : m.layers) layers.insert(layer.layer);
  if (layers.empty()) return {};
  Json::Array numbers;
  for (const int64_t layer : layers) numbers.emplace_back(layer);
  Json::Object object = {{"layer", std::move(numbers)}};
  for (const MetricValue& m : metrics) {
    if (m.layers.empty()) continue;
    Json::Array values(layers.size());
    for (const auto& [layer, value] : m.layers)
      values[static_cast<size_t>(std::distance(layers.begin(), layers.find(layer)))] =
          number(value);
    object.emplace_back(readable(m.name), std::move(values));
  }
  return object;
}

std::string_view name(EndReason reason) {
  switch (reason) {
    case EndReason::done: return "done";
    case EndReason::signal: return "signal";
    case EndReason::exit_interval: return "exit-interval";
    case EndReason::exit_duration: return "exit-duration";
    case EndReason::error: return "error";
  }
  return "";
}

}  // namespace

Json to_json(const RunRecord& r, double time) {
  Json::Object line = {{"type", "run"}, {"schema", kSchema}, {"time", time}};
  line.emplace_back("version", version());
  line.emplace_back("host", readable(host_name()));
  Json::Array command;
  for (const std::string& argument : command_line()) command.push_back(readable(argument));
  line.emplace_back("command", std::move(command));
  line.emplace_back("iteration", r.iteration);
  Json::Object flags;
  for (const auto& [flag, value] : r.flags) flags.emplace_back(readable(flag), readable(value));
  line.emplace_back("flags", std::move(flags));
  line.emplace_back("model", r.model.is_null() ? Json(Json::Object{}) : r.model);
  line.emplace_back("parameters", r.parameters);
  line.emplace_back("layout", r.layout.is_null() ? Json(Json::Object{}) : r.layout);
  line.emplace_back("threads", r.threads);
  line.emplace_back("machine", machine(r));
  line.emplace_back("precision", readable(r.precision));
  if (std::isfinite(r.peak_flops) && r.peak_flops > 0)
    line.emplace_back("peak_flops", r.peak_flops);
  line.emplace_back("flop_formula", readable(r.flop_formula));
  line.emplace_back("train_iters", r.train_iters);
  line.emplace_back("seq_length", r.seq_length);
  line.emplace_back("consumed_tokens", r.consumed_tokens);
  return line;
}

Json to_json(const StepRecord& r, double time) {
  Json::Object line = begin_line("step", time);
  line.emplace_back("iteration", r.iteration);
  line.emplace_back("consumed_samples", r.consumed_samples);
  line.emplace_back("consumed_tokens", r.consumed_tokens);
  line.emplace_back("loss", number(r.loss));
  line.emplace_back("learning_rate", number(r.learning_rate));
  line.emplace_back("gradient_norm", number(r.gradient_norm));
  if (r.parameter_norm != 0) line.emplace_back("parameter_norm", number(r.parameter_norm));
  if (r.zero_gradients >= 0) line.emplace_back("zero_gradients", r.zero_gradients);
  if (!r.metrics.empty()) {
    Json::Object metrics;
    for (const MetricValue& m : r.metrics) metrics.emplace_back(readable(m.name), number(m.value));
    line.emplace_back("metrics", std::move(metrics));
    if (Json layers = layer_metrics(r.metrics); !layers.is_null())
      line.emplace_back("layer_metrics", std::move(layers));
  }
  line.emplace_back("weight_decay", number(r.weight_decay));
  if (r.loss_scale != 0) line.emplace_back("loss_scale", number(r.loss_scale));
  if (r.skipped > 0) line.emplace_back("skipped", r.skipped);
  line.emplace_back("global_batch_size", r.global_batch_size);
  line.emplace_back("steps", r.steps);
  line.emplace_back("seconds", number(r.seconds));
  line.emplace_back("tokens_per_second", number(r.tokens_per_second));
  if (r.overall_tokens_per_second > 0)
    line.emplace_back("overall_tokens_per_second", number(r.overall_tokens_per_second));
  line.emplace_back("flops_per_second", number(r.flops_per_second));
  if (!(r.peak_share < 0)) line.emplace_back("peak_share", number(r.peak_share));
  line.emplace_back("data_wait", number(r.data_wait));
  line.emplace_back("communication_wait", number(r.communication_wait));
  line.emplace_back("save_wait", number(r.save_wait));
  line.emplace_back("seconds_left", number(r.seconds_left));
  if (!r.timers.empty()) line.emplace_back("timers", timers_to_json(r.timers, r.timing_option));
  Json::Object memory;
  for (int i = 0; i < kMemoryClasses; ++i) {
    const auto memory_class = static_cast<MemoryClass>(i);
    const int64_t bytes = r.memory[static_cast<size_t>(i)];
    if (bytes > 0 || memory_class != MemoryClass::offload)
      memory.emplace_back(name(memory_class), bytes);
  }
  if (r.process_memory > 0) memory.emplace_back("process", r.process_memory);
  line.emplace_back("memory", std::move(memory));
  return line;
}

Json to_json(const ValidationRecord& r, double time) {
  Json::Object line = begin_line("validation", time);
  line.emplace_back("iteration", r.iteration);
  line.emplace_back("set", readable(r.set));
  line.emplace_back("loss", number(r.loss));
  if (!r.of_objective) line.emplace_back("perplexity", number(perplexity(r.loss)));
  line.emplace_back(r.of_objective ? "counted" : "tokens", number(r.tokens));
  for (const ValidationRecord::Metric& metric : r.metrics)
    line.emplace_back(metric.name, number(metric.value));
  return line;
}

Json to_json(const SaveRecord& r, double time) {
  Json::Object line = begin_line("save", time);
  line.emplace_back("iteration", r.iteration);
  line.emplace_back("path", readable(r.path));
  line.emplace_back("bytes", r.bytes);
  line.emplace_back("seconds", number(r.seconds));
  line.emplace_back("wait", number(r.wait));
  return line;
}

Json to_json(const SampleRecord& r, double time) {
  Json::Object line = begin_line("sample", time);
  line.emplace_back("iteration", r.iteration);
  line.emplace_back("prompt", readable(r.prompt));
  line.emplace_back("text", readable(r.text));
  return line;
}

Json note_to_json(int64_t iteration, bool warning, const std::string& text, double time) {
  Json::Object line = begin_line("note", time);
  line.emplace_back("iteration", iteration);
  line.emplace_back("level", warning ? "warning" : "info");
  line.emplace_back("text", readable(text));
  return line;
}

Json end_to_json(int64_t iteration, EndReason reason, const std::string& text, double time,
                 const RunTotals& totals) {
  Json::Object line = begin_line("end", time);
  line.emplace_back("iteration", iteration);
  line.emplace_back("reason", name(reason));
  if (!text.empty()) line.emplace_back("text", readable(text));
  if (totals.steps == 0) return line;
  line.emplace_back("steps", totals.steps);
  line.emplace_back("tokens", totals.tokens);
  line.emplace_back("seconds", number(totals.seconds));
  line.emplace_back("step_seconds", number(totals.step_seconds));
  line.emplace_back("evaluation_seconds", number(totals.evaluation_seconds));
  line.emplace_back("save_seconds", number(totals.save_seconds));
  line.emplace_back("tokens_per_second", number(totals.tokens_per_second()));
  line.emplace_back("overall_tokens_per_second", number(totals.overall_tokens_per_second()));
  return line;
}

namespace {

[[noreturn]] void fail_foreign(const std::string& path, int64_t line, std::string_view why) {
  fail(
      "line {} of '{}' is not a line of a run's log ({}); the file is left unchanged: move it "
      "away, or choose another with --log-jsonl",
      line, path, why);
}

// Iteration of a step record in to_json()'s layout, found without parsing all of it: a log may have
// a million records.
std::optional<int64_t> step_iteration(std::string_view text) {
  constexpr std::string_view kStep = R"({"type": "step", "time": )", kKey = R"(, "iteration": )";
  if (!text.starts_with(kStep) || !text.ends_with("}}")) return std::nullopt;
  text.remove_prefix(kStep.size());
  text.remove_prefix(std::min(text.find_first_not_of("0123456789.e+-"), text.size()));
  if (!text.starts_with(kKey)) return std::nullopt;
  text.remove_prefix(kKey.size());
  int64_t iteration = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), iteration);
  if (error != std::errc() || *end != ',') return std::nullopt;
  return iteration;
}

// Iteration of a complete line.
int64_t iteration_of(std::string_view text, const std::string& path, int64_t number) {
  if (const auto iteration = step_iteration(text); iteration && number > 1) return *iteration;
  try {
    const Json line = Json::parse(text);
    MG_CHECK(line.is_object() && !line.as_object().empty() && line.as_object()[0].first == "type",
             "it does not begin with \"type\"");
    const std::string& type = line["type"].as_string();
    MG_CHECK(std::find(kTypes.begin(), kTypes.end(), type) != kTypes.end(),
             "'{}' is not a record type", type);
    MG_CHECK(number > 1 || type == "run", "the first record is '{}', not 'run'", type);
    if (type == "run") {
      const int64_t schema = line["schema"].as_integer();
      MG_CHECK(schema <= kSchema, "schema {} is from a newer version; this one writes {}", schema,
               kSchema);
    }
    return line["iteration"].as_integer();
  } catch (const Error& error) {
    fail_foreign(path, number, error.what());
  }
}

// Checks a line that was truncated while it was written.
void check_cut_line(std::string_view text, const std::string& path, int64_t number) {
  const size_t shared = std::min(text.size(), kBegin.size());
  if (text.substr(0, shared) != kBegin.substr(0, shared)) {
    fail_foreign(path, number, "it is incomplete and does not begin like a record");
  }
}

// The part of the file that is kept; none: all of it. Checks every line.
std::optional<std::string> kept_lines(const std::string& path, int64_t last) {
  const MappedFile file(path);
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()),
                              file.bytes().size());
  std::string kept;
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    ++number;
    if (end == text.npos) {
      check_cut_line(text.substr(begin), path, number);
      break;
    }
    if (iteration_of(text.substr(begin, end - begin), path, number) <= last) {
      kept += text.substr(begin, end + 1 - begin);
    }
    begin = end + 1;
  }
  if (kept.size() == text.size()) return std::nullopt;
  return kept;
}

void keep_aside(const std::string& path) {
  std::string other;
  std::error_code error;
  for (int n = 1;; ++n) {
    other = fmt::format("{}.{}", path, n);
    if (!std::filesystem::exists(std::filesystem::symlink_status(other, error))) break;
  }
  std::filesystem::rename(path, other, error);
  MG_CHECK(!error, "cannot rename '{}', the log of an earlier run, to '{}': {}", path, other,
           write_failure(error.value()));
}

}  // namespace

void prepare_json_lines(const std::string& path, int64_t iteration) {
  std::error_code error;
  // A link is kept; its target is rewritten.
  const std::filesystem::path real = std::filesystem::canonical(path, error);
  if (error) return;  // does not exist; other problems show when it is opened
  if (!std::filesystem::is_regular_file(real, error)) return;
  if (std::filesystem::file_size(real, error) == 0) return;
  const std::optional<std::string> kept = kept_lines(real, iteration);
  if (iteration == 0) {
    keep_aside(path);
  } else if (kept) {
    write_file(real, *kept);
  }
}

}  // namespace megatron::report
