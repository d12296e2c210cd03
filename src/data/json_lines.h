// Files with one JSON object per line. Each requested key holds a text or a list of texts
// (sentences). Other members of a record are ignored as long as json_record.h can read them.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/input_file.h"

namespace megatron::data {

// Parses lines one after the other on one thread, without copying them.
class JsonLineParser {
 public:
  explicit JsonLineParser(std::vector<std::string> keys);
  ~JsonLineParser();

  // Returns each key's texts, which are valid until the next call. At least LineBlock::kPadding
  // bytes after the line must be readable. For a repeated key the last value counts. Throws Error
  // for bad JSON (including text that is not UTF-8), a missing key, a value of another type or a
  // lone surrogate in it; the text does not name the file.
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
  std::vector<std::vector<std::string>> values;  // texts of each key
};

class JsonLinesReader {
 public:
  JsonLinesReader(const std::string& path, std::vector<std::string> keys);

  // Reads the next record; returns false at the end. Lines of white space are skipped. Throws Error
  // like the parser, naming file and line.
  bool next(JsonRecord& record);
  const InputFile& file() const { return file_; }

 private:
  InputFile file_;
  JsonLineParser parser_;
  std::string line_;
};

bool is_blank(std::string_view line);  // nothing but spaces, tabs and line ends

}  // namespace megatron::data
