#include "base/files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace megatron {
namespace {

constexpr size_t kBufferBytes = 1 << 20;
constexpr size_t kLargestTransfer = 1 << 30;  // Linux moves at most 2^31 - 4096 bytes a call
constexpr size_t kLargestText = size_t{1} << 32;

std::string reason(int error) { return std::generic_category().message(error); }

// Closes on every way out.
class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return number_; }

 private:
  int number_;
};

int open_retrying(const std::string& path, int flags, mode_t mode = 0) {
  int number;
  do number = ::open(path.c_str(), flags | O_CLOEXEC, mode);
  while (number < 0 && errno == EINTR);
  return number;
}

int sync_retrying(int file) {
  int result;
  do result = ::fsync(file);
  while (result != 0 && errno == EINTR);
  return result;
}

struct stat status_of(int file, const std::string& path) {
  struct stat status;
  MG_CHECK(::fstat(file, &status) == 0, "cannot read '{}': {}", path, reason(errno));
  return status;
}

void check_name(const std::string& path) {
  MG_CHECK(!path.empty(), "a file name is empty");
  MG_CHECK(path.find('\0') == path.npos, "the file name '{}' contains a zero byte", path.c_str());
}

}  // namespace

std::string folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

std::string read_file(const std::string& path) {
  check_name(path);
  const Descriptor file(open_retrying(path, O_RDONLY));
  MG_CHECK(file.get() >= 0, "cannot open '{}': {}", path, reason(errno));
  const struct stat status = status_of(file.get(), path);
  MG_CHECK(!S_ISDIR(status.st_mode), "cannot read '{}': it is a directory", path);
  // The size is a hint: of pipes and of /proc it is 0, and the file may change meanwhile. Some files
  // of /proc give all they have to the first read, and nothing to a second one.
  std::string text;
  size_t size = 0;
  text.resize(static_cast<size_t>(std::max<off_t>(status.st_size, 0)) + 4096);
  while (true) {
    const ssize_t n =
        ::read(file.get(), text.data() + size, std::min(text.size() - size, kLargestTransfer));
    if (n < 0 && errno == EINTR) continue;
    MG_CHECK(n >= 0, "cannot read '{}': {}", path, reason(errno));
    if (n == 0) break;
    size += static_cast<size_t>(n);
    MG_CHECK(size <= kLargestText, "'{}' is larger than 4 GiB; no file of this kind is", path);
    if (size == text.size()) text.resize(size + std::max(size / 2, size_t{4096}));
  }
  text.resize(size);
  return text;
}

MappedFile::MappedFile(const std::string& path) : path_(path) {
  check_name(path);
  const Descriptor file(open_retrying(path, O_RDONLY | O_NONBLOCK));  // a pipe must not block here
  MG_CHECK(file.get() >= 0, "cannot open '{}': {}", path, reason(errno));
  const struct stat status = status_of(file.get(), path);
  MG_CHECK(S_ISREG(status.st_mode), "cannot map '{}': it is not a regular file", path);
  if (status.st_size == 0) return;
  const size_t size = static_cast<size_t>(status.st_size);
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  MG_CHECK(data != MAP_FAILED, "cannot map '{}' ({} bytes): {}", path, size, reason(errno));
  data_ = static_cast<const std::byte*>(data);
  size_ = size;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

std::string write_failure(int error) {
  const std::string what = reason(error);
  switch (error) {
    case ENOSPC:
    case EDQUOT: return what + ": make room there or write to another place";
    case EFBIG:
      return what +
             ": raise the limit of file sizes (ulimit -f) or write to a disk that takes "
             "larger files";
    case EROFS:
    case EACCES:
    case EPERM: return what + ": write to a place that you may change";
    default: return what;
  }
}

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)) {
  check_name(path_);
  struct stat status;
  if (::stat(path_.c_str(), &status) == 0) {
    MG_CHECK(S_ISREG(status.st_mode), "cannot write '{}': it exists and is not a regular file",
             path_);
  }
  const std::string folder = folder_of(path_);
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  MG_CHECK(!error, "cannot make the directory '{}': {}", folder, write_failure(error.value()));
  // Another writer of the same name in this process, or a dead process of the same number, may hold
  // a name already.
  for (int attempt = 0; file_ < 0; ++attempt) {
    temporary_ = fmt::format("{}.{}.{}.tmp", path_, ::getpid(), attempt);
    file_ = open_retrying(temporary_, O_WRONLY | O_CREAT | O_EXCL, 0666);
    MG_CHECK(file_ >= 0 || errno == EEXIST, "cannot write '{}': {}", path_, write_failure(errno));
  }
}

AtomicFile::~AtomicFile() {
  if (file_ >= 0) ::close(file_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  MG_ASSERT(file_ >= 0);
  size_ += static_cast<int64_t>(bytes.size());
  if (buffer_.size() + bytes.size() < kBufferBytes) {
    buffer_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return;
  }
  flush();
  put(bytes);
}

void AtomicFile::flush() {
  put(std::as_bytes(std::span(buffer_)));
  buffer_.clear();
}

// What is long starts on its way to the disk at once, so that sync() need not wait for all of it.
void AtomicFile::put(std::span<const std::byte> bytes) {
  constexpr size_t kPart = size_t{8} << 20;
  while (!bytes.empty()) {
    const ssize_t n = ::write(file_, bytes.data(), std::min(bytes.size(), kPart));
    if (n < 0 && errno == EINTR) continue;
    MG_CHECK(n >= 0, "cannot write '{}': {}", path_, write_failure(errno));
    bytes = bytes.subspan(static_cast<size_t>(n));
    written_ += n;
    if (written_ - started_ < static_cast<int64_t>(kPart)) continue;
    ::sync_file_range(file_, started_, written_ - started_, SYNC_FILE_RANGE_WRITE);  // a hint
    started_ = written_;
  }
}

void AtomicFile::sync() {
  MG_ASSERT(file_ >= 0);
  flush();
  MG_CHECK(sync_retrying(file_) == 0, "cannot write '{}' to the disk: {}", path_,
           write_failure(errno));
}

void AtomicFile::rename() {
  // Linux closes the file even when close() is interrupted.
  const int closed = ::close(std::exchange(file_, -1));
  MG_CHECK(closed == 0 || errno == EINTR, "cannot write '{}': {}", path_, write_failure(errno));
  MG_CHECK(::rename(temporary_.c_str(), path_.c_str()) == 0, "cannot rename '{}' to '{}': {}",
           temporary_, path_, write_failure(errno));
  temporary_.clear();
}

void AtomicFile::publish() {
  MG_ASSERT(file_ >= 0);
  flush();
  rename();
}

void AtomicFile::commit() {
  sync();
  rename();
  const std::string folder = folder_of(path_);
  const Descriptor directory(open_retrying(folder, O_RDONLY | O_DIRECTORY));
  // A directory that may be written but not read cannot be opened; some file systems cannot flush
  // one.
  if (directory.get() < 0) return;
  MG_CHECK(sync_retrying(directory.get()) == 0 || errno == EINVAL || errno == EROFS,
           "cannot write the directory '{}' to the disk: {}", folder, write_failure(errno));
}

void write_file(const std::string& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

}  // namespace megatron
