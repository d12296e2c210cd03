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
#include <vector>

#include "base/error.h"
#include "base/file_system.h"

namespace megatron {
namespace {

constexpr size_t kBufferBytes = 1 << 20;
constexpr size_t kLargestText = size_t{1} << 32;

std::string reason(int error) { return std::generic_category().message(error); }

// Closes the file on every exit path.
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

// Result of a system call, which is repeated when it is interrupted.
template <class F>
auto retried(F&& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

int open_to_read(const std::string& path, int flags) {
  return retried([&] { return ::open(path.c_str(), flags | O_CLOEXEC); });
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

std::string read_file(const std::string& path) { return read_file(path, kLargestText); }

std::string read_file(const std::string& path, size_t limit) {
  check_name(path);
  const Descriptor file(open_to_read(path, O_RDONLY));
  MG_CHECK(file.get() >= 0, "cannot open '{}': {}", path, reason(errno));
  const struct stat status = status_of(file.get(), path);
  MG_CHECK(!S_ISDIR(status.st_mode), "cannot read '{}': it is a directory", path);
  const auto check_size = [&](size_t size) {
    MG_CHECK(size <= limit, "'{}' is larger than {}, the limit for files of this kind", path,
             limit >= size_t{1} << 30 ? fmt::format("{} GiB", limit >> 30)
                                      : fmt::format("{} bytes", limit));
  };
  // The size is only a hint: it is 0 for pipes and for /proc, and the file may change meanwhile.
  // Some files of /proc return everything on the first read, and nothing on a second one.
  const auto hint = static_cast<size_t>(std::max<off_t>(status.st_size, 0));
  check_size(hint);
  std::string text;
  size_t size = 0;
  text.resize(hint + 4096);
  while (true) {
    const ssize_t n =
        ::read(file.get(), text.data() + size, std::min(text.size() - size, kLargestTransfer));
    if (n < 0 && errno == EINTR) continue;
    MG_CHECK(n >= 0, "cannot read '{}': {}", path, reason(errno));
    if (n == 0) break;
    size += static_cast<size_t>(n);
    check_size(size);
    if (size == text.size())
      text.resize(std::min(size + std::max(size / 2, size_t{4096}), limit + 1));
  }
  text.resize(size);
  return text;
}

MappedFile::MappedFile(const std::string& path) : path_(path) {
  check_name(path);
  // Opening a pipe must not block.
  const Descriptor file(open_to_read(path, O_RDONLY | O_NONBLOCK));
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
    case EDQUOT: return what + ": free some space or write somewhere else";
    case EFBIG:
      return what +
             ": raise the file size limit (ulimit -f) or write to a file system that allows "
             "larger files";
    case EROFS:
    case EACCES:
    case EPERM: return what + ": choose a location you have write permission for";
    default: return what;
  }
}

OutputFile::OutputFile(int file, const FileSystem& files, std::string called)
    : files_(files), called_(std::move(called)), file_(file) {}

OutputFile::OutputFile(const std::string& path, int flags, const FileSystem& files,
                       std::string called)
    : OutputFile(-1, files, called.empty() ? path : std::move(called)) {
  check_name(path);
  file_ = retried([&] { return files.open(path, flags); });
  if (file_ < 0) failed(errno);
}

std::unique_ptr<OutputFile> OutputFile::try_open(const std::string& path, int flags,
                                                 const FileSystem& files, std::string called) {
  const int file = retried([&] { return files.open(path, flags); });
  if (file < 0) return nullptr;
  return std::unique_ptr<OutputFile>(new OutputFile(file, files, std::move(called)));
}

OutputFile::~OutputFile() {
  if (file_ >= 0) files_.close(file_);
}

void OutputFile::failed(int error) const {
  fail("cannot write '{}': {}", called_, write_failure(error));
}

void OutputFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const int64_t n = retried([&] { return files_.write(file_, bytes); });
    if (n <= 0) failed(n < 0 ? errno : EIO);
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
}

void OutputFile::write_at(std::span<const std::byte> bytes, int64_t offset) {
  while (!bytes.empty()) {
    const int64_t n = retried([&] { return files_.write_at(file_, bytes, offset); });
    if (n <= 0) failed(n < 0 ? errno : EIO);
    bytes = bytes.subspan(static_cast<size_t>(n));
    offset += n;
  }
}

void OutputFile::resize(int64_t bytes) {
  if (retried([&] { return files_.resize(file_, bytes); }) != 0) failed(errno);
}

void OutputFile::sync() {
  MG_CHECK(retried([&] { return files_.sync(file_); }) == 0, "cannot flush '{}' to disk: {}",
           called_, write_failure(errno));
}

void OutputFile::close() {
  // Linux closes the file even when close() is interrupted.
  const int closed = files_.close(std::exchange(file_, -1));
  if (closed != 0 && errno != EINTR) failed(errno);
}

namespace {

void make_directories(const std::string& path, const std::string& wanted, const FileSystem& files) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return;
  const std::string parent = folder_of(path);
  if (parent != path) make_directories(parent, wanted, files);
  if (retried([&] { return files.make_directory(path); }) == 0) return;
  const int reason = errno;  // EEXIST: another process created it, or the path ends in a slash
  if (reason == EEXIST && std::filesystem::is_directory(path, error)) return;
  fail("cannot create the directory '{}': {}{}", wanted,
       path == wanted ? "" : fmt::format("'{}': ", path), write_failure(reason));
}

}  // namespace

void make_directories(const std::string& path, const FileSystem& files) {
  make_directories(path, path, files);
}

void sync_directory(const std::string& path, const FileSystem& files) {
  const auto directory = OutputFile::try_open(path, O_RDONLY | O_DIRECTORY, files, path);
  const int opened = directory == nullptr ? errno : 0;
  if (opened == EACCES) return;
  const int error =
      opened != 0 || retried([&] { return files.sync(directory->number()); }) == 0 ? opened : errno;
  MG_CHECK(error == 0 || error == EINVAL || error == EROFS,
           "cannot flush the directory '{}' to disk: {}", path, write_failure(error));
}

void rename_path(const std::string& from, const std::string& to, const FileSystem& files) {
  MG_CHECK(retried([&] { return files.rename(from, to); }) == 0, "cannot rename '{}' to '{}': {}",
           from, to, write_failure(errno));
}

void remove_tree(const std::string& path, const FileSystem& files) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::file_status status = fs::symlink_status(path, error);
  if (status.type() == fs::file_type::not_found) return;
  if (status.type() == fs::file_type::directory) {
    std::vector<std::string> names;
    fs::directory_iterator entry(path, error);
    for (; !error && entry != fs::directory_iterator(); entry.increment(error))
      names.push_back(entry->path().string());
    MG_CHECK(!error, "cannot list '{}' to remove it: {}", path, error.message());
    std::sort(names.begin(), names.end());
    for (const std::string& name : names) remove_tree(name, files);
  }
  MG_CHECK(retried([&] { return files.remove(path); }) == 0 || errno == ENOENT,
           "cannot remove '{}': {}", path, write_failure(errno));
}

AtomicFile::AtomicFile(std::string path, const FileSystem& files)
    : files_(files), path_(std::move(path)) {
  check_name(path_);
  struct stat status;
  if (::stat(path_.c_str(), &status) == 0) {
    MG_CHECK(S_ISREG(status.st_mode), "cannot write '{}': it exists and is not a regular file",
             path_);
  }
  make_directories(folder_of(path_), files_);
  // A name may already be taken by another writer of the same name in this process, or by a
  // terminated process with the same ID.
  for (int attempt = 0; file_ == nullptr; ++attempt) {
    temporary_ = fmt::format("{}.{}.{}.tmp", path_, ::getpid(), attempt);
    file_ = OutputFile::try_open(temporary_, O_WRONLY | O_CREAT | O_EXCL, files_, path_);
    MG_CHECK(file_ != nullptr || errno == EEXIST, "cannot write '{}': {}", path_,
             write_failure(errno));
  }
}

AtomicFile::~AtomicFile() {
  file_.reset();
  if (!temporary_.empty()) retried([&] { return files_.remove(temporary_); });
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  MG_ASSERT(file_ != nullptr);
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

// Writing large data to the disk starts immediately, so that sync() need not wait for all of it.
void AtomicFile::put(std::span<const std::byte> bytes) {
  constexpr size_t kPart = size_t{8} << 20;
  while (!bytes.empty()) {
    const size_t n = std::min(bytes.size(), kPart);
    file_->write(bytes.first(n));
    bytes = bytes.subspan(n);
    written_ += static_cast<int64_t>(n);
    if (written_ - started_ < static_cast<int64_t>(kPart)) continue;
    ::sync_file_range(file_->number(), started_, written_ - started_,
                      SYNC_FILE_RANGE_WRITE);  // only a hint
    started_ = written_;
  }
}

void AtomicFile::sync() {
  MG_ASSERT(file_ != nullptr);
  flush();
  file_->sync();
}

void AtomicFile::rename() {
  const std::unique_ptr<OutputFile> file = std::move(file_);
  file->close();
  rename_path(temporary_, path_, files_);
  temporary_.clear();
}

void AtomicFile::publish() {
  MG_ASSERT(file_ != nullptr);
  flush();
  rename();
}

void AtomicFile::commit() {
  sync();
  rename();
  sync_directory(folder_of(path_), files_);
}

void write_file(const std::string& path, std::string_view text, const FileSystem& files) {
  AtomicFile file(path, files);
  file.write(text);
  file.commit();
}

}  // namespace megatron
