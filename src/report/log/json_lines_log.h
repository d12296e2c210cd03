// The JSONL file of a run (record.h describes its lines).
#pragma once

#include <cstdint>
#include <string>

#include "base/json.h"
#include "report/log/append_file.h"
#include "report/log/record.h"

namespace megatron::report {

// Formats each record as a line. Numbers that are not finite become null; bytes that are not UTF-8
// become U+FFFD. time: seconds since 1970.
Json to_json(const RunRecord& record, double time);
Json to_json(const StepRecord& record, double time);
Json to_json(const ValidationRecord& record, double time);
Json to_json(const SaveRecord& record, double time);
Json to_json(const SampleRecord& record, double time);
Json note_to_json(int64_t iteration, bool warning, const std::string& text, double time);
// totals: written if at least one step was made.
Json end_to_json(int64_t iteration, EndReason reason, const std::string& text, double time,
                 const RunTotals& totals = {});

// Prepares a file that may exist for a run that continues from `iteration`:
//   0: an existing file gets the first free name of <path>.1, <path>.2 ...
//   else: records beyond the iteration and a truncated last line are removed. The file is rewritten
//   atomically, or left unchanged if there is nothing to remove.
// Throws Error naming the line, without changing anything, if the file is not a log of a run or was
// written by a newer version. A file that is not regular (a pipe, a device) is left unchanged.
void prepare_json_lines(const std::string& path, int64_t iteration);

class JsonLinesLog {
 public:
  JsonLinesLog(const std::string& path, int64_t iteration)
      : file_((prepare_json_lines(path, iteration), path), AppendFile::Open::append) {}

  const std::string& path() const { return file_.path(); }
  void write(const Json& record) { file_.write(record.dump() + "\n"); }  // throws Error

 private:
  AppendFile file_;
};

}  // namespace megatron::report
