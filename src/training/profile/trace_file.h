// A file of Chrome's trace event format (the JSON object form), which chrome://tracing and
// ui.perfetto.dev open. Format: Google, "Trace Event Format", 2016.
#pragma once

#include <string>
#include <string_view>

#include "base/files.h"
#include "base/json.h"

namespace megatron::training {

// A text as a JSON string, with its quotes; a number, or a string such as "nan" for values that
// JSON numbers cannot represent.
std::string json_text(std::string_view text);
std::string json_number(double value);

class TraceFile {
 public:
  // Opens the file (base/files.h, AtomicFile). Throws Error naming a directory that is not
  // writable.
  TraceFile(const std::string& path, const FileSystem& files);

  const std::string& path() const { return path_; }
  // kind: "process_name" or "thread_name"; "..._sort_index" takes a number. value: JSON.
  void describe(std::string_view kind, int process, int thread, std::string_view value);
  // An event with a duration, in nanoseconds. arguments: a JSON object. Events of one thread are
  // nested or disjoint.
  struct Event {
    std::string_view name, category;
    int process = 0, thread = 0;
    int64_t begin = 0, end = 0;
    std::string_view arguments = "{}";
  };
  void add(const Event& event);
  // Completes the file, which then appears under its name. other: written besides the events.
  void finish(const Json& other);

 private:
  void line(std::string_view text);

  std::string path_;
  AtomicFile file_;
  bool empty_ = true;
};

}  // namespace megatron::training
