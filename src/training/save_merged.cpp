// save_merged(): the directory of a base model with an adapter merged into it.
#include <fcntl.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "checkpoint/checkpoint_directory.h"
#include "checkpoint/name_list.h"
#include "checkpoint/save_plan.h"
#include "checkpoint/staging.h"
#include "training/merged_adapter.h"
#include "training/model_source.h"

namespace megatron::training {
namespace {

namespace fs = std::filesystem;

constexpr int kNewFile = O_WRONLY | O_CREAT;
constexpr int64_t kElementsAtOnce = int64_t{1} << 22;

NamedFiles tokenizer_and_template(const std::string& path) {
  NamedFiles files = tokenizer_files(path);
  for (auto& file : chat_template_files(path)) files.push_back(std::move(file));
  return files;
}

// Adds the files of the base that are neither weights nor parts of a checkpoint, and the adapter's
// tokenizer in place of the base's.
void add_files(const MergedAdapter& merged, checkpoint::Contents& contents) {
  const std::string& base = merged.base().path();
  contents.written_files = tokenizer_and_template(merged.adapter().path());
  NamedFiles replaced = contents.written_files;
  if (!replaced.empty())
    for (auto& file : tokenizer_and_template(base)) replaced.push_back(std::move(file));
  contents.copied_files = companion_files(base);
  std::erase_if(contents.copied_files, [&](const std::string& path) {
    return std::ranges::any_of(replaced, [&](const auto& file) {
      return file.first == fs::path(path).filename().string();
    });
  });
}

checkpoint::SavePlan plan_merged(const MergedAdapter& merged) {
  const checkpoint::ModelDirectory& base = merged.base();
  checkpoint::Contents contents{.config = base.config(), .like = &base};
  std::vector<std::string> foreign;
  std::map<std::string, std::string> stored;
  for (const MergedAdapter::Written& tensor : merged.tensors()) {
    stored[tensor.name] = tensor.stored;
    if (tensor.type) contents.whole_model.push_back({tensor.name, tensor.shape, *tensor.type});
    else foreign.push_back(tensor.name);
  }
  contents.name_in_like = [&](const std::string& name) {
    const std::string& in_base = stored.at(name);
    return in_base.empty() ? name : in_base;
  };
  if (merged.brings_head())
    contents.config = merged.model()->config_json(contents.whole_model.front().dtype);
  if (!foreign.empty())
    log::warning("'{}' has tensors of types that cannot be written, which are left out: {}",
                 base.path(), checkpoint::counted(foreign));
  add_files(merged, contents);
  checkpoint::SavePlan plan = checkpoint::plan_save(contents);
  const std::string config = base.path() + "/" + std::string(checkpoint::kConfig);
  for (checkpoint::PlannedText& text : plan.texts) {
    // As it is, unless it describes another head, or a quantization that is no longer there.
    if (text.name == checkpoint::kConfig && !merged.brings_head() &&
        Json::read(config) == base.config())
      text.source = config;
    if (!text.source.empty()) text.content = read_file(text.source);
    text.source.clear();
  }
  return plan;
}

class Writer {
 public:
  Writer(const MergedAdapter& merged, const checkpoint::SavePlan& plan, ThreadPool& pool,
         const std::function<void(int64_t, int64_t)>& progress)
      : merged_(merged), pool_(pool), progress_(progress) {
    std::map<std::string_view, const MergedAdapter::Change*> by_stored;
    for (const MergedAdapter::Change& change : merged.changes())
      by_stored.emplace(change.stored, &change);
    for (const MergedAdapter::Written& tensor : merged.tensors()) {
      const std::string& name = tensor.stored.empty() ? tensor.name : tensor.stored;
      const auto change = by_stored.find(name);
      sources_[tensor.name] = {name, change == by_stored.end() ? nullptr : change->second};
    }
    for (const checkpoint::PlannedFile& file : plan.files) total_ += file.bytes;
  }

  void write(const checkpoint::PlannedFile& file, const std::string& folder) {
    OutputFile out(folder + "/" + file.name, kNewFile, system_files());
    out.resize(file.bytes);
    put(out, std::as_bytes(std::span(file.head)), 0);
    for (const checkpoint::PlannedTensor& tensor : file.tensors) write(tensor, out);
    out.sync();
    out.close();
  }

 private:
  void write(const checkpoint::PlannedTensor& tensor, OutputFile& out) {
    const auto& [stored, change] = sources_.at(tensor.name);
    if (change != nullptr) return put(out, merged_.merged(*change, pool_), tensor.offset);
    const int64_t elements = tensor.shape.elements(), size = size_of(tensor.dtype);
    for (int64_t begin = 0; begin < elements; begin += kElementsAtOnce)
      put(out,
          merged_.base().tensors().read(stored, begin, std::min(kElementsAtOnce, elements - begin)),
          tensor.offset + begin * size);
  }
  void put(OutputFile& out, std::span<const std::byte> bytes, int64_t offset) {
    out.write_at(bytes, offset);
    written_ += static_cast<int64_t>(bytes.size());
    if (progress_) progress_(written_, total_);
  }

  const MergedAdapter& merged_;
  ThreadPool& pool_;
  const std::function<void(int64_t, int64_t)>& progress_;
  // By name in the merged directory: the name in the base's, and what the adapter changes; or null.
  std::map<std::string, std::pair<std::string, const MergedAdapter::Change*>> sources_;
  int64_t total_ = 0, written_ = 0;
};

}  // namespace

void save_merged(const MergedAdapter& merged, const std::string& path, ThreadPool& pool,
                 const std::function<void(int64_t, int64_t)>& progress) {
  const checkpoint::SavePlan plan = plan_merged(merged);
  checkpoint::Staging staging(path, false, system_files());
  staging.clear();
  checkpoint::check_room(folder_of(staging.path()), plan.bytes({}), system_files(),
                         "free some space or write somewhere else");
  staging.make();
  Writer writer(merged, plan, pool, progress);
  for (const checkpoint::PlannedFile& file : plan.files) writer.write(file, staging.folder());
  for (const checkpoint::PlannedText& text : plan.texts) {
    OutputFile out(staging.folder() + "/" + text.name, kNewFile, system_files());
    out.write(std::as_bytes(std::span(text.content)));
    out.sync();
    out.close();
  }
  staging.publish();
}

}  // namespace megatron::training
