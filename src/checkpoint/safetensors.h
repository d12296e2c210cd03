// The safetensors format: 8 bytes little-endian header length, a JSON header {name: {dtype, shape,
// data_offsets}}, raw data.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/tensor_file.h"

namespace megatron::checkpoint {

// Tensors in the order of their data. Opening checks everything: header length and JSON, types,
// shapes against byte counts, ranges inside the file, no overlaps, no gaps, no repeated names.
// Throws Error naming file, tensor, value and limit.
class SafetensorsFile : public TensorFile {
 public:
  explicit SafetensorsFile(const std::string& path);

  std::span<const std::byte> bytes(const TensorInfo& info) const override;
  std::span<const std::byte> head() const;  // everything before the data
  int64_t size() const { return static_cast<int64_t>(file_.bytes().size()); }  // of the file
  // Elements converted to double / int64 / float, for vectors of tests and results.
  std::vector<double> doubles(std::string_view name) const;  // throws Error if absent
  // Converts stored elements of any type.
  static std::vector<double> doubles_of(std::span<const std::byte> bytes, DType type);
  std::vector<int64_t> integers(std::string_view name) const;

 private:
  int64_t data_begin_ = 0;
};

// Returns everything before the data in a file whose tensors follow each other in the given order:
// the length and the header, padded with spaces to 8 bytes. Sets begin and end of each tensor.
// Throws Error naming `path` (the file) for a repeated name and for sizes beyond the format's
// limits.
std::string safetensors_head(const std::string& path, std::span<TensorInfo> tensors,
                             std::span<const std::pair<std::string, std::string>> metadata);

// A tensor to write: data is called once, in order, and returns the tensor's bytes.
struct TensorToWrite {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  std::function<void(std::span<std::byte> out)> data;
  std::string_view foreign_type = {};  // TensorInfo::foreign_type, of elements as large as dtype
};

// Writes a file atomically (AtomicFile), with memory for one tensor at a time.
void write_safetensors(const std::string& path, std::span<const TensorToWrite> tensors,
                       std::span<const std::pair<std::string, std::string>> metadata);

}  // namespace megatron::checkpoint
