#include "training/profile/trace_file.h"

#include <fmt/core.h>

#include <cmath>

#include "base/command_output.h"
#include "tensor/finite.h"

namespace megatron::training {

std::string json_text(std::string_view text) { return Json(text).dump(); }

std::string json_number(double value) {
  return std::isfinite(value) ? fmt::format("{}", value)
                              : fmt::format("\"{}\"", unsigned_nan(value));
}

namespace {

constexpr std::string_view kBegin = "{\"displayTimeUnit\":\"ms\",\n\"traceEvents\":[";

const std::string& checked(const std::string& path) {
  check_output({path,
                "--profile-dir",
                {"a trace", [](std::string_view text) { return text.starts_with(kBegin); }}},
               {});
  return path;
}

}  // namespace

TraceFile::TraceFile(const std::string& path, const FileSystem& files)
    : path_(path), file_(checked(path), files) {
  file_.write(kBegin);
}

void TraceFile::line(std::string_view text) {
  file_.write(empty_ ? "\n" : ",\n");
  file_.write(text);
  empty_ = false;
}

void TraceFile::describe(std::string_view kind, int process, int thread, std::string_view value) {
  const std::string_view key = kind.ends_with("sort_index") ? "sort_index" : "name";
  line(fmt::format(R"({{"name":"{}","ph":"M","pid":{},"tid":{},"args":{{"{}":{}}}}})", kind,
                   process, thread, key, value));
}

void TraceFile::add(const Event& e) {
  const auto microseconds = [](int64_t ns) {
    return fmt::format("{}.{:03}", ns / 1000, ns % 1000);
  };
  line(fmt::format(
      R"({{"name":{},"cat":"{}","ph":"X","pid":{},"tid":{},"ts":{},"dur":{},"args":{}}})",
      json_text(e.name), e.category, e.process, e.thread, microseconds(e.begin),
      microseconds(e.end - e.begin), e.arguments));
}

void TraceFile::finish(const Json& other) {
  file_.write(fmt::format("\n],\n\"otherData\":{}}}\n", other.dump()));
  file_.commit();
}

}  // namespace megatron::training
