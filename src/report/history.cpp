#include "report/history.h"

#include <simdjson.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <system_error>

#include "base/error.h"
#include "report/figures.h"
#include "report/markup.h"

namespace megatron::report {
namespace {

namespace fs = std::filesystem;
namespace dom = simdjson::dom;

constexpr int64_t kKnownSchema = 1;
constexpr size_t kMaxRuns = 64, kMaxRows = 4000, kMinRows = 600, kRowsOfAll = 16000;
constexpr size_t kMaxValidations = 600, kMaxSamples = 60, kMaxSaves = 300, kMaxNotes = 400;
constexpr size_t kMaxSessions = 10000, kMaxSets = 64, kListedDamages = 5;
constexpr size_t kLongestLine = size_t{64} << 20;

std::string file_of(const std::string& run) {
  std::error_code error;
  const fs::file_status status = fs::status(run, error);
  MG_CHECK(fs::exists(status),
           "there is no run '{}'; give a run's --save directory, or its JSONL file (--log-jsonl)",
           run);
  if (!fs::is_directory(status)) return run;
  const fs::path file = fs::path(run) / "log.jsonl";
  if (fs::exists(file, error)) return file.string();
  std::string inside;
  for (const auto& entry : fs::directory_iterator(run, error)) {
    if (!fs::exists(entry.path() / "log.jsonl", error)) continue;
    if (inside.empty() || entry.path().string() < inside) inside = entry.path().string();
  }
  fail("the directory '{}' has no log.jsonl; {}", run,
       inside.empty()
           ? "`megatron train --save DIR` writes one; for a log written elsewhere (--log-jsonl "
             "FILE), give the file"
           : fmt::format("there is one in '{}': give the run's own directory", inside));
}

// The lines of a log, in order, up to the file's size when it was opened, because a run in progress
// may still write to it. A last line without a line feed counts as a line.
class Lines {
 public:
  Lines(const std::string& path, int64_t bytes)
      : path_(path), file_(std::fopen(path.c_str(), "rbe")), unread_(bytes) {
    MG_CHECK(file_ != nullptr, "cannot open '{}': {}", path, reason(errno));
  }
  ~Lines() { std::fclose(file_); }
  Lines(const Lines&) = delete;
  Lines& operator=(const Lines&) = delete;

  // Returns only the beginning of a line above 64 MiB.
  bool next(std::string_view& line) {
    size_t end = buffer_.find('\n', begin_);
    size_t looked_at = buffer_.size();
    while (end == buffer_.npos && looked_at - begin_ <= kLongestLine && fill(looked_at))
      end = buffer_.find('\n', looked_at);
    if (begin_ == buffer_.size()) return false;
    whole_ = end != buffer_.npos;
    const size_t stop = whole_ ? end : buffer_.size();
    line = std::string_view(buffer_).substr(begin_, stop - begin_);
    begin_ = whole_ ? stop + 1 : stop;
    if (line.ends_with('\r')) line.remove_suffix(1);
    number_ += 1;
    return true;
  }
  bool whole() const { return whole_; }  // whether it ends with a line feed
  bool last() const { return unread_ == 0 && begin_ == buffer_.size(); }
  int64_t number() const { return number_; }

 private:
  // Drops consumed lines and reads more; looked_at: start of the new bytes.
  bool fill(size_t& looked_at) {
    buffer_.erase(0, begin_);
    begin_ = 0;
    looked_at = buffer_.size();
    const auto wanted = static_cast<size_t>(std::min(unread_, kPart));
    buffer_.resize(looked_at + wanted);
    const size_t read = std::fread(buffer_.data() + looked_at, 1, wanted, file_);
    MG_CHECK(std::ferror(file_) == 0, "cannot read '{}': {}", path_, reason(errno));
    buffer_.resize(looked_at + read);
    unread_ = read < wanted ? 0 : unread_ - static_cast<int64_t>(read);
    return read > 0;
  }
  static std::string reason(int error) { return std::generic_category().message(error); }

  static constexpr int64_t kPart = int64_t{4} << 20;
  std::string path_, buffer_;
  std::FILE* file_;
  int64_t unread_, number_ = 0;
  size_t begin_ = 0;
  bool whole_ = true;
};

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t") == line.npos; }

constexpr double kMaxIterations = 1e15;

struct Key {
  std::string_view name;
  StepColumn column;
};
constexpr Key kKeys[] = {
    {"iteration", kIteration},
    {"consumed_tokens", kTokens},
    {"loss", kLoss},
    {"learning_rate", kLearningRate},
    {"gradient_norm", kGradientNorm},
    {"tokens_per_second", kTokensPerSecond},
    {"flops_per_second", kFlopsPerSecond},
    {"peak_share", kPeakShare},
    {"data_wait", kDataWait},
    {"communication_wait", kCommunicationWait},
    {"save_wait", kSaveWait},
    {"global_batch_size", kBatchSize},
    {"seconds", kStepSeconds},
    {"seconds_left", kSecondsLeft},
};

double number_in(const dom::element& value, std::string_view key) {
  if (value.is_null()) return kNone;
  double result = 0;
  MG_CHECK(value.get(result) == simdjson::SUCCESS, "the value of '{}' is not a number",
           printable(key));
  return result;
}

size_t memory_column(std::string_view key) {
  if (key == "process") return kProcessMemory;
  for (int i = 0; i < kMemoryClasses; ++i)
    if (key == name(static_cast<MemoryClass>(i))) return kFirstMemoryClass + static_cast<size_t>(i);
  return kStepColumns;
}

// Parses one line of a log at a time. A million steps are a million lines, so step records use a
// fast parser.
class LogLineParser {
 public:
  // Parses a line. Bytes in texts that are not UTF-8 are replaced. Throws Error with the reason why
  // it is not a record: bad JSON, no "type", a step without an iteration, a value that is not a
  // number.
  void parse(std::string_view line);

  // Fields of the line read last. Without a time it is NaN, without an iteration 0.
  const std::string& type() const { return type_; }
  double time() const { return time_; }
  double iteration() const { return row_[kIteration]; }
  // A step: its row, without kElapsed.
  std::array<double, kStepColumns>& row() { return row_; }
  bool has(std::string_view key) const;
  std::string_view line() const { return line_; }
  Json record() const;  // all of it

 private:
  void read_step();

  dom::parser parser_;
  dom::object fields_;
  std::string repaired_;
  std::string_view line_;
  std::string type_;
  double time_ = 0;
  std::array<double, kStepColumns> row_{};
};

void LogLineParser::parse(std::string_view line) {
  dom::element document;
  auto error = parser_.parse(line.data(), line.size()).get(document);
  if (error == simdjson::UTF8_ERROR) {
    repaired_ = printable(line);
    line = repaired_;
    error = parser_.parse(line.data(), line.size()).get(document);
  }
  MG_CHECK(error == simdjson::SUCCESS, "it is not JSON: {}", simdjson::error_message(error));
  MG_CHECK(document.get(fields_) == simdjson::SUCCESS, "it is not a JSON object");
  line_ = line;
  row_.fill(kNone);
  row_[kIteration] = 0;
  time_ = kNone;
  std::string_view type;
  MG_CHECK(fields_["type"].get(type) == simdjson::SUCCESS, "it has no \"type\"");
  type_ = type;
  dom::element value;
  if (fields_["time"].get(value) == simdjson::SUCCESS) time_ = number_in(value, "time");
  if (type_ == "step") {
    read_step();
  } else if (fields_["iteration"].get(value) == simdjson::SUCCESS) {
    row_[kIteration] = number_in(value, "iteration");
  }
  MG_CHECK(row_[kIteration] >= 0 && row_[kIteration] <= kMaxIterations,
           "its iteration is missing or out of range");
}

void LogLineParser::read_step() {
  row_[kIteration] = kNone;
  for (const auto field : fields_) {
    if (field.key == "memory") {
      dom::object classes;
      MG_CHECK(field.value.get(classes) == simdjson::SUCCESS, "'memory' is not an object");
      for (const auto part : classes)
        if (const size_t column = memory_column(part.key); column < kStepColumns)
          row_[column] = number_in(part.value, part.key);
      continue;
    }
    for (const Key& key : kKeys)
      if (field.key == key.name) row_[key.column] = number_in(field.value, key.name);
  }
}

bool LogLineParser::has(std::string_view key) const {
  return fields_.at_key(key).error() == simdjson::SUCCESS;
}

Json LogLineParser::record() const { return Json::parse(line_, "the line"); }

// For each session the iteration up to which its records count: the lowest from which a later one
// resumed. Entry 0 is for lines before the first "run" record.
std::vector<double> limits_of(const std::string& path, int64_t bytes) {
  std::vector<double> resumed_from;
  LogLineParser parser;
  Lines lines(path, bytes);
  for (std::string_view line; lines.next(line);) {
    if (line.substr(0, 40).find("\"run\"") == line.npos || line.size() > kLongestLine) continue;
    try {
      parser.parse(line);
    } catch (const Error&) {
      continue;
    }
    if (parser.type() == "run") resumed_from.push_back(parser.iteration());
  }
  std::vector<double> limits(resumed_from.size() + 1, std::numeric_limits<double>::infinity());
  for (size_t i = resumed_from.size(); i > 0; --i)
    limits[i - 1] = std::min(limits[i], resumed_from[i - 1]);
  return limits;
}

float median(std::vector<float>& values) {
  if (values.empty()) return std::numeric_limits<float>::quiet_NaN();
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

class HistoryReader {
 public:
  HistoryReader(std::string path, size_t rows)
      : history_{.name = {},
                 .path = std::move(path),
                 .sessions = {},
                 .steps = Curve(kStepColumns, {kLoss, kGradientNorm, kTokensPerSecond}, rows)} {}

  RunHistory read() {
    std::error_code error;
    MG_CHECK(fs::is_regular_file(history_.path, error), "'{}' is not a regular file; {}",
             history_.path, "give the JSONL file of a run, or its --save directory");
    history_.bytes = static_cast<int64_t>(fs::file_size(history_.path));
    limits_ = limits_of(history_.path, history_.bytes);
    Lines lines(history_.path, history_.bytes);
    for (std::string_view line; lines.next(line);) {
      if (is_blank(line)) continue;
      try {
        MG_CHECK(line.size() <= kLongestLine, "it is longer than 64 MiB");
        parser_.parse(line);
        take();
      } catch (const NewerSchema&) {
        throw;
      } catch (const Error& e) {
        damaged(lines, e.what());
      }
    }
    return finish();
  }

 private:
  class NewerSchema : public Error {
    using Error::Error;
  };

  void damaged(const Lines& lines, std::string_view reason) {
    if (lines.last() && !lines.whole()) {
      history_.cut = true;
      return;
    }
    ++history_.damaged;
    if (history_.damages.size() < kListedDamages)
      history_.damages.push_back(
          fmt::format("{}, line {}: {}", history_.path, lines.number(), reason));
    MG_CHECK(history_.damaged <= 100 || history_.damaged <= records_,
             "'{}' is not the log of a run: {} lines are not records ({}); `megatron train` "
             "writes log.jsonl in its --save directory",
             history_.path, history_.damaged, history_.damages.front());
  }

  void take() {
    if (parser_.type() == "run") return begin_session();
    if (parser_.type() == "step" && !history_.sessions.empty())
      history_.sessions.back().trained = true;
    if (parser_.iteration() > limits_[history_.sessions.size()]) {
      ++history_.replaced;
      return;
    }
    if (parser_.type() == "step") {
      take_step();
    } else {
      take_other();
    }
    ++records_;
    history_.last_iteration =
        std::max(history_.last_iteration, static_cast<int64_t>(parser_.iteration()));
    note_time();
  }

  void begin_session() {
    Json record = parser_.record();
    const Json* schema = record.find("schema");
    if (schema != nullptr && schema->is_number() && schema->as_number() > kKnownSchema) {
      const Json* version = record.find("version");
      throw NewerSchema(fmt::format(
          "'{}' was written by a newer version of this program (schema {:g}{}); this one supports "
          "schema {}: use the newer version for the report",
          history_.path, schema->as_number(),
          version != nullptr && version->is_string() ? ", version " + version->as_string() : "",
          kKnownSchema));
    }
    MG_CHECK(history_.sessions.size() < kMaxSessions, "there are more than {} sessions",
             kMaxSessions);
    const double elapsed = elapsed_;
    session_elapsed_ = elapsed;
    session_time_ = parser_.time();
    history_.sessions.push_back({.run = std::move(record),
                                 .iteration = static_cast<int64_t>(parser_.iteration()),
                                 .time = parser_.time(),
                                 .elapsed = elapsed,
                                 .end = {}});
    ++records_;
    note_time();
  }

  void note_time() {
    const double time = parser_.time();
    if (!std::isfinite(time)) return;
    if (history_.first_time == 0) history_.first_time = time;
    history_.last_time = time;
    elapsed_ = elapsed_at(time);
  }

  // Without a time, or if the clock was set back, uses the time of the previous record.
  double elapsed_at(double time) const {
    if (!std::isfinite(time) || !std::isfinite(session_time_)) return elapsed_;
    return std::max(elapsed_, session_elapsed_ + (time - session_time_));
  }

  void take_step() {
    auto& row = parser_.row();
    if (!std::isfinite(session_time_)) session_time_ = parser_.time();
    row[kElapsed] = elapsed_at(parser_.time());
    if (!std::isfinite(row[kLoss])) ++history_.loss_not_finite;
    keep(tokens_per_second_, row[kTokensPerSecond]);
    keep(flops_per_second_, row[kFlopsPerSecond]);
    keep(peak_shares_, row[kPeakShare]);
    history_.steps.add(row);
    if (!parser_.has("layer_metrics")) return;
    by_layer_ = parser_.line();
    history_.layer_metrics_iteration = static_cast<int64_t>(parser_.iteration());
  }

  static void keep(std::vector<float>& values, double value) {
    if (std::isfinite(value)) values.push_back(static_cast<float>(value));
  }

  void take_other() {
    const std::string& type = parser_.type();
    Json record = parser_.record();
    if (type == "validation") return take_validation(record);
    if (type == "sample") return history_.samples.add(std::move(record), kMaxSamples);
    if (type == "save") return history_.saves.add(std::move(record), kMaxSaves);
    if (type == "note") return history_.notes.add(std::move(record), kMaxNotes);
    if (type == "end" && !history_.sessions.empty())
      history_.sessions.back().end = std::move(record);
  }

  void take_validation(const Json& record) {
    const Json* set = record.find("set");
    const std::string name = set != nullptr && set->is_string() ? set->as_string() : "valid";
    auto& all = history_.validations;
    auto at = std::find_if(all.begin(), all.end(), [&](const auto& v) { return v.set == name; });
    if (at == all.end()) {
      MG_CHECK(all.size() < kMaxSets, "there are more than {} validation sets", kMaxSets);
      all.push_back({name, Curve(3, {kValidationLoss}, kMaxValidations), kNone, 0});
      at = all.end() - 1;
    }
    const double loss = number_of(record, "loss");
    const double row[] = {parser_.iteration(), elapsed_at(parser_.time()), loss};
    at->curve.add(row);
    if (std::isfinite(loss) && !(loss >= at->best)) {
      at->best = loss;
      at->best_iteration = static_cast<int64_t>(parser_.iteration());
    }
  }

  RunHistory finish() {
    MG_CHECK(!history_.sessions.empty(),
             "'{}' is not the log of a run: it has no record of type \"run\"{}; `megatron train` "
             "writes log.jsonl in its --save directory",
             history_.path,
             history_.damages.empty() ? std::string() : " (" + history_.damages.front() + ")");
    history_.elapsed = elapsed_;
    try {
      if (!by_layer_.empty()) history_.layer_metrics = Json::parse(by_layer_)["layer_metrics"];
    } catch (const Error&) {  // such as a duplicate key
    }
    history_.median_tokens_per_second = median(tokens_per_second_);
    history_.median_flops_per_second = median(flops_per_second_);
    history_.median_peak_share = median(peak_shares_);
    history_.overall_tokens_per_second = overall_rate();
    return std::move(history_);
  }

  // Older logs that begin with a resumed run do not record how many tokens were trained on before.
  double overall_rate() const {
    const Session& first = history_.sessions.front();
    const double before = first.iteration == 0 ? 0 : number_of(first.run, "consumed_tokens");
    const double tokens = history_.steps.last_finite(kTokens) - before;
    return tokens > 0 && elapsed_ > 0 ? tokens / elapsed_ : kNone;
  }

  RunHistory history_;
  LogLineParser parser_;
  std::vector<double> limits_;
  int64_t records_ = 0;
  std::string by_layer_;  // last step's line with "layer_metrics"
  double elapsed_ = 0, session_elapsed_ = 0, session_time_ = kNone;
  std::vector<float> tokens_per_second_, flops_per_second_, peak_shares_;  // of every step
};

// Directory of a log.jsonl, otherwise the file's name without its extension.
std::vector<std::string> name_parts(const std::string& path) {
  std::error_code error;
  fs::path p = fs::weakly_canonical(path, error);
  if (error) p = path;
  if (p.filename() == "log.jsonl") {
    p = p.parent_path();
  } else if (p.extension() == ".jsonl") {
    p.replace_extension();
  }
  std::vector<std::string> parts;
  for (const fs::path& part : p.relative_path()) parts.push_back(part.string());
  std::reverse(parts.begin(), parts.end());
  return parts;
}

void give_names(std::vector<RunHistory>& histories) {
  for (size_t i = 0; i < histories.size(); ++i) {
    const std::vector<std::string> parts = name_parts(histories[i].path);
    size_t needed = 1;
    for (size_t j = 0; j < histories.size(); ++j) {
      if (i == j) continue;
      const std::vector<std::string> other = name_parts(histories[j].path);
      size_t same = 0;
      while (same < std::min(parts.size(), other.size()) && parts[same] == other[same]) ++same;
      needed = std::max(needed, same + 1);
    }
    std::string& name = histories[i].name;
    for (size_t k = std::min(needed, parts.size()); k > 0; --k)
      name += parts[k - 1] + (k > 1 ? "/" : "");
    if (name.empty()) name = histories[i].path;
  }
}

}  // namespace

void Records::add(Json record, size_t limit) {
  ++seen;
  kept.push_back(std::move(record));
  if (kept.size() <= 2 * limit) return;
  size_t end = 0;
  for (size_t i = kept.size() % 2 == 0 ? 1 : 0; i < kept.size(); i += 2)
    kept[end++] = std::move(kept[i]);
  kept.resize(end);
}

RunHistory read_history(const std::string& run, size_t rows) {
  return HistoryReader(file_of(run), rows).read();
}

std::vector<RunHistory> read_histories(const std::vector<std::string>& runs) {
  MG_CHECK(!runs.empty(), "no run is given");
  MG_CHECK(runs.size() <= kMaxRuns, "{} runs are given; a page can show at most {}", runs.size(),
           kMaxRuns);
  const size_t rows = std::clamp(kRowsOfAll / runs.size(), kMinRows, kMaxRows);
  std::vector<RunHistory> histories;
  std::vector<std::string> places;
  for (const std::string& run : runs) {
    std::error_code error;
    const std::string place = fs::weakly_canonical(file_of(run), error).string();
    MG_CHECK(std::find(places.begin(), places.end(), place) == places.end(),
             "the run '{}' is given twice; name it once", run);
    places.push_back(place);
    histories.push_back(read_history(run, rows));
  }
  give_names(histories);
  return histories;
}

}  // namespace megatron::report
