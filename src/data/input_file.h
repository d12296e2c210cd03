// A file read from front to back, plain or gzip-compressed (told by its first bytes), in bounded
// memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace megatron::data {

class InputFile {
 public:
  explicit InputFile(std::string path);  // throws Error naming the path and the reason
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  // The next line without its end; false at the end of the file. Throws Error for a line above 1
  // GiB and for a damaged compressed file.
  bool next_line(std::string& line);
  // The same with its end as it stands in the file, behind what `text` holds.
  bool append_line(std::string& text);
  std::string rest();  // all that is left; throws Error above 1 GiB

  const std::string& path() const { return path_; }
  int64_t line_number() const { return line_number_; }  // of the last line read, from 1
  int64_t bytes_read() const { return consumed_; }      // of the file as it lies on the disk
  int64_t size() const { return size_; }                // the same, in all

 private:
  bool fill();

  std::string path_;
  void* file_ = nullptr;  // zlib's gzFile
  std::vector<char> buffer_;
  size_t begin_ = 0, end_ = 0;
  int64_t line_number_ = 0, consumed_ = 0, size_ = 0;
};

}  // namespace megatron::data
