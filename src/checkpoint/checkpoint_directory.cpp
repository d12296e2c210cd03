#include "checkpoint/checkpoint_directory.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/files.h"
#include "checkpoint/integrity.h"
#include "checkpoint/name_list.h"

namespace megatron::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMend = "copy it again, or use another checkpoint";

bool is_optimizer_file(std::string_view name) {
  return name.starts_with("optimizer-") && name.ends_with(".safetensors");
}

// Checks that all files of a checkpoint exist with the sizes that they were written with.
void check_sizes(const std::string& path, const std::vector<ListedFile>& files) {
  std::vector<std::string> missing;
  for (const ListedFile& file : files) {
    std::error_code error;
    if (!fs::exists(path + "/" + file.name, error)) missing.push_back(file.name);
  }
  MG_CHECK(missing.empty(), "'{}' is missing files of the checkpoint: {}; {}", path,
           counted(missing), kMend);
  for (const ListedFile& file : files) {
    const std::string name = path + "/" + file.name;
    std::error_code error;
    MG_CHECK(fs::is_regular_file(name, error), "'{}' is not a regular file; {}", name, kMend);
    const auto bytes = fs::file_size(name, error);
    MG_CHECK(!error, "cannot read '{}': {}", name, error.message());
    MG_CHECK(bytes == static_cast<uintmax_t>(file.bytes),
             "'{}' has {} bytes, but {} were written: it is incomplete or was changed; {}", name,
             bytes, file.bytes, kMend);
  }
}

Sealed read_state(const std::string& path) {
  std::error_code error;
  MG_CHECK(fs::exists(path, error), "the checkpoint '{}' does not exist", path);
  MG_CHECK(fs::is_directory(path, error), "'{}' is not a directory, but a checkpoint is one", path);
  const std::string name = path + "/" + std::string(kTrainerState);
  MG_CHECK(fs::exists(name, error),
           "'{}' has no {}: it is only a model, or an incomplete checkpoint; a run cannot resume "
           "from it",
           path, kTrainerState);
  Sealed sealed = unseal(read_file(name), name);
  check_sizes(path, sealed.files);
  return sealed;
}

std::vector<std::string> optimizer_names(const std::vector<ListedFile>& files) {
  std::vector<std::string> names;
  for (const ListedFile& file : files) {
    if (is_optimizer_file(file.name)) names.push_back(file.name);
  }
  return names;
}

}  // namespace

bool is_checkpoint(const std::string& path) {
  std::error_code error;
  return fs::exists(path + "/" + std::string(kTrainerState), error);
}

CheckpointDirectory::CheckpointDirectory(std::string path, const std::string& base)
    : sealed_(read_state(path)),
      model_(path, {.base = is_adapter(path) ? base : ""}),
      optimizer_(path, optimizer_names(sealed_.files)) {
  optimizer_.check_unique();
  check_all_listed();
  for (const ListedFile& file : sealed_.files) check_tensors(file);
}

const TensorFile* CheckpointDirectory::find_tensors(std::string_view file) const {
  for (const TensorFiles* files : {&model_.tensors(), &optimizer_}) {
    const auto found = std::ranges::find(files->names(), file);
    if (found != files->names().end())
      return &files->file(static_cast<size_t>(found - files->names().begin()));
  }
  return nullptr;
}

// Checks that a file holds exactly the tensors listed for it.
void CheckpointDirectory::check_tensors(const ListedFile& listed) {
  const TensorFile* const file = find_tensors(listed.name);
  MG_CHECK((file != nullptr) == listed.has_tensors, "'{}/{}': {} lists it {}; {}", path(),
           listed.name, kTrainerState,
           listed.has_tensors ? "with tensors, but it is neither a file of the model nor of the "
                                "optimizer"
                              : "without tensors",
           kMend);
  if (file == nullptr) return;
  std::vector<std::string> missing, surplus;
  std::set<std::string_view> names;
  for (const auto& [name, sum] : listed.tensors) {
    names.insert(name);
    if (file->find(name) == nullptr) missing.push_back(name);
    MG_CHECK(sums_.emplace(name, sum).second, "'{}/{}' lists tensor '{}' twice", path(),
             kTrainerState, name);
  }
  for (const TensorInfo& info : file->tensors()) {
    if (!names.contains(info.name)) surplus.push_back(info.name);
  }
  MG_CHECK(missing.empty() && surplus.empty(),
           "'{}/{}' differs from the file that was written. Missing tensors: {}; unexpected "
           "tensors: {}; {}",
           path(), listed.name, counted(missing), counted(surplus), kMend);
}

// Ensures that nothing without a checksum is read.
void CheckpointDirectory::check_all_listed() const {
  std::set<std::string, std::less<>> listed;
  for (const ListedFile& file : sealed_.files) listed.insert(file.name);
  std::vector<std::string> read = model_.weight_files(), surplus;
  read.emplace_back(model_.config_file());
  if (model_.has_index() && !model_.is_adapter()) read.emplace_back(kIndex);
  std::error_code error;
  fs::directory_iterator entry(path(), error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (is_optimizer_file(name)) read.push_back(name);
  }
  MG_CHECK(!error, "cannot list '{}': {}", path(), error.message());
  for (const std::string& name : read) {
    if (!listed.contains(name)) surplus.push_back(name);
  }
  std::sort(surplus.begin(), surplus.end());
  MG_CHECK(surplus.empty(), "'{}' has files that do not belong to the checkpoint: {}; remove them",
           path(), counted(surplus));
}

std::vector<TensorInfo> CheckpointDirectory::optimizer_tensors() const {
  std::vector<TensorInfo> tensors;
  for (size_t i = 0; i < optimizer_.names().size(); ++i) {
    const std::vector<TensorInfo>& held = optimizer_.file(i).tensors();
    tensors.insert(tensors.end(), held.begin(), held.end());
  }
  return tensors;
}

std::string CheckpointDirectory::checksum(std::string_view tensor) const {
  const auto found = sums_.find(tensor);
  return found == sums_.end() ? "" : hexadecimal(found->second);
}

void CheckpointDirectory::verify(ThreadPool& pool, int part, int parts) const {
  const std::vector<Damage> damage = find_damage(path(), files(), pool, part, parts);
  MG_CHECK(damage.empty(), "'{}' is damaged: {}; {}", path(), damage[0].text(), kMend);
}

void CheckpointDirectory::load_optimizer(std::span<const HeldTensor> tensors,
                                         std::span<const WholeTensor> whole,
                                         std::span<const std::string> ignored) const {
  MG_CHECK(has_optimizer() || whole.empty(), "the checkpoint '{}' contains no optimizer state",
           path());
  load(optimizer_, tensors, whole, ignored, "the optimizer");
}

void CheckpointDirectory::load_optimizer(std::span<const HeldTensor> tensors) const {
  load_optimizer(tensors, whole_tensors(tensors));
}

}  // namespace megatron::checkpoint
