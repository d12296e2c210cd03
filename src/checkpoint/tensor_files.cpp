#include "checkpoint/tensor_files.h"

#include "base/error.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/torch_file.h"

namespace megatron::checkpoint {
namespace {

// The name without `ending`; empty if it does not have that ending.
std::string_view stem(std::string_view name, std::string_view ending) {
  return name.ends_with(ending) ? name.substr(0, name.size() - ending.size()) : std::string_view();
}

}  // namespace

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

void TensorFiles::add(const std::string& folder, const std::string& name) {
  names_.push_back(name);
  files_.push_back(open_tensor_file(folder + "/" + name));
  for (const TensorInfo& info : files_.back()->tensors())
    MG_CHECK(tensors_.emplace(info.name, std::pair(files_.size() - 1, &info)).second,
             "tensor '{}' is in '{}/{}' and in '{}'", info.name, folder, name, folder_);
}

size_t TensorFiles::join_packed(const Packing& packing) {
  const auto [label, type, values, scales, unpack] = packing;
  for (size_t i = 0; i < files_.size(); ++i) {
    const std::string& path = files_[i]->path();
    for (const TensorInfo& info : files_[i]->tensors()) {
      if (find(info.name) != &info) continue;  // another file's is read, or it has been joined
      if (const std::string_view of = stem(info.name, scales); !of.empty())
        MG_CHECK(find(fmt::format("{}{}", of, values)) != nullptr,
                 "'{}': tensor '{}' contains {} scales, but the values that they scale, '{}{}', "
                 "are missing",
                 path, info.name, label, of, values);
      const std::string name(stem(info.name, values)),
          scales_name = fmt::format("{}{}", name, scales);
      const auto found = tensors_.find(scales_name);
      if (name.empty() || (found == tensors_.end() && type_name(info) != type)) continue;
      MG_CHECK(found != tensors_.end(),
               "'{}': tensor '{}' is in {}, but its scales '{}' are missing", path, info.name,
               label, scales_name);
      MG_CHECK(values.empty() || find(name) == nullptr,
               "'{}': tensor '{}' is stored twice: unquantized, and in {} as '{}'", path, name,
               label, info.name);
      const auto& [file, scale_info] = found->second;
      const PackedTensor& joined =
          *packed_
               .emplace(name, unpack({info, files_[i]->bytes(info), *scale_info,
                                      files_[file]->bytes(*scale_info), path}))
               .first->second;
      tensors_.erase(found);
      tensors_.erase(info.name);
      tensors_.emplace(joined.info().name, std::pair(i, &joined.info()));
      packed_values_.emplace(&info, &joined.info());
    }
  }
  return packed_.size();
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

void TensorFiles::choose(std::string_view tensor, size_t file) {
  const TensorInfo* const info = files_[file]->find(tensor);
  MG_ASSERT(info != nullptr);
  tensors_[info->name] = {file, info};
}

std::vector<std::string> TensorFiles::tensor_names() const {
  std::vector<std::string> names;
  for (const auto& file : files_) {
    for (const TensorInfo& info : file->tensors()) {
      if (find(info.name) == &info) names.push_back(info.name);
      else if (const auto found = packed_values_.find(&info); found != packed_values_.end())
        names.push_back(found->second->name);
    }
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
  MG_ASSERT(packed(name) == nullptr);
  const auto& [file, info] = found->second;
  return files_[file]->bytes(*info);
}

const PackedTensor* TensorFiles::packed(std::string_view name) const {
  const auto found = packed_.find(name);
  return found == packed_.end() ? nullptr : found->second.get();
}

std::vector<std::byte> TensorFiles::read(std::string_view name, int64_t begin,
                                         int64_t count) const {
  if (const PackedTensor* tensor = packed(name)) {
    std::vector<bf16> values(static_cast<size_t>(count));
    tensor->decode_stored(begin, values);
    const auto result = std::as_bytes(std::span(values));
    return {result.begin(), result.end()};
  }
  const std::span<const std::byte> all = bytes(name);
  const int64_t size = size_of(find(name)->dtype);
  const auto part =
      all.subspan(static_cast<size_t>(begin * size), static_cast<size_t>(count * size));
  return {part.begin(), part.end()};
}

}  // namespace megatron::checkpoint
