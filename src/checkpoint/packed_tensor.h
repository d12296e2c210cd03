// Quantized weights: two stored tensors, values of a few bits and the scales that multiply them,
// represent one that is not stored and is read as bf16.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/dtype.h"
#include "base/json.h"
#include "checkpoint/tensor_file.h"

namespace megatron::checkpoint {

// Reads the represented tensor. Usable from several threads.
class PackedTensor {
 public:
  virtual ~PackedTensor() = default;
  PackedTensor(const PackedTensor&) = delete;
  PackedTensor& operator=(const PackedTensor&) = delete;

  // Describes the represented tensor; its type is bf16.
  const TensorInfo& info() const { return info_; }
  // True if the values are stored in the order of the tensor with its last two dimensions swapped.
  virtual bool transposed() const = 0;
  // Decodes elements from number `begin` on in the order of the stored values.
  virtual void decode(int64_t begin, std::span<bf16> out) const = 0;
  // Decodes elements in the order of the represented tensor, row-major.
  virtual void decode_stored(int64_t begin, std::span<bf16> out) const = 0;

 protected:
  PackedTensor() = default;
  TensorInfo info_;
};

// The two stored tensors. The bytes must outlive a PackedTensor made of them.
struct PackedPair {
  const TensorInfo& values;
  std::span<const std::byte> value_bytes;
  const TensorInfo& scales;
  std::span<const std::byte> scale_bytes;
  std::string file;  // of the values, for errors
};

// A format of quantized weights. The tensor NAME is stored as NAME + values and NAME + scales.
struct Packing {
  std::string_view label;           // in messages: "MXFP4"
  std::string_view type;            // type_name() of the values
  std::string_view values, scales;  // endings of the names; the former may be empty
  // Throws Error naming the file and the tensor for types and shapes other than the format's.
  std::function<std::unique_ptr<PackedTensor>(const PackedPair&)> unpack;
};

// Removes quantization_config from the contents of the config.json `path` and returns the format
// that it declares: none if it is missing or null. Throws Error naming the key and its value for
// any other quantization than mxfp4 and fp8.
std::optional<Packing> take_packing(Json& config, const std::string& path);

}  // namespace megatron::checkpoint
