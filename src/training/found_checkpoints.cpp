#include "training/found_checkpoints.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/files.h"
#include "models/gpt/model.h"
#include "training/save_directory.h"

namespace megatron::training {
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

// A stretch of a file with a checksum of its own.
struct Stretch {
  std::string name;
  std::span<const std::byte> bytes;
  uint64_t written;
};

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

// What of the files has another checksum than the one that was written.
std::vector<std::string> differing(const std::string& directory,
                                   std::span<const checkpoint::ListedFile> listed_files,
                                   ThreadPool& pool) {
  std::vector<std::unique_ptr<checkpoint::SafetensorsFile>> tensor_files;
  std::vector<MappedFile> files;
  std::vector<Stretch> stretches;
  for (const checkpoint::ListedFile& listed : listed_files) {
    const std::string path = directory + "/" + listed.name;
    if (!listed.has_tensors) {
      stretches.push_back({listed.name, files.emplace_back(path).bytes(), listed.sum});
      continue;
    }
    const auto& file =
        *tensor_files.emplace_back(std::make_unique<checkpoint::SafetensorsFile>(path));
    stretches.push_back({listed.name + ": header", file.head(), listed.sum});
    for (const auto& [tensor, sum] : listed.tensors) {
      const checkpoint::TensorInfo* const info = file.find(tensor);
      MG_CHECK(info != nullptr, "'{}' was changed meanwhile", path);
      stretches.push_back({fmt::format("{}: {}", listed.name, tensor), file.bytes(*info), sum});
    }
  }
  std::vector<char> differs(stretches.size());
  pool.parallel_for(static_cast<int64_t>(stretches.size()), [&](int64_t i, int) {
    const Stretch& stretch = stretches[static_cast<size_t>(i)];
    differs[static_cast<size_t>(i)] = checkpoint::checksum(stretch.bytes) != stretch.written;
  });
  std::vector<std::string> names;
  for (size_t i = 0; i < stretches.size(); ++i)
    if (differs[i]) names.push_back(stretches[i].name);
  return names;
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

std::vector<std::string> damages(const checkpoint::CheckpointDirectory& checkpoint,
                                 ThreadPool& pool) {
  return differing(checkpoint.path(), checkpoint.files(), pool);
}

void require_whole_model(const std::string& path, ThreadPool& pool) {
  if (!checkpoint::is_checkpoint(path)) return;
  const std::string state = path + "/" + std::string(checkpoint::kTrainerState);
  std::vector<checkpoint::ListedFile> files = checkpoint::unseal(read_file(state), state).files;
  std::erase_if(files, [](const auto& file) { return file.name.starts_with("optimizer-"); });
  const std::vector<std::string> found = differing(path, files, pool);
  MG_CHECK(
      found.empty(),
      "the checkpoint {} is not as it was written: {} differs from its checksum; copy it there "
      "again, or --load another one (without {} it would be taken as it is)",
      path, found[0], checkpoint::kTrainerState);
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
    if (verify) found.reasons = damages(checkpoint, pool);
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

std::vector<std::pair<std::string, std::string>> tensor_places(const models::GptConfig& config) {
  Runtime shapes_only({DeviceKind::meta, 0}, 1);
  const models::GptModel model(config, shapes_only, DType::f32, 0);
  std::vector<std::pair<std::string, std::string>> places;
  for (const parallel::Placed* placed : model.parameters()) {
    const Shape& shape = placed->parameter.value.shape();
    for (const parallel::Part& part : placed->placement.parts) {
      std::string text = placed->parameter.name;
      const int64_t all = shape[part.axis];
      for (const parallel::Slice& slice : part.slices) {
        if (slice.size == all) continue;
        text += fmt::format(", {} {}-{} of {}", part.axis == 0 ? "rows" : "columns",
                            slice.local_begin, slice.local_begin + slice.size - 1, all);
      }
      places.emplace_back(part.name, text + (part.transposed ? ", transposed" : ""));
    }
  }
  return places;
}

}  // namespace megatron::training
