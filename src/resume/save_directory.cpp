#include "resume/save_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "base/text_parts.h"
#include "checkpoint/model_directory.h"
#include "checkpoint/save.h"

namespace megatron::resume {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kTracker = "latest_checkpointed_iteration.txt";
constexpr std::string_view kPrefix = "iter_";
constexpr std::string_view kLock = ".lock";
constexpr std::string_view kGemmChoices = "gemm_choices.json";

std::optional<int64_t> whole_number(std::string_view text) {
  const auto value = parse_number<int64_t>(text);
  return value && *value >= 0 ? value : std::nullopt;
}

std::string iteration_name(int64_t iteration) {
  return fmt::format("{}{:07d}", kPrefix, iteration);
}

}  // namespace

bool SaveDirectory::exists() const {
  std::error_code error;
  return fs::is_directory(path_, error);
}

bool SaveDirectory::is_foreign() const {
  std::error_code error;
  bool empty = true;
  for (const auto& entry : fs::directory_iterator(path_, error)) {
    const std::string name = entry.path().filename().string();
    empty = false;
    for (const std::string_view own :
         {kPrefix, kTracker, kLock, kGemmChoices, std::string_view("log.jsonl")})
      if (name.starts_with(own)) return false;
  }
  return !empty;
}

std::string SaveDirectory::iteration_path(int64_t iteration) const {
  return (fs::path(path_) / iteration_name(iteration)).string();
}

std::string SaveDirectory::tracker_path() const { return (fs::path(path_) / kTracker).string(); }

std::string SaveDirectory::gemm_choices_path() const {
  return (fs::path(path_) / kGemmChoices).string();
}

std::vector<int64_t> SaveDirectory::iterations() const {
  std::vector<int64_t> found;
  std::error_code error;
  fs::directory_iterator entry(path_, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with(kPrefix)) continue;
    const auto iteration = whole_number(std::string_view(name).substr(kPrefix.size()));
    std::error_code unread;
    if (iteration && name == iteration_name(*iteration) && entry->is_directory(unread))
      found.push_back(*iteration);
  }
  MG_CHECK(!error || error == std::errc::no_such_file_or_directory,
           "the folder {} cannot be searched for checkpoints: {}", path_, error.message());
  std::ranges::sort(found);
  return found;
}

std::optional<int64_t> SaveDirectory::tracked() const {
  const std::string file = tracker_path();
  std::error_code error;
  if (!fs::exists(file, error)) return std::nullopt;
  const std::string text = read_file(file);
  const std::string_view digits =
      std::string_view(text).substr(0, text.find_last_not_of(" \r\n\t") + 1);
  const auto iteration = whole_number(digits);
  MG_CHECK(
      iteration.has_value(),
      "{} contains '{}', which is not a step; write the step of an existing checkpoint into it, "
      "or remove it to use the newest",
      file, digits.substr(0, 40));
  return iteration;
}

// Both branches return: a variable that was assigned in the try block was found uninitialized after
// the throw (GCC 12, by valgrind).
std::optional<int64_t> SaveDirectory::tracked_if_valid(std::string* why) const {
  try {
    return tracked();
  } catch (const Error& error) {
    if (why != nullptr) *why = error.what();
    return std::nullopt;
  }
}

void SaveDirectory::create() const {
  std::error_code error;
  fs::create_directories(path_, error);
  MG_CHECK(!error && access(path_.c_str(), W_OK) == 0, "--save {} cannot be written: {}", path_,
           error ? error.message() : std::strerror(errno));
}

SaveDirectory::Lock SaveDirectory::lock() const {
  const std::string name = (fs::path(path_) / kLock).string();
  const int file = ::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  MG_CHECK(file >= 0, "--save {} cannot be written: {}", path_, write_failure(errno));
  Lock lock(file);
  // A file system without locks admits everyone.
  MG_CHECK(::flock(file, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK,
           "another run is writing to --save {}; wait until it ends, or choose another folder",
           path_);
  return lock;
}

SaveDirectory::Lock::~Lock() {
  if (file_ >= 0) ::close(file_);
}
SaveDirectory::Lock::Lock(Lock&& other) noexcept : file_(std::exchange(other.file_, -1)) {}

void SaveDirectory::track(int64_t iteration) const {
  write_file(tracker_path(), std::to_string(iteration), *files_);
}

void SaveDirectory::remove(int64_t iteration) const {
  const std::string from = iteration_path(iteration), to = from + ".removed.tmp";
  std::error_code error;
  fs::remove_all(to, error);
  MG_CHECK(files_->rename(from, to) == 0, "the old checkpoint {} cannot be removed: {}", from,
           std::strerror(errno));
  fs::remove_all(to, error);
  MG_CHECK(!error, "the old checkpoint {} cannot be removed: {}", to, error.message());
}

void SaveDirectory::recover() const {
  checkpoint::restore_replaced(path_, *files_);
  std::error_code error;
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(path_, error)) {
    const std::string name = entry.path().filename().string();
    const bool ours =
        name.starts_with(kPrefix) || name.starts_with(kTracker) || name.starts_with(kGemmChoices);
    if (ours && name.ends_with(".tmp")) found.push_back(entry.path());
  }
  for (const fs::path& path : found) fs::remove_all(path, error);
}

bool is_model(const std::string& path) {
  std::error_code error;
  return fs::exists(fs::path(path) / "config.json", error) || checkpoint::is_adapter(path);
}

std::string resolve_model_directory(const std::string& path, std::string_view flag) {
  std::error_code error;
  const std::string named = flag.empty() ? path : fmt::format("{} {}", flag, path);
  MG_CHECK(fs::is_directory(path, error),
           "{} is not a directory; give a Hugging Face model directory or a --save directory",
           named);
  if (is_model(path)) return path;
  const SaveDirectory directory(path);
  auto iteration = directory.tracked();
  const std::vector<int64_t> saved = directory.iterations();
  // The run ended before its first tracker.
  if (!iteration && !saved.empty()) iteration = saved.back();
  MG_CHECK(
      iteration.has_value(),
      "{} contains neither config.json (a Hugging Face model), nor an adapter, nor {} (a --save "
      "directory)",
      named, kTracker);
  const std::string found = directory.iteration_path(*iteration);
  MG_CHECK(is_model(found), "the latest checkpoint in {} is {}, which contains no model", path,
           found);
  return found;
}

}  // namespace megatron::resume
