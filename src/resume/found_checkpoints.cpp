#include "resume/found_checkpoints.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/files.h"
#include "checkpoint/integrity.h"
#include "models/stage.h"
#include "resume/save_directory.h"

namespace megatron::resume {
namespace {

namespace fs = std::filesystem;

int64_t bytes_below(const std::string& path) {
  int64_t bytes = 0;
  std::error_code error;
  fs::recursive_directory_iterator entry(path, error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    std::error_code unread;
    const auto size = entry->is_regular_file(unread) ? entry->file_size(unread) : 0;
    if (!unread) bytes += static_cast<int64_t>(size);
  }
  return bytes;
}

std::vector<std::string> unfinished(const std::string& path) {
  std::vector<std::string> found;
  std::error_code error;
  fs::directory_iterator entry(path, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    std::error_code unread;
    if (name.starts_with("iter_") && name.ends_with(".tmp") && entry->is_directory(unread))
      found.push_back(entry->path().string());
  }
  std::ranges::sort(found);
  return found;
}

}  // namespace

std::string_view name(Condition condition) {
  switch (condition) {
    case Condition::whole: return "ok";
    case Condition::model: return "model only";
    case Condition::damaged: return "damaged";
    case Condition::unfinished: return "unfinished";
  }
  return "";
}

void require_whole_model(const std::string& path, ThreadPool& pool) {
  if (!checkpoint::is_checkpoint(path)) return;
  const std::string state = path + "/" + std::string(checkpoint::kTrainerState);
  std::vector<checkpoint::ListedFile> files = checkpoint::unseal(read_file(state), state).files;
  std::erase_if(files, [](const auto& file) { return file.name.starts_with("optimizer-"); });
  const std::vector<checkpoint::Damage> found = checkpoint::find_damage(path, files, pool);
  MG_CHECK(found.empty(),
           "the checkpoint {} has changed since it was written: {}; copy it again, or --load "
           "another one (to use it anyway, remove its {})",
           path, found[0].text(), checkpoint::kTrainerState);
}

FoundCheckpoint look_at_checkpoint(const std::string& path, bool verify, ThreadPool& pool) {
  FoundCheckpoint found{.path = path, .bytes = bytes_below(path)};
  try {
    if (!checkpoint::is_checkpoint(path)) {
      const checkpoint::ModelDirectory model(path);
      found.condition = Condition::model;
      return found;
    }
    const checkpoint::CheckpointDirectory checkpoint(path);
    if (verify) {
      for (const auto& damage : checkpoint::find_damage(path, checkpoint.files(), pool))
        found.reasons.push_back(damage.text());
    }
  } catch (const Error& error) {
    found.reasons = {error.what()};
  }
  if (!found.reasons.empty()) found.condition = Condition::damaged;
  return found;
}

std::vector<FoundCheckpoint> find_checkpoints(const std::string& path, bool verify,
                                              ThreadPool& pool) {
  std::vector<FoundCheckpoint> found;
  const SaveDirectory directory(path);
  for (const int64_t iteration : directory.iterations())
    found.push_back(look_at_checkpoint(directory.iteration_path(iteration), verify, pool));
  for (const std::string& left : unfinished(path))
    found.push_back({.path = left, .condition = Condition::unfinished, .bytes = bytes_below(left)});
  return found;
}

std::vector<std::pair<std::string, std::string>> tensor_places(const models::Model& model) {
  Runtime shapes_only({DeviceKind::meta, 0}, 1);
  const auto whole = model.build(shapes_only, DType::f32, 0);
  std::vector<std::pair<std::string, std::string>> places;
  for (const parallel::ParameterSpec* placed : models::tensors_of(*whole)) {
    const Shape& shape = placed->parameter.value.shape();
    for (const parallel::CanonicalTensor& part : placed->placement.tensors) {
      std::string text = placed->parameter.name;
      for (const auto& [axis, slices] : part.held) {
        for (const parallel::Slice& slice : slices) {
          if (slice.size == shape[axis]) continue;
          text += fmt::format(", {} {}-{} of {}", axis == 0 ? "rows" : "columns", slice.local_begin,
                              slice.local_begin + slice.size - 1, shape[axis]);
        }
      }
      places.emplace_back(part.name, text + (part.transposed ? ", transposed" : ""));
    }
  }
  return places;
}

}  // namespace megatron::resume
