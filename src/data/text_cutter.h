// A plain text file as documents of a few kilobytes, cut between paragraphs.
//
// A document ends behind the first blank line (one of spaces, tabs and line ends alone) that comes
// after its 2000th byte, and behind the blank lines that follow it directly. Where none comes
// before the 8000th byte, it ends at the first line end from there on; a line is never cut, so that
// a file without line ends is one document. The documents one after the other are the file, byte
// for byte. An empty file has none.
#pragma once

#include <cstdint>
#include <string>

#include "data/input_file.h"

namespace megatron::data {

class TextCutter {
 public:
  explicit TextCutter(std::string path) : file_(std::move(path)) {}

  // The next document and the number of its first line, from 1. False at the end. Throws Error for
  // a document above 1 GiB.
  bool next(std::string& text, int64_t& line);

  const InputFile& file() const { return file_; }

 private:
  InputFile file_;
  std::string ahead_;  // the first line of the next document, when it is read already
};

}  // namespace megatron::data
