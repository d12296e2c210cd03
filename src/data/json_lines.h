// Files with one JSON object a line. Each key asked for holds a text or a list of texts
// (sentences). Other members of a record are ignored as long as json_record.h can read them.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/input_file.h"

namespace megatron::data {

// One line after the other, by one thread, without copying the line.
class JsonLineParser {
 public:
  explicit JsonLineParser(std::vector<std::string> keys);
  ~JsonLineParser();

  // For each key its texts, which are valid until the next call. At least LineBlock::kPadding bytes
  // behind the line must be readable. Of a repeated key the last value counts. Throws Error for bad
  // JSON (text that is not UTF-8 too), a missing key, a value of another type or a lone surrogate
  // in it; it does not name the file.
  std::span<const std::vector<std::string_view>> parse(std::string_view line);

 private:
  struct State;
  void take_from_whole();

  std::vector<std::string> keys_;
  std::vector<std::vector<std::string_view>> texts_;
  std::unique_ptr<State> state_;
};

struct JsonRecord {
  int64_t line = 0;                              // line number, from 1
  std::vector<std::vector<std::string>> values;  // for each key, its texts
};

class JsonLinesReader {
 public:
  JsonLinesReader(const std::string& path, std::vector<std::string> keys);

  // The next record; false at the end. Lines of white space are skipped. Throws Error as the parser
  // does, naming file and line.
  bool next(JsonRecord& record);
  const InputFile& file() const { return file_; }

 private:
  InputFile file_;
  JsonLineParser parser_;
  std::string line_;
};

bool is_blank(std::string_view line);  // nothing but spaces, tabs and line ends

}  // namespace megatron::data
