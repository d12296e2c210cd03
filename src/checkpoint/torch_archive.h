// Contents of a torch.save file: a pickle, and the storages that it refers to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "base/dtype.h"
#include "checkpoint/pickle.h"

namespace megatron::checkpoint {

// An element type with its names in torch.
struct TorchType {
  DType type;
  std::string_view dtype;     // "torch.bfloat16"
  std::string_view storage;   // "torch.BFloat16Storage"; "": only in untyped storages
  int64_t foreign_bytes = 0;  // bytes per element if the type has no DType

  int64_t size() const { return foreign_bytes > 0 ? foreign_bytes : size_of(type); }
};

// Contiguous elements that tensors refer to.
struct TorchStorage {
  std::string_view key;
  const TorchType* type = nullptr;   // null: untyped
  int64_t elements = 0;              // bytes, if untyped
  std::span<const std::byte> bytes;  // in the file
};

// Both forms of published models: the zip archive of torch 1.6 and later (entries NAME/data.pkl,
// NAME/byteorder, NAME/data/KEY), and the older form (a magic number, the protocol, the system, the
// pickle, a list of keys, each a pickle; then for each storage the number of its elements in 8
// bytes, and the elements).
struct TorchArchive {
  Pickle object;
  std::map<std::string_view, TorchStorage> storages;  // by key

  // Parses a whole file, which must outlive the archive; nothing is executed. Throws Error naming
  // `path` if the file is damaged, has another format or byte order, lacks a storage or has one
  // whose size differs from the pickle's, or if the pickle names anything but tensors.
  static TorchArchive open(std::span<const std::byte> file, const std::string& path);
  // Returns the storage that a persistent value refers to. `where` begins the Error for any other
  // value.
  const TorchStorage& storage(const PickleValue& value, std::string_view where) const;
};

// Callables that build tensors.
inline constexpr std::string_view kRebuildTensor2 = "torch._utils._rebuild_tensor_v2",
                                  kRebuildTensor3 = "torch._utils._rebuild_tensor_v3",
                                  kRebuildParameter = "torch._utils._rebuild_parameter";

// Type with the name of a dtype ("torch.bfloat16"); null for other names.
const TorchType* torch_dtype(std::string_view name);

}  // namespace megatron::checkpoint
