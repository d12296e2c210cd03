#include "checkpoint/staging.h"

#include <cerrno>
#include <filesystem>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "checkpoint/save.h"

namespace megatron::checkpoint {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kReplaced = ".being-replaced";

bool is_there(const std::string& path) {
  std::error_code error;
  return fs::symlink_status(path, error).type() != fs::file_type::not_found;
}

// Renames an older directory back from its second name to its first one, unless its replacement is
// there.
void settle(const std::string& path, const FileSystem& files) {
  const std::string replaced = path + std::string(kReplaced);
  if (!is_there(replaced)) return;
  if (is_there(path)) remove_tree(replaced, files);
  else rename_path(replaced, path, files);
}

std::string without_end_slashes(std::string path) {
  MG_CHECK(!path.empty(), "the name of the directory to write is empty");
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

}  // namespace

Staging::Staging(std::string path, bool replace, const FileSystem& files)
    : files_(files),
      path_(without_end_slashes(std::move(path))),
      staged_(path_ + ".tmp"),
      replaced_(path_ + std::string(kReplaced)),
      replace_(replace) {}

Staging::~Staging() {
  if (made_) remove();
}

bool Staging::check_target() const {
  std::error_code error;
  const fs::file_type type = fs::symlink_status(path_, error).type();
  if (type == fs::file_type::not_found) return false;
  MG_CHECK(replace_ && type == fs::file_type::directory,
           "'{}' already exists{}; remove it or choose another name", path_,
           type == fs::file_type::directory ? "" : " and is not a directory");
  return true;
}

void Staging::clear() {
  settle(path_, files_);
  check_target();
  make_directories(folder_of(path_), files_);
  remove_tree(staged_, files_);
}

void Staging::make() {
  made_ = true;
  make_directories(staged_, files_);
}

void Staging::swap_in() {
  int result;
  do result = files_.exchange(staged_, path_);
  while (result != 0 && errno == EINTR);
  exchanged_ = result == 0;
  if (exchanged_) return;
  MG_CHECK(errno == EINVAL || errno == ENOSYS || errno == ENOTSUP,
           "cannot exchange '{}' and '{}': {}", staged_, path_, write_failure(errno));
  rename_path(path_, replaced_, files_);
  try {
    rename_path(staged_, path_, files_);
  } catch (const Error&) {
    rename_path(replaced_, path_, files_);
    throw;
  }
}

void Staging::undo(bool replaced) noexcept {
  try {
    if (replaced && exchanged_) return swap_in();
    rename_path(path_, staged_, files_);
    if (replaced) rename_path(replaced_, path_, files_);
  } catch (const std::exception& error) {
    made_ = false;
    log::warning("{}", error.what());
  }
}

void Staging::publish() {
  MG_ASSERT(made_);
  sync_directory(staged_, files_);
  const bool replaces = check_target();
  if (replaces) swap_in();
  else rename_path(staged_, path_, files_);
  try {
    sync_directory(folder_of(path_), files_);
  } catch (const Error&) {
    undo(replaces);
    throw;
  }
  made_ = false;
  if (!replaces) return;
  const std::string& older = exchanged_ ? staged_ : replaced_;
  try {
    remove_tree(older, files_);
  } catch (const Error& error) {
    log::warning(
        "'{}' is saved, but the directory it replaced could not be removed and remains as '{}': {}",
        path_, older, error.what());
  }
}

void Staging::remove() {
  constexpr int kAttempts = 3;  // another rank may be creating a file there
  for (int attempt = 1; attempt <= kAttempts && made_; ++attempt) {
    try {
      remove_tree(staged_, files_);
      made_ = false;
    } catch (const Error& error) {
      if (attempt == kAttempts) log::warning("{}", error.what());
    }
  }
  made_ = false;
}

void restore_replaced(const std::string& folder, const FileSystem& files) {
  std::vector<std::string> paths;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const std::string path = entry->path().string();
    if (path.ends_with(kReplaced)) paths.push_back(path.substr(0, path.size() - kReplaced.size()));
  }
  MG_CHECK(!error, "cannot list '{}': {}", folder, error.message());
  for (const std::string& path : paths) settle(path, files);
}

}  // namespace megatron::checkpoint
