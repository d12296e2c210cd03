// The documents of a path, in order, in bounded memory.
//
//   a .jsonl, .ndjson or .json file   one document per line, under a key
//   any other file                    plain text, cut into documents of 2 to 8 kB between
//                                     paragraphs (text_cutter.h); with whole_files, one document
//
// A path may also be a directory or a pattern (input_list.h). Cutting lets --split hold out a part
// of a text that is a single file. Each file may be compressed with gzip or zstd. Texts must be
// valid UTF-8.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/input_list.h"

namespace megatron::data {

class JsonLinesReader;
class TextCutter;

struct TextSourceOptions {
  std::string json_key = "text";
  bool whole_files = false;  // does not split plain text files
  bool json_lines = false;   // every file has JSON lines, whatever its name

  TextKind kind() const { return json_lines ? TextKind::json_lines : TextKind::automatic; }
};

// Reads the text of a file that is a single document.
std::string read_whole_text(const std::string& path);

class TextSource {
 public:
  // Throws Error if the path does not exist or a directory holds no file.
  explicit TextSource(const std::string& path, TextSourceOptions options = {});
  ~TextSource();

  // Reads the next document and its location (file, or file:line of its first line). Returns false
  // at the end. Throws Error naming that location.
  bool next(std::string& text, std::string& name);
  // The same with the texts of a list kept apart; otherwise a document is one text. A source must
  // be read by only one of the two.
  bool next(std::vector<std::string>& texts, std::string& name);

  int64_t bytes_read() const;                           // out of total_bytes(), for progress
  int64_t total_bytes() const { return total_bytes_; }  // size of the files on disk

 private:
  bool next_line(std::vector<std::string>& texts, std::string& name);
  bool next_piece(std::vector<std::string>& texts, std::string& name);

  TextSourceOptions options_;
  std::vector<InputEntry> files_;
  size_t at_ = 0;                           // next file to open
  std::unique_ptr<JsonLinesReader> lines_;  // the open file: at most one of the two
  std::unique_ptr<TextCutter> pieces_;
  int64_t bytes_before_ = 0, total_bytes_ = 0;
};

}  // namespace megatron::data
