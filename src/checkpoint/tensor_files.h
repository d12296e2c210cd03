// Several files read as one set of named tensors.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/held_tensor.h"
#include "checkpoint/packed_tensor.h"
#include "checkpoint/tensor_file.h"

namespace megatron::checkpoint {

// Selects the format by the extension: .safetensors, or torch.save's for any other. Throws Error as
// SafetensorsFile and TorchFile do.
std::unique_ptr<TensorFile> open_tensor_file(const std::string& path);

class TensorFiles {
 public:
  TensorFiles() = default;
  // Opens `names` in `folder`, in the given order.
  TensorFiles(const std::string& folder, std::span<const std::string> names);

  // Opens one more file, whose tensors come after the others. Throws Error naming a tensor that
  // one of them has as well.
  void add(const std::string& folder, const std::string& name);

  // Throws Error naming a tensor that is in two files, and both files.
  void check_unique() const;
  // Selects the copy of a tensor that several files hold: from now on the one in `file` is listed,
  // found and read. Until then it is the first.
  void choose(std::string_view tensor, size_t file);
  // Lists and finds quantized tensors from now on by the name and shape of the tensors that they
  // represent, instead of their values and scales. Throws Error naming tensors that do not belong
  // together. Returns the number of tensors.
  size_t join_packed(const Packing& packing);

  bool empty() const { return files_.empty(); }
  const std::string& folder() const { return folder_; }
  const std::vector<std::string>& names() const { return names_; }  // of the files
  const TensorFile& file(size_t index) const { return *files_[index]; }
  std::vector<std::string> tensor_names() const;        // in the order of the files
  const TensorInfo* find(std::string_view name) const;  // null if absent
  // Throws Error if absent; quantized tensors have no bytes.
  std::span<const std::byte> bytes(std::string_view name) const;
  const PackedTensor* packed(std::string_view name) const;  // null for any other tensor
  // Returns a copy of the bytes of `count` elements from number `begin` on, quantized or not.
  std::vector<std::byte> read(std::string_view name, int64_t begin, int64_t count) const;

 private:
  std::string folder_;
  std::vector<std::string> names_;
  std::vector<std::unique_ptr<TensorFile>> files_;
  std::map<std::string_view, std::pair<size_t, const TensorInfo*>, std::less<>> tensors_;
  std::map<std::string, std::unique_ptr<PackedTensor>, std::less<>> packed_;
  // Key: stored values of a quantized tensor; value: the tensor that they represent.
  std::map<const TensorInfo*, const TensorInfo*> packed_values_;
};

// Fills each value from the stored tensors that its placement names, converted to its type; only
// the parts that this rank holds are read. Every tensor of `whole` must exist with its shape, and
// every stored tensor must be in `whole`, except for the names in `ignored`: one Error, the same on
// every rank, lists all that are missing, surplus or of another shape. `owner` names the tensors'
// owner in it: "the model". progress: how many of `tensors` are filled.
void load(const TensorFiles& files, std::span<const HeldTensor> tensors,
          std::span<const WholeTensor> whole, std::span<const std::string> ignored,
          std::string_view owner, const std::function<void(int64_t)>& progress = {});

}  // namespace megatron::checkpoint
