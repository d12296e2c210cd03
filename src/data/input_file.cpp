#include "data/input_file.h"

#include <sys/stat.h>
#include <zlib.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace megatron::data {
namespace {

constexpr size_t kBufferBytes = 1 << 18;
constexpr size_t kMaxText = size_t{1} << 30;

gzFile handle(void* file) { return static_cast<gzFile>(file); }

}  // namespace

InputFile::InputFile(std::string path) : path_(std::move(path)), buffer_(kBufferBytes) {
  struct stat status{};
  MG_CHECK(stat(path_.c_str(), &status) == 0, "cannot read {}: {}", path_, std::strerror(errno));
  MG_CHECK(S_ISREG(status.st_mode), "{} is not a regular file", path_);
  size_ = status.st_size;
  file_ = gzopen(path_.c_str(), "rb");
  MG_CHECK(file_ != nullptr, "cannot read {}: {}", path_, std::strerror(errno));
}

InputFile::~InputFile() { gzclose(handle(file_)); }

bool InputFile::fill() {
  begin_ = end_ = 0;
  const int got = gzread(handle(file_), buffer_.data(), static_cast<unsigned>(buffer_.size()));
  int code = Z_OK;
  const char* reason = gzerror(handle(file_), &code);
  MG_CHECK(got >= 0 && (code == Z_OK || code == Z_STREAM_END), "cannot read {}: {}", path_,
           code == Z_ERRNO       ? std::strerror(errno)
           : code == Z_BUF_ERROR ? "the compressed data are cut short"
                                 : reason);
  end_ = static_cast<size_t>(got);
  consumed_ = got == 0 ? size_ : static_cast<int64_t>(gzoffset(handle(file_)));
  return end_ > 0;
}

bool InputFile::next_line(std::string& line) {
  line.clear();
  if (!append_line(line)) return false;
  if (line.ends_with('\n')) line.pop_back();
  if (line.ends_with('\r')) line.pop_back();
  return true;
}

bool InputFile::append_line(std::string& text) {
  if (begin_ == end_ && !fill()) return false;
  ++line_number_;
  do {
    const char* const from = buffer_.data() + begin_;
    const void* const stop = std::memchr(from, '\n', end_ - begin_);
    const size_t count = stop != nullptr
                             ? static_cast<size_t>(static_cast<const char*>(stop) - from) + 1
                             : end_ - begin_;
    text.append(from, count);
    MG_CHECK(text.size() <= kMaxText, "{}:{}: the line is longer than 1 GiB", path_, line_number_);
    begin_ += count;
    if (stop != nullptr) break;
  } while (fill());
  return true;
}

std::string InputFile::rest() {
  std::string text;
  while (begin_ != end_ || fill()) {
    text.append(buffer_.data() + begin_, end_ - begin_);
    begin_ = end_;
    MG_CHECK(text.size() <= kMaxText,
             "{} is larger than 1 GiB and would be one document: split it, use JSON lines, or "
             "leave --whole-files out",
             path_);
  }
  return text;
}

}  // namespace megatron::data
