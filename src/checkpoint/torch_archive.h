// What torch.save writes: a pickle, and the storages that it refers to.
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

// An element type by torch's names.
struct TorchType {
  DType type;
  std::string_view dtype;     // "torch.bfloat16"
  std::string_view storage;   // "torch.BFloat16Storage"; "": only in untyped storages
  int64_t foreign_bytes = 0;  // bytes of an element whose type has no DType

  int64_t size() const { return foreign_bytes > 0 ? foreign_bytes : size_of(type); }
};

// Elements one after another, in which tensors lie.
struct TorchStorage {
  std::string_view key;
  const TorchType* type = nullptr;   // null: untyped
  int64_t elements = 0;              // bytes of an untyped one
  std::span<const std::byte> bytes;  // in the file
};

// Both forms that published models have: the zip archive of torch 1.6 and later (entries NAME/data.pkl,
// NAME/byteorder, NAME/data/KEY), and what was written before (a magic number, the protocol, the
// system, the pickle, a list of keys, each a pickle; then each storage: the number of its elements
// in 8 bytes, and they).
struct TorchArchive {
  Pickle object;
  std::map<std::string_view, TorchStorage> storages;  // by key

  // Of a whole file, which outlives this; nothing is executed. Throws Error naming `path` for
  // damage, for another format or order of bytes, for a storage that is missing or has another
  // size than the pickle says, and for names in the pickle beyond those of tensors.
  static TorchArchive open(std::span<const std::byte> file, const std::string& path);
  // The storage that a persistent value stands for. `where` begins the Error for anything else.
  const TorchStorage& storage(const PickleValue& value, std::string_view where) const;
};

// Callables of tensors.
inline constexpr std::string_view kRebuildTensor2 = "torch._utils._rebuild_tensor_v2",
                                  kRebuildTensor3 = "torch._utils._rebuild_tensor_v3",
                                  kRebuildParameter = "torch._utils._rebuild_parameter";

// The type of a dtype's name ("torch.bfloat16"); null for other names.
const TorchType* torch_dtype(std::string_view name);

}  // namespace megatron::checkpoint
