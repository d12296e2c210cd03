#include "data/input_file.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <new>
#include <tuple>

#include "base/error.h"
#include "base/files.h"

namespace megatron::data {
namespace {

constexpr size_t kBufferBytes = 1 << 18;
constexpr size_t kMaxText = size_t{1} << 30;

}  // namespace

void LineBlock::Buffer::resize(size_t size) {
  char* const bytes = static_cast<char*>(std::realloc(bytes_.get(), size));
  if (bytes == nullptr) throw std::bad_alloc();
  std::ignore = bytes_.release();
  bytes_.reset(bytes);
  size_ = size;
}

InputFile::InputFile(std::string path)
    : path_(std::move(path)), source_(ByteSource::open(path_)), buffer_(kBufferBytes) {}

InputFile::~InputFile() = default;

bool InputFile::fill() {
  begin_ = 0;
  end_ = source_->read(buffer_);
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
    MG_CHECK(text.size() + count <= kMaxText, "{}:{}: the line is longer than 1 GiB", path_,
             line_number_);
    text.append(from, count);
    begin_ += count;
    if (stop != nullptr) break;
  } while (fill());
  return true;
}

std::string InputFile::read_rest() {
  std::string text;
  while (begin_ != end_ || fill()) {
    MG_CHECK(text.size() + (end_ - begin_) <= kMaxText,
             "{} contains more than 1 GiB of text, the limit for a file that is read as one "
             "document; split it",
             path_);
    text.append(buffer_.data() + begin_, end_ - begin_);
    begin_ = end_;
  }
  return text;
}

std::string read_unpacked(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return read_file(path, kMaxText);
  return InputFile(path).read_rest();
}

// buffer_ holds the beginning of a line that did not fit in the previous block.
bool InputFile::next_block(LineBlock& block, size_t bytes) {
  LineBlock::Buffer& out = block.buffer_;
  size_t size = end_ - begin_, searched = 0, whole = 0;
  if (out.size() > 4 * (bytes + LineBlock::kPadding)) out.reset();
  if (const size_t least = std::max(bytes, size) + LineBlock::kPadding; out.size() < least)
    out.resize(least);
  std::memcpy(out.data(), buffer_.data() + begin_, size);
  begin_ = end_ = 0;
  bool ended = false;
  while (whole == 0 && !ended) {
    if (size + LineBlock::kPadding == out.size())
      out.resize(std::min(2 * size, kMaxText + 1) + LineBlock::kPadding);
    const size_t got = source_->read({out.data() + size, out.size() - LineBlock::kPadding - size});
    size += got;
    ended = got == 0;
    const bool full = size + LineBlock::kPadding == out.size();
    if (!full && !ended) continue;
    const void* last = memrchr(out.data() + searched, '\n', size - searched);
    if (last != nullptr)
      whole = static_cast<size_t>(static_cast<const char*>(last) - out.data()) + 1;
    searched = size;
    if (ended) whole = size;
    MG_CHECK(whole > 0 || size <= kMaxText, "{}:{}: the line is longer than 1 GiB", path_,
             line_number_ + 1);
  }
  if (size > whole) {
    if (buffer_.size() < size - whole) buffer_.resize(size - whole);
    end_ = size - whole;
    std::memcpy(buffer_.data(), out.data() + whole, end_);
  }
  block.size_ = whole;
  block.first_line_ = line_number_ + 1;
  block.line_count_ = std::count(out.data(), out.data() + whole, '\n');
  if (whole > 0 && out.data()[whole - 1] != '\n') ++block.line_count_;
  line_number_ += block.line_count_;
  return whole > 0;
}

}  // namespace megatron::data
