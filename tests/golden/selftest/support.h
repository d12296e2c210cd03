// Copies of golden vectors that a test may modify.
#pragma once

#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <string>

#include "checkpoint/safetensors.h"

namespace megatron::testing {

inline std::string vectors(const std::string& name) {
  return std::string(MEGATRON_GOLDEN) + "/" + name;
}

// A temporary directory, removed at the end.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "megatron-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

using Values = std::map<std::string, std::vector<float>>;

// Rewrites a file of f32 tensors after `change` has modified them; tensors of other types are kept.
// A new name becomes a one-dimensional tensor, unless `shapes` has it.
inline void change_tensors(const std::string& path, const std::function<void(Values&)>& change,
                           const std::map<std::string, Shape>& shapes = {}) {
  std::vector<checkpoint::TensorToWrite> tensors;
  std::map<std::string, std::string> bytes;
  std::vector<std::pair<std::string, std::string>> metadata;
  Values values;
  {
    const checkpoint::SafetensorsFile file(path);
    metadata = file.metadata();
    for (const checkpoint::TensorInfo& info : file.tensors()) {
      const auto data = file.bytes(info);
      bytes[info.name] = {reinterpret_cast<const char*>(data.data()), data.size()};
      tensors.push_back({info.name, info.dtype, info.shape, {}});
      if (info.dtype != DType::f32) continue;
      for (const double v : file.doubles(info.name))
        values[info.name].push_back(static_cast<float>(v));
    }
  }
  change(values);
  std::erase_if(tensors, [&](const checkpoint::TensorToWrite& tensor) {
    return tensor.dtype == DType::f32 && tensor.shape.elements() > 0 &&
           !values.contains(tensor.name);
  });
  for (const auto& [name, v] : values) {
    if (!bytes.contains(name)) {
      const auto shape = shapes.find(name);
      const Shape own =
          shape == shapes.end() ? Shape{static_cast<int64_t>(v.size())} : shape->second;
      tensors.push_back({name, DType::f32, own, {}});
    }
    bytes[name] = {reinterpret_cast<const char*>(v.data()), v.size() * sizeof(float)};
  }
  for (auto& tensor : tensors) {
    tensor.data = [&data = bytes[tensor.name]](std::span<std::byte> out) {
      std::memcpy(out.data(), data.data(), data.size());
    };
  }
  checkpoint::write_safetensors(path, tensors, metadata);
}

}  // namespace megatron::testing
