// Safetensors files with types that this program does not write.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/json.h"

namespace megatron::testing {

struct RawTensor {
  std::string name, dtype, shape;  // as in the file's header: "F32", "[2,3]"
  std::string bytes;
};

inline std::vector<RawTensor> read_raw(const std::string& path) {
  const std::string text = read_file(path);
  uint64_t length = 0;
  std::memcpy(&length, text.data(), sizeof length);
  const Json header = Json::parse(text.substr(8, length), path);
  std::vector<RawTensor> tensors;
  for (const auto& [name, entry] : header.as_object()) {
    if (name == "__metadata__") continue;
    const Json::Array& range = entry["data_offsets"].as_array();
    const auto begin = static_cast<size_t>(range[0].as_integer()),
               end = static_cast<size_t>(range[1].as_integer());
    tensors.push_back({name, entry["dtype"].as_string(), entry["shape"].dump(),
                       text.substr(8 + length + begin, end - begin)});
  }
  return tensors;
}

inline void write_raw(const std::string& path, const std::vector<RawTensor>& tensors) {
  std::string header = "{", data;
  for (const RawTensor& tensor : tensors) {
    header += fmt::format(R"({}"{}":{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})",
                          header.size() == 1 ? "" : ",", tensor.name, tensor.dtype, tensor.shape,
                          data.size(), data.size() + tensor.bytes.size());
    data += tensor.bytes;
  }
  header += "}";
  const uint64_t length = header.size();
  std::string text(reinterpret_cast<const char*>(&length), sizeof length);
  write_file(path, text + header + data);
}

}  // namespace megatron::testing
