#include "report/log/tensorboard.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <filesystem>
#include <system_error>

#include "report/log/machine.h"

namespace megatron::report {
namespace {

constexpr std::string_view kPrefix = "events.out.tfevents.";

constexpr std::array<uint32_t, 256> make_crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ (value & 1 ? 0x82f63b78u : 0);
    table[i] = value;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kCrcTable = make_crc_table();

template <class T>
void put_little_endian(T value, std::string& out) {
  for (size_t i = 0; i < sizeof(T); ++i) out += static_cast<char>(value >> (8 * i) & 0xff);
}

// Fields of a protobuf message, each as its key and its value.
class Message {
 public:
  Message& varint(int field, uint64_t value) {
    key(field, 0);
    put_varint(value);
    return *this;
  }
  Message& fixed(int field, double value) {
    key(field, 1);
    put_little_endian(std::bit_cast<uint64_t>(value), bytes_);
    return *this;
  }
  Message& fixed(int field, float value) {
    key(field, 5);
    put_little_endian(std::bit_cast<uint32_t>(value), bytes_);
    return *this;
  }
  Message& bytes(int field, std::string_view value) {
    key(field, 2);
    put_varint(value.size());
    bytes_ += value;
    return *this;
  }
  Message& message(int field, const Message& value) { return bytes(field, value.bytes_); }
  const std::string& get() const { return bytes_; }

 private:
  void key(int field, unsigned wire) { put_varint(static_cast<uint64_t>(field) << 3 | wire); }
  void put_varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
  }

  std::string bytes_;
};

// SummaryMetadata: the plugin that displays a value, and its data class.
Message metadata(std::string_view plugin, uint64_t data_class) {
  return Message().message(1, Message().bytes(1, plugin)).varint(4, data_class);
}

constexpr int kFileVersion = 3, kSummary = 5, kSessionLog = 7;  // fields of Event
constexpr uint64_t kScalarClass = 1, kTensorClass = 2;

// Seconds in a file's name; -1: not an event file.
int64_t seconds_of(const std::string& name) {
  if (!name.starts_with(kPrefix)) return -1;
  int64_t seconds = -1;
  std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), seconds);
  return seconds;
}

// TensorBoard reads the files of a folder in the order of their names.
std::string next_name(const std::string& folder, double time) {
  auto seconds = static_cast<int64_t>(time);
  std::error_code error;
  for (std::filesystem::directory_iterator i(folder, error), end; !error && i != end;
       i.increment(error)) {
    const int64_t other = seconds_of(i->path().filename().string());
    if (other < int64_t{1} << 33) seconds = std::max(seconds, other + 1);
  }
  return fmt::format("{}/{}{:010}.{}.{}.0", folder, kPrefix, seconds, readable(host_name()),
                     ::getpid());
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t crc = ~0u;
  for (const char c : bytes) crc = crc >> 8 ^ kCrcTable[(crc ^ static_cast<uint8_t>(c)) & 0xff];
  return ~crc;
}

uint32_t masked_crc32c(std::string_view bytes) {
  return std::rotr(crc32c(bytes), 15) + 0xa282ead8u;
}

EventFile::EventFile(const std::string& folder, int64_t first_step, double time)
    : file_(next_name(folder, time), AppendFile::Open::create) {
  event(0, time, kFileVersion, "brain.Event:2");
  constexpr uint64_t kStart = 1;
  event(first_step, time, kSessionLog, Message().varint(1, kStart).get());
}

void EventFile::event(int64_t step, double time, int what, std::string_view message) {
  Message event;
  event.fixed(1, time).varint(2, static_cast<uint64_t>(step)).bytes(what, message);
  const std::string& data = event.get();
  std::string record;
  record.reserve(data.size() + 16);
  put_little_endian(static_cast<uint64_t>(data.size()), record);
  put_little_endian(masked_crc32c(record), record);
  record += data;
  put_little_endian(masked_crc32c(data), record);
  file_.write(record);
}

void EventFile::scalars(int64_t step, double time, const Scalars& values) {
  Message summary;
  for (const auto& [tag, value] : values) {
    summary.message(1, Message()
                           .bytes(1, tag)
                           .fixed(2, static_cast<float>(value))
                           .message(9, metadata("scalars", kScalarClass)));
  }
  event(step, time, kSummary, summary.get());
}

void EventFile::text(int64_t step, double time, const std::string& tag,
                     const std::string& markdown) {
  constexpr uint64_t kString = 7;                                      // DataType
  const Message shape = Message().message(2, Message().varint(1, 1));  // one dimension of size 1
  const Message tensor = Message().varint(1, kString).message(2, shape).bytes(8, markdown);
  const Message value =
      Message().bytes(1, tag).message(8, tensor).message(9, metadata("text", kTensorClass));
  event(step, time, kSummary, Message().message(1, value).get());
}

namespace {

// A row of a Markdown table.
std::string row(std::string_view name, std::string_view value) {
  std::string cell;
  for (const char c : readable(value)) {
    if (c == '|') cell += "\\|";
    else if (c == '\n' || c == '\r') cell += ' ';
    else cell += c;
  }
  return fmt::format("| {} | {} |\n", name, cell);
}

std::string configuration(const RunRecord& run) {
  std::string out = "| | |\n|---|---|\n";
  for (const auto& [flag, value] : run.flags) out += row("--" + readable(flag), value);
  for (const Json* object : {&run.model, &run.layout}) {
    if (!object->is_object()) continue;
    for (const auto& [key, value] : object->as_object()) out += row(key, value.dump());
  }
  out += row("parameters", fmt::format("{}", run.parameters));
  out += row("threads", fmt::format("{}", run.threads));
  out += row("precision", run.precision);
  out += row("device", run.device);
  out += row("cpu", cpu_name());
  out += row("host", host_name());
  return out;
}

// Text shown literally, not as Markdown.
std::string block(const std::string& text) {
  std::string out = "    ";
  for (const char c : readable(text)) {
    out += c;
    if (c == '\n') out += "    ";
  }
  return out;
}

}  // namespace

TensorBoard::TensorBoard(const std::string& folder, const RunRecord& run, double time)
    : samples_folder_(folder + "/vs_samples"),
      file_(folder, run.iteration == 0 ? 0 : run.iteration + 1, time) {
  file_.text(run.iteration, time, "configuration", configuration(run));
}

void TensorBoard::over_samples(int64_t first_sample, double time,
                               const EventFile::Scalars& values) {
  if (samples_file_ == nullptr) {
    samples_file_ = std::make_unique<EventFile>(samples_folder_, first_sample, time);
  }
  EventFile::Scalars named = values;
  for (auto& [tag, unused] : named) tag += " vs samples";
  samples_file_->scalars(consumed_samples_, time, named);
}

void TensorBoard::step(const StepRecord& r, double time) {
  const EventFile::Scalars main = {{"lm loss", r.loss},
                                   {"learning-rate", r.learning_rate},
                                   {"batch-size", static_cast<double>(r.global_batch_size)},
                                   {"grad-norm", r.gradient_norm}};
  EventFile::Scalars all = main;
  all.emplace_back("weight-decay", r.weight_decay);
  if (r.parameter_norm != 0) all.emplace_back("params-norm", r.parameter_norm);
  if (r.zero_gradients >= 0) all.emplace_back("num-zeros", static_cast<double>(r.zero_gradients));
  for (const MetricValue& m : r.metrics) {
    all.emplace_back(readable(m.name), m.value);
    for (const auto& [layer, value] : m.layers)
      all.emplace_back(fmt::format("{}/layer_{}", readable(m.name), layer), value);
  }
  for (const TimerFigure& f : r.timer_points)
    all.emplace_back(fmt::format("{}-time", f.name), f.most());
  if (r.loss_scale != 0) all.emplace_back("loss-scale", r.loss_scale);
  if (r.loss_scale != 0 || r.skipped > 0)
    all.emplace_back("skipped-iterations", static_cast<double>(r.skipped));
  all.emplace_back("iteration-time", r.seconds);
  all.emplace_back("throughput", r.flops_per_second * 1e-12);
  all.emplace_back("tokens-per-second", r.tokens_per_second);
  if (r.overall_tokens_per_second > 0)
    all.emplace_back("overall-tokens-per-second", r.overall_tokens_per_second);
  if (!(r.peak_share < 0)) all.emplace_back("peak-share", r.peak_share);
  all.emplace_back("data-wait", r.data_wait);
  all.emplace_back("communication-wait", r.communication_wait);
  all.emplace_back("save-wait", r.save_wait);
  for (int i = 0; i < kMemoryClasses; ++i) {
    const auto memory_class = static_cast<MemoryClass>(i);
    const int64_t bytes = r.memory[static_cast<size_t>(i)];
    if (bytes > 0 || memory_class != MemoryClass::offload)
      all.emplace_back(fmt::format("mem-{}-bytes", name(memory_class)), static_cast<double>(bytes));
  }
  if (r.process_memory > 0) {
    all.emplace_back("mem-process-bytes", static_cast<double>(r.process_memory));
  }
  file_.scalars(r.iteration, time, all);
  consumed_samples_ = r.consumed_samples;
  over_samples(r.consumed_samples - r.steps * r.global_batch_size + 1, time, main);
}

void TensorBoard::validation(const ValidationRecord& r, double time) {
  const bool named = !r.set.empty() && r.set != "valid";
  const std::string set = named ? " " + readable(r.set) : std::string(),
                    tag = (r.of_objective ? "loss validation" : "lm loss validation") + set;
  EventFile::Scalars values = {{tag, r.loss}};
  if (!r.of_objective) values.emplace_back(tag + " ppl", perplexity(r.loss));
  for (const ValidationRecord::Metric& metric : r.metrics)
    values.emplace_back(metric.name + " validation" + set, metric.value);
  file_.scalars(r.iteration, time, values);
  if (samples_file_ != nullptr) over_samples(consumed_samples_, time, values);
}

void TensorBoard::sample(const SampleRecord& r, double time) {
  file_.text(r.iteration, time, "sample", block(r.prompt + r.text));
}

}  // namespace megatron::report
