// Weight files written by torch.save (pytorch_model.bin).
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "checkpoint/tensor_file.h"

namespace megatron::checkpoint {

struct TorchArchive;
struct PickleValue;

// A state dict: tensors by name, in its order. Nothing in the file is executed (pickle.h). Opening
// checks names, types, and each tensor's elements against its storage. Tensors whose elements are
// not contiguous (transposed ones, slices) are assembled in memory when first requested, and stay
// there. Throws Error naming file, tensor, value and limit.
class TorchFile : public TensorFile {
 public:
  explicit TorchFile(const std::string& path);

  // Throws Error for an expanded tensor, which has more elements than its storage.
  std::span<const std::byte> bytes(const TensorInfo& info) const override;

 private:
  struct Strided {
    const std::byte* first = nullptr;
    std::array<int64_t, kMaxRank> strides{};  // in elements
    int64_t stored = 0;                       // number of elements in its storage
    std::unique_ptr<std::byte[]> elements;    // row-major; null until requested
  };
  void add(const TorchArchive& archive, const std::string& name, const PickleValue& value);

  mutable std::mutex mutex_;
  mutable std::map<std::string, Strided, std::less<>> strided_;
};

}  // namespace megatron::checkpoint
