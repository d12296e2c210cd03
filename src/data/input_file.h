// A file read from front to back, plain or compressed (byte_source.h), in bounded memory: either by
// lines or by blocks of whole lines.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/byte_source.h"

namespace megatron::data {

// Whole lines, followed by at least kPadding readable bytes, as JSON parsers require.
class LineBlock {
 public:
  static constexpr size_t kPadding = 64;

  std::string_view text() const { return {buffer_.data(), size_}; }
  int64_t first_line() const { return first_line_; }  // number of its first line, from 1
  int64_t line_count() const { return line_count_; }

 private:
  friend class InputFile;
  // Memory that grows without a second copy of its contents, for long lines.
  class Buffer {
   public:
    char* data() const { return bytes_.get(); }
    size_t size() const { return bytes_ ? size_ : 0; }
    void resize(size_t size);  // throws std::bad_alloc
    void reset() { bytes_.reset(); }

   private:
    struct Free {
      void operator()(char* bytes) const { std::free(bytes); }
    };
    std::unique_ptr<char, Free> bytes_;
    size_t size_ = 0;
  };
  Buffer buffer_;
  size_t size_ = 0;
  int64_t first_line_ = 0, line_count_ = 0;
};

class InputFile {
 public:
  explicit InputFile(std::string path);  // throws Error naming the path and the reason
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  // Reads the next line without its end; returns false at the end of the file. Throws Error for a
  // line above 1 GiB, for a damaged compressed file and for one that changes while it is read.
  bool next_line(std::string& line);
  // The same including the line end in the file; appends to `text`.
  bool append_line(std::string& text);
  std::string read_rest();  // everything up to the end; throws Error above 1 GiB

  // Reads the next lines: about `bytes`, more only if a single line is longer. Every line but the
  // file's last ends with '\n'. Returns false at the end. A block's memory is reused.
  bool next_block(LineBlock& block, size_t bytes);

  const std::string& path() const { return path_; }
  int64_t line_number() const { return line_number_; }  // number of the last line read, from 1
  int64_t bytes_read() const { return source_->consumed(); }  // bytes consumed of the file on disk
  int64_t size() const { return source_->size(); }            // total size of the file on disk

 private:
  bool fill();

  std::string path_;
  std::unique_ptr<ByteSource> source_;
  std::vector<char> buffer_;
  size_t begin_ = 0, end_ = 0;
  int64_t line_number_ = 0;
};

// Reads a whole file, unpacked if it is compressed; a pipe is not unpacked. Throws Error above 1
// GiB.
std::string read_unpacked(const std::string& path);

}  // namespace megatron::data
