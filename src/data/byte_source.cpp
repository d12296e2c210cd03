#include "data/byte_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "base/machine_limits.h"

namespace megatron::data {
namespace {

constexpr size_t kPackedBytes = 1 << 17;
constexpr size_t kMagicBytes = 4;

class PlainFile final : public ByteSource {
 public:
  explicit PlainFile(const std::string& path)
      : path_(path), file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    MG_CHECK(file_ >= 0, "cannot read {}: {}", path_, std::strerror(errno));
    begin_ = status();
    if (!S_ISREG(begin_.st_mode)) {
      ::close(file_);
      fail("{} is not a regular file; write its output to a file first", path_);
    }
  }
  ~PlainFile() override { ::close(file_); }
  PlainFile(const PlainFile&) = delete;
  PlainFile& operator=(const PlainFile&) = delete;

  size_t read(std::span<char> out) override {
    ssize_t got;
    do got = ::read(file_, out.data(), std::min(out.size(), size_t{1} << 30));
    while (got < 0 && errno == EINTR);
    MG_CHECK(got >= 0, "cannot read {}: {}", path_, std::strerror(errno));
    consumed_ += got;
    if (got == 0 && !out.empty()) check_unchanged();
    return static_cast<size_t>(got);
  }
  int64_t consumed() const override { return consumed_; }
  int64_t size() const override { return begin_.st_size; }

  // Reads up to `count` bytes from an offset without moving the position.
  std::string peek(int64_t offset, size_t count) const {
    std::string bytes(count, '\0');
    const ssize_t got = ::pread(file_, bytes.data(), count, offset);
    MG_CHECK(got >= 0, "cannot read {}: {}", path_, std::strerror(errno));
    bytes.resize(static_cast<size_t>(got));
    return bytes;
  }
  const std::string& path() const { return path_; }

 private:
  struct stat status() const {
    struct stat status{};
    MG_CHECK(::fstat(file_, &status) == 0, "cannot read {}: {}", path_, std::strerror(errno));
    return status;
  }
  void check_unchanged() const {
    const struct stat now = status();
    MG_CHECK(now.st_size == begin_.st_size && consumed_ == begin_.st_size,
             "{} changed while it was being read: it had {} bytes at first, {} of them could be "
             "read, and now it has {}; start again when nothing is writing to it",
             path_, begin_.st_size, std::min<int64_t>(consumed_, begin_.st_size), now.st_size);
    MG_CHECK(now.st_mtim.tv_sec == begin_.st_mtim.tv_sec &&
                 now.st_mtim.tv_nsec == begin_.st_mtim.tv_nsec,
             "{} changed while it was being read: its modification time is different now; start "
             "again when nothing is writing to it",
             path_);
  }

  std::string path_;
  int file_;
  struct stat begin_{};
  int64_t consumed_ = 0;
};

// Code shared by the two kinds of compressed files.
class PackedFile : public ByteSource {
 public:
  explicit PackedFile(std::unique_ptr<PlainFile> file)
      : file_(std::move(file)), packed_(kPackedBytes) {}
  int64_t consumed() const override { return file_->consumed(); }
  int64_t size() const override { return file_->size(); }

 protected:
  // Reads more packed bytes after those not used yet; returns false at the end.
  bool fill() {
    if (begin_ < end_) return true;
    begin_ = 0;
    end_ = file_->read(packed_);
    return end_ > 0;
  }
  [[noreturn]] void damaged(std::string_view reason) const {
    fail("cannot read {}: the compressed data is {}", file_->path(), reason);
  }

  std::unique_ptr<PlainFile> file_;
  std::vector<char> packed_;
  size_t begin_ = 0, end_ = 0;
};

class GzipFile final : public PackedFile {
 public:
  explicit GzipFile(std::unique_ptr<PlainFile> file) : PackedFile(std::move(file)) {
    constexpr int kWindowBits = 15, kGzipOnly = 16;
    MG_CHECK(inflateInit2(&stream_, kWindowBits + kGzipOnly) == Z_OK,
             "zlib cannot start: out of memory");
  }
  ~GzipFile() override { inflateEnd(&stream_); }

  size_t read(std::span<char> out) override {
    size_t written = 0;
    while (written == 0 && !out.empty()) {
      if (!fill()) {
        if (inside_) damaged("truncated");
        break;
      }
      if (!inside_ && !start_member()) continue;
      written = step(out);
    }
    return written;
  }

 private:
  // Zero bytes after the last member (padding of tapes and blocks) are ignored, as gzip does.
  bool start_member() {
    if (any_ && packed_[begin_] == '\0') {
      ++begin_;
      return false;
    }
    if (any_ && packed_[begin_] != '\x1f') damaged("followed by other data");
    inflateReset(&stream_);
    inside_ = any_ = true;
    return true;
  }

  size_t step(std::span<char> out) {
    stream_.next_in = reinterpret_cast<Bytef*>(packed_.data() + begin_);
    stream_.avail_in = static_cast<uInt>(end_ - begin_);
    const size_t room = std::min(out.size(), size_t{1} << 30);
    stream_.next_out = reinterpret_cast<Bytef*>(out.data());
    stream_.avail_out = static_cast<uInt>(room);
    const int code = inflate(&stream_, Z_NO_FLUSH);
    begin_ = end_ - stream_.avail_in;
    if (code == Z_STREAM_END) inside_ = false;
    if (code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR)
      damaged(fmt::format("damaged ({})", stream_.msg != nullptr ? stream_.msg : "zlib"));
    return room - stream_.avail_out;
  }

  z_stream stream_{};
  bool inside_ = false, any_ = false;
};

// Largest window (base-2 logarithm) that frames may need: 128 MiB, zstd's own default, or more if
// that is at most half of the memory.
int largest_window(int64_t memory) {
  int log = 27;
  const int most = ZSTD_dParam_getBounds(ZSTD_d_windowLogMax).upperBound;
  while (log < most && int64_t{1} << (log + 1) <= memory / 2) ++log;
  return log;
}

// Window size in bytes that a frame needs, from its header (RFC 8878, 3.1.1.1).
uint64_t window_of(std::string_view header) {
  constexpr size_t kDescriptor = 4;  // size, after the magic number
  const auto byte = [&](size_t at) -> uint64_t {
    return at < header.size() ? static_cast<unsigned char>(header[at]) : 0;
  };
  const uint64_t descriptor = byte(kDescriptor);
  if ((descriptor & 0x20) == 0) {
    const uint64_t window = byte(kDescriptor + 1), base = uint64_t{1} << (10 + (window >> 3));
    return base + base / 8 * (window & 7);
  }
  // The window of a single segment is its whole content.
  constexpr size_t kIdBytes[] = {0, 1, 2, 4}, kSizeBytes[] = {1, 2, 4, 8};
  const size_t begin = kDescriptor + 1 + kIdBytes[descriptor & 3];
  uint64_t size = 0;
  for (size_t i = kSizeBytes[descriptor >> 6]; i > 0; --i) size = size << 8 | byte(begin + i - 1);
  return size;
}

class ZstdFile final : public PackedFile {
 public:
  ZstdFile(std::unique_ptr<PlainFile> file, int64_t memory)
      : PackedFile(std::move(file)),
        stream_(ZSTD_createDStream()),
        window_log_(largest_window(memory)) {
    MG_CHECK(stream_ != nullptr, "zstd cannot start: out of memory");
    ZSTD_DCtx_setParameter(stream_, ZSTD_d_windowLogMax, window_log_);
  }
  ~ZstdFile() override { ZSTD_freeDStream(stream_); }

  size_t read(std::span<char> out) override {
    ZSTD_outBuffer target{out.data(), out.size(), 0};
    while (target.pos == 0 && !out.empty()) {
      const bool more = fill();
      if (!more && !inside_) break;
      if (!inside_) frame_ = file_->consumed() - static_cast<int64_t>(end_ - begin_);
      ZSTD_inBuffer source{packed_.data() + begin_, end_ - begin_, 0};
      const size_t left = ZSTD_decompressStream(stream_, &target, &source);
      if (ZSTD_isError(left)) refuse(left);
      begin_ += source.pos;
      inside_ = left != 0;
      if (!more && target.pos == 0 && inside_) damaged("truncated");
    }
    return target.pos;
  }

 private:
  [[noreturn]] void refuse(size_t error) const {
    const bool too_large = ZSTD_getErrorCode(error) == ZSTD_error_frameParameter_windowTooLarge;
    if (!too_large && ZSTD_getErrorCode(error) != ZSTD_error_memory_allocation)
      damaged(fmt::format("damaged ({})", ZSTD_getErrorName(error)));
    constexpr size_t kLongestHeader = 18;
    const uint64_t window = window_of(file_->peek(frame_, kLongestHeader));
    const int needed = static_cast<int>(std::bit_width(window - 1));
    const std::string what =
        fmt::format("cannot read {}: the zstd frame at its byte {} needs a window of {} MiB",
                    file_->path(), frame_, window >> 20);
    MG_CHECK(too_large, "{}, which cannot be allocated", what);
    MG_CHECK(needed <= ZSTD_dParam_getBounds(ZSTD_d_windowLogMax).upperBound,
             "{}, more than zstd ever uses: the file is damaged", what);
    fail("{}, but with {} at most {} MiB are possible; unpack it first, with zstd -d --long={} {}",
         what, available_memory_text(), (uint64_t{1} << window_log_) >> 20, needed, file_->path());
  }

  ZSTD_DStream* stream_;
  int window_log_;
  int64_t frame_ = 0;  // file offset of the current frame
  bool inside_ = false;
};

// The magic number of a frame or of a skippable frame, little-endian: 0xfd2fb528, or 0x184d2a50 to
// 0x184d2a5f.
bool starts_zstd(std::string_view front) {
  return front.size() == kMagicBytes &&
         (front == "\x28\xb5\x2f\xfd" ||
          ((front[0] & 0xf0) == 0x50 && front.substr(1) == "\x2a\x4d\x18"));
}

}  // namespace

std::unique_ptr<ByteSource> ByteSource::open(const std::string& path,
                                             std::optional<int64_t> memory) {
  auto file = std::make_unique<PlainFile>(path);
  const std::string front = file->peek(0, kMagicBytes);
  if (front.starts_with("\x1f\x8b")) return std::make_unique<GzipFile>(std::move(file));
  if (starts_zstd(front))
    return std::make_unique<ZstdFile>(std::move(file), memory ? *memory : available_memory());
  return file;
}

}  // namespace megatron::data
