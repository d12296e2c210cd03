// Cuts a plain text file between paragraphs into documents of a few kilobytes.
//
// A document ends after the first blank line (of spaces, tabs and line ends only) beyond its 2000th
// byte, including directly following blank lines. If there is none before the 8000th byte, it ends
// at the first line end from there on; a line is never cut, so a file without line ends is one
// document. The concatenated documents are the file, byte for byte. An empty file has none.
#pragma once

#include <cstdint>
#include <string>

#include "data/input_file.h"

namespace megatron::data {

class TextCutter {
 public:
  explicit TextCutter(std::string path) : file_(std::move(path)) {}

  // Reads the next document and the number of its first line, from 1. Returns false at the end.
  // Throws Error for a document above 1 GiB.
  bool next(std::string& text, int64_t& line);

  const InputFile& file() const { return file_; }

 private:
  InputFile file_;
  std::string ahead_;  // first line of the next document if it was already read
};

}  // namespace megatron::data
