// Helpers of this room's tests.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "checkpoint/model_directory.h"
#include "checkpoint/save.h"
#include "text.h"

namespace megatron::checkpoint {

using testing::error_of;

inline std::string golden(const std::string& path) {
  return std::string(MEGATRON_GOLDEN) + "/hf/" + path;
}

inline std::string torch_vector(const std::string& path) {
  return std::string(MEGATRON_GOLDEN) + "/torch/" + path;
}

// A temporary directory, in memory if possible.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    const std::filesystem::path pattern = "megatron_checkpoint_XXXXXX";
    const bool memory = ::access("/dev/shm", W_OK) == 0;
    const auto place = memory ? "/dev/shm" : std::filesystem::temp_directory_path();
    std::string text = (place / pattern).string();
    if (mkdtemp(text.data()) == nullptr) throw Error("no temporary directory");
    path_ = text;
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
  std::string operator/(std::string_view file) const { return path_ + "/" + std::string(file); }
  const std::string& path() const { return path_; }

  std::set<std::string> names() const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      names.insert(entry.path().filename().string());
    }
    return names;
  }

 private:
  std::string path_;
};

// A file in memory, because thousands of them are written.
class MemoryFile {
 public:
  MemoryFile() : number_(memfd_create("x", MFD_CLOEXEC)) {
    if (number_ < 0) throw Error("no file in memory");
  }
  ~MemoryFile() { close(number_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  const std::string& path() const { return path_; }
  void set(std::string_view text) {
    path_ = fmt::format("/proc/self/fd/{}", number_);
    ASSERT_EQ(ftruncate(number_, 0), 0);
    ASSERT_EQ(pwrite(number_, text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
  }

 private:
  int number_;
  std::string path_;
};

inline bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != text.npos;
}

// A safetensors file with the given header and data.
inline std::string file_text(std::string_view header, std::string_view data) {
  const uint64_t length = header.size();
  std::string text(reinterpret_cast<const char*>(&length), sizeof length);
  return text.append(header).append(data);
}

// Parameters of a test's model.
class Model {
 public:
  Model() : runtime_(Device{DeviceKind::reference}, 1) {}

  parallel::ParameterSpec& add(Shape shape, DType dtype,
                               std::vector<parallel::CanonicalTensor> parts) {
    auto placed = std::make_unique<parallel::ParameterSpec>();
    placed->parameter.value =
        Tensor::empty(runtime_.arena(MemoryClass::parameters), shape, dtype, "test");
    placed->placement.tensors = std::move(parts);
    owned_.push_back(std::move(placed));
    placed_.push_back(owned_.back().get());
    return *owned_.back();
  }

  // Adds a parameter that consists of one tensor.
  parallel::ParameterSpec& add(const std::string& name, Shape shape, DType dtype,
                               bool transposed = false) {
    const int64_t size = shape.rank() == 0 ? 1 : shape[0];
    return add(shape, dtype, {{name, shape, {{0, {{0, 0, size}}}}, transposed}});
  }

  std::span<parallel::ParameterSpec* const> parameters() const { return placed_; }
  std::vector<double> values(size_t i) const { return to_doubles(placed_[i]->parameter.value); }

 private:
  Runtime runtime_;
  std::vector<std::unique_ptr<parallel::ParameterSpec>> owned_;
  std::vector<parallel::ParameterSpec*> placed_;
};

// Saves with one rank; `contents` lacks the configuration and the model.
inline void save_model(const std::string& path, const Json& config,
                       std::span<parallel::ParameterSpec* const> parameters, Contents contents) {
  Runtime runtime({DeviceKind::reference, 0}, 1);
  contents.config = config;
  contents.model = held(parameters);
  save(path, std::move(contents), runtime.stream());
}

// Gives every element of the parameter the value first, first + 1, ...
inline void count_from(parallel::ParameterSpec& placed, double first) {
  Tensor& value = placed.parameter.value;
  std::vector<double> values(static_cast<size_t>(value.elements()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = first + static_cast<double>(i);
  copy_from(value, values);
}

}  // namespace megatron::checkpoint
