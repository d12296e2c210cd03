#include "report/log_line.h"

#include <simdjson.h>

#include <limits>

#include "base/error.h"
#include "report/markup.h"

namespace megatron::report {
namespace {

namespace dom = simdjson::dom;

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

double number(const dom::element& value, std::string_view key) {
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

}  // namespace

struct LogLineParser::State {
  dom::parser parser;
  dom::object fields;
};

LogLineParser::LogLineParser() : state_(std::make_unique<State>()) {}
LogLineParser::~LogLineParser() = default;

void LogLineParser::parse(std::string_view line) {
  dom::element document;
  auto error = state_->parser.parse(line.data(), line.size()).get(document);
  if (error == simdjson::UTF8_ERROR) {
    repaired_ = printable(line);
    line = repaired_;
    error = state_->parser.parse(line.data(), line.size()).get(document);
  }
  MG_CHECK(error == simdjson::SUCCESS, "it is not JSON: {}", simdjson::error_message(error));
  MG_CHECK(document.get(state_->fields) == simdjson::SUCCESS, "it is not a JSON object");
  line_ = line;
  row_.fill(kNone);
  row_[kIteration] = 0;
  time_ = kNone;
  std::string_view type;
  MG_CHECK(state_->fields["type"].get(type) == simdjson::SUCCESS, "it has no \"type\"");
  type_ = type;
  dom::element value;
  if (state_->fields["time"].get(value) == simdjson::SUCCESS) time_ = number(value, "time");
  if (type_ == "step") {
    read_step();
  } else if (state_->fields["iteration"].get(value) == simdjson::SUCCESS) {
    row_[kIteration] = number(value, "iteration");
  }
  MG_CHECK(row_[kIteration] >= 0 && row_[kIteration] <= kMaxIterations,
           "its iteration is missing or out of range");
}

void LogLineParser::read_step() {
  row_[kIteration] = kNone;
  for (const auto field : state_->fields) {
    if (field.key == "memory") {
      dom::object classes;
      MG_CHECK(field.value.get(classes) == simdjson::SUCCESS, "'memory' is not an object");
      for (const auto part : classes)
        if (const size_t column = memory_column(part.key); column < kStepColumns)
          row_[column] = number(part.value, part.key);
      continue;
    }
    for (const Key& key : kKeys)
      if (field.key == key.name) row_[key.column] = number(field.value, key.name);
  }
}

bool LogLineParser::has(std::string_view key) const {
  return state_->fields.at_key(key).error() == simdjson::SUCCESS;
}

Json LogLineParser::record() const { return Json::parse(line_, "the line"); }

}  // namespace megatron::report
