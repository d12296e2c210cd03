// Files with one JSON object a line. Each key asked for holds a text or a list of texts
// (sentences).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/input_file.h"

namespace megatron::data {

struct JsonRecord {
  int64_t line = 0;                              // line number, from 1
  std::vector<std::vector<std::string>> values;  // for each key, its texts
};

class JsonLinesReader {
 public:
  JsonLinesReader(const std::string& path, std::vector<std::string> keys);
  ~JsonLinesReader();

  // The next record; false at the end. Lines of white space are skipped; of a repeated key the
  // last value counts. Throws Error naming file and line for bad JSON, a missing key or a value of
  // another type.
  bool next(JsonRecord& record);
  const InputFile& file() const { return file_; }

 private:
  struct Parser;
  void parse(std::string& line, JsonRecord& record);

  InputFile file_;
  std::vector<std::string> keys_;
  std::string line_;
  std::unique_ptr<Parser> parser_;
};

}  // namespace megatron::data
