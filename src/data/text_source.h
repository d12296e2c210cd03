// The documents of a path, one after the other, in bounded memory: what the preprocessing
// tokenizes.
//
//   a .jsonl or .json file    one document a line, under a key
//   any other file            plain text, cut into documents of 2 to 8 kB between paragraphs
//                             (text_cutter.h); with whole_files, one document
//   a directory               its files, recursively, sorted by path, each as above; hidden files
//                             are left out, and a file that is reached under several names (links)
//                             is read once
//   manual pages              files and directories of troff sources, as plain text
//                             (manual_pages.h), one document a page; `.so` stubs are left out
//
// Cutting lets --split hold out a part of a text that came as one file. Each file may be compressed
// with gzip. Texts must be valid UTF-8; manual pages may be Latin-1.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace megatron::data {

class JsonLinesReader;
class TextCutter;

struct TextSourceOptions {
  std::string json_key = "text";
  bool manual_pages = false;
  bool whole_files = false;  // plain text files are not cut
};

class TextSource {
 public:
  // Throws Error when the path does not exist or a directory holds no file.
  explicit TextSource(const std::string& path, TextSourceOptions options = {});
  ~TextSource();

  // The next document and where it stands (file, or file:line of its first line). False at the end.
  // Throws Error naming that place.
  bool next(std::string& text, std::string& name);
  // The same with the texts of a list apart; elsewhere a document is one text. Read a source by one
  // of the two.
  bool next(std::vector<std::string>& texts, std::string& name);

  int64_t bytes_read() const;                           // of total_bytes(), for progress
  int64_t total_bytes() const { return total_bytes_; }  // of the files as they lie on the disk
  int64_t file_count() const { return static_cast<int64_t>(files_.size()); }

 private:
  struct File {
    std::string path;
    int64_t bytes = 0;
  };
  void list(const std::string& path);
  bool next_line(std::vector<std::string>& texts, std::string& name);
  bool next_piece(std::vector<std::string>& texts, std::string& name);
  bool read_whole(const File& file, std::string& text);

  TextSourceOptions options_;
  std::vector<File> files_;
  size_t at_ = 0;                           // next file to open
  std::unique_ptr<JsonLinesReader> lines_;  // of the file that is open: one of the two, or none
  std::unique_ptr<TextCutter> pieces_;
  int64_t bytes_before_ = 0, total_bytes_ = 0;
};

}  // namespace megatron::data
