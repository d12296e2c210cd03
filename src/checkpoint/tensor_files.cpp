#include "checkpoint/tensor_files.h"

#include "base/error.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/torch_file.h"

namespace megatron::checkpoint {

std::unique_ptr<TensorFile> open_tensor_file(const std::string& path) {
  if (path.ends_with(".safetensors")) return std::make_unique<SafetensorsFile>(path);
  return std::make_unique<TorchFile>(path);
}

TensorFiles::TensorFiles(const std::string& folder, std::span<const std::string> names)
    : folder_(folder), names_(names.begin(), names.end()) {
  for (const std::string& name : names_) {
    files_.push_back(open_tensor_file(folder_ + "/" + name));
    for (const TensorInfo& info : files_.back()->tensors())
      tensors_.emplace(info.name, std::pair(files_.size() - 1, &info));
  }
}

void TensorFiles::check_unique() const {
  for (size_t i = 0; i < files_.size(); ++i) {
    for (const TensorInfo& info : files_[i]->tensors()) {
      const size_t first = tensors_.find(info.name)->second.first;
      MG_CHECK(first == i, "'{}': tensor '{}' is in two files, {} and {}", folder_, info.name,
               names_[first], names_[i]);
    }
  }
}

std::vector<std::string> TensorFiles::tensor_names() const {
  std::vector<std::string> names;
  for (const auto& file : files_) {
    for (const TensorInfo& info : file->tensors()) names.push_back(info.name);
  }
  return names;
}

const TensorInfo* TensorFiles::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : found->second.second;
}

std::span<const std::byte> TensorFiles::bytes(std::string_view name) const {
  const auto found = tensors_.find(name);
  MG_CHECK(found != tensors_.end(), "'{}' has no tensor '{}'", folder_, name);
  const auto& [file, info] = found->second;
  return files_[file]->bytes(*info);
}

}  // namespace megatron::checkpoint
