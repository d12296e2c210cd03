// Helpers of this room's tests.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "data/indexed_dataset.h"
#include "data/sha256.h"
#include "text.h"

namespace megatron::data {

using testing::error_of;

inline std::string golden(const std::string& path) {
  return std::string(MEGATRON_GOLDEN) + "/" + path;
}

inline std::shared_ptr<const TokenSource> open_golden(const std::string& prefix) {
  return std::make_shared<const IndexedDataset>(golden("blend/data/" + prefix));
}

// Copies both token files.
inline void copy_set(const std::string& from, const std::string& to) {
  for (const char* suffix : {".bin", ".idx"})
    std::filesystem::copy_file(golden(from) + suffix, to + suffix,
                               std::filesystem::copy_options::overwrite_existing);
}

// A temporary directory, in memory if possible, so that flushing is free.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    const bool memory = access("/dev/shm", W_OK) == 0;
    const auto root =
        memory ? std::filesystem::path("/dev/shm") : std::filesystem::temp_directory_path();
    std::string text = (root / "megatron_data_XXXXXX").string();
    if (mkdtemp(text.data()) == nullptr) throw Error("no temporary directory");
    path_ = text;
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
  std::string operator/(std::string_view file) const { return path_ + "/" + std::string(file); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline std::vector<int64_t> integers(const Json& json) {
  std::vector<int64_t> values;
  for (const Json& value : json.as_array()) values.push_back(value.as_integer());
  return values;
}

inline std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace megatron::data
