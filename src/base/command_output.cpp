#include "base/command_output.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "base/text_parts.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;

std::optional<struct stat> status_of(const std::string& path) {
  struct stat status;
  if (::stat(path.c_str(), &status) != 0) return {};
  return status;
}

// N in the name of an open file: /dev/stdout, /dev/stderr, /dev/fd/N, /proc/self/fd/N.
std::optional<int> open_file_named(std::string_view path) {
  if (path == "/dev/stdout") return STDOUT_FILENO;
  if (path == "/dev/stderr") return STDERR_FILENO;
  for (const std::string_view folder : {"/dev/fd/", "/proc/self/fd/"}) {
    if (!path.starts_with(folder)) continue;
    if (const auto number = parse_number<int>(path.substr(folder.size())); number.value_or(-1) >= 0)
      return number;
  }
  return {};
}

std::string beginning_of(const std::string& path) {
  std::string text(kRecognisedBytes, '\0');
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  MG_CHECK(file >= 0,
           "'{}' exists but cannot be read ({}), so it is not overwritten: remove it, or choose "
           "another name",
           path, std::strerror(errno));
  size_t size = 0;
  ssize_t n = 0;
  do {
    n = ::read(file, text.data() + size, text.size() - size);
    if (n > 0) size += static_cast<size_t>(n);
  } while ((n > 0 && size < text.size()) || (n < 0 && errno == EINTR));
  ::close(file);
  MG_CHECK(n >= 0, "cannot read '{}': {}", path, std::strerror(errno));
  text.resize(size);
  return text;
}

// Resolves a symlink, whose target need not exist. Returns the path unchanged if it is not a link.
std::string behind_links(const std::string& path) {
  constexpr int kMaxLinks = 40;  // the system's own limit
  fs::path at = path;
  std::error_code error;
  for (int i = 0; i < kMaxLinks && fs::is_symlink(fs::symlink_status(at, error)); ++i) {
    const fs::path target = fs::read_symlink(at, error);
    if (error) break;
    at = at.parent_path() / target;
  }
  return at.string();
}

}  // namespace

std::string_view first_line(std::string_view beginning) {
  return beginning.substr(0, beginning.find('\n'));
}

void check_not_input(const std::string& path, const std::string& flag,
                     const std::vector<std::string>& inputs) {
  const auto status = status_of(path);
  if (!status || !(S_ISREG(status->st_mode) || S_ISDIR(status->st_mode))) return;
  if (open_file_named(path)) return;
  for (const std::string& input : inputs) {
    const auto other = status_of(input);
    if (!other || other->st_dev != status->st_dev || other->st_ino != status->st_ino) continue;
    fail("{} {} is {} that this command reads: choose another name", flag, path,
         input == path ? "a file" : fmt::format("the file '{}'", input));
  }
}

void check_output(const CommandOutput& output, const std::vector<std::string>& inputs) {
  const std::string &path = output.path, &flag = output.flag;
  MG_CHECK(!path.empty(), "{} is empty; give the name of a file", flag);
  if (open_file_named(path)) return;
  const auto status = status_of(path);
  if (!status) return;  // does not exist; creating it will show whether it can be created
  MG_CHECK(!S_ISDIR(status->st_mode), "{} {} is a directory; give the name of a file", flag, path);
  check_not_input(path, flag, inputs);
  if (!S_ISREG(status->st_mode) || status->st_size == 0) return;
  MG_CHECK(output.kind.recognised(beginning_of(path)),
           "{} {} exists and is not {}, so it is not overwritten{}: choose another name, or "
           "remove the file",
           flag, path, output.kind.name, output.overwrite.value_or(false) ? " (--overwrite)" : "");
  MG_CHECK(output.overwrite.value_or(true),
           "{} exists; give --overwrite to replace it, or another {}", path, flag);
}

CommandOutputFile::CommandOutputFile(const std::string& path) : path_(path) {
  const auto status = status_of(path);
  if (open_file_named(path) || (status && !S_ISREG(status->st_mode))) return;
  file_.emplace(behind_links(path));
}

void CommandOutputFile::write(std::string_view text) {
  if (file_) return file_->write(text);
  text_ += text;
}

void CommandOutputFile::commit() {
  if (file_) return file_->commit();
  // An open file is continued at its current position; opening it by name again would start at its
  // beginning.
  const auto number = open_file_named(path_);
  const int file = number ? ::dup(*number) : ::open(path_.c_str(), O_WRONLY | O_CLOEXEC);
  MG_CHECK(file >= 0, "cannot write '{}': {}", path_, write_failure(errno));
  std::string_view left = text_;
  int failed = 0;
  while (!left.empty() && failed == 0) {
    const ssize_t n = ::write(file, left.data(), left.size());
    if (n >= 0) left.remove_prefix(static_cast<size_t>(n));
    else if (errno != EINTR) failed = errno;
  }
  ::close(file);
  MG_CHECK(failed == 0, "cannot write '{}': {}", path_, write_failure(failed));
}

}  // namespace megatron
