// A file of named tensors in any format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/files.h"
#include "tensor/shape.h"

namespace megatron::checkpoint {

struct TensorInfo {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  int64_t begin = 0, end = 0;  // byte range within the file's data
  // The file's name for an element type that this program does not have ("BOOL", "F8_E4M3"). Such a
  // tensor can be listed and left out; its dtype is meaningless.
  std::string_view foreign_type = {};
};

// Name of a tensor's element type: "f32", or the file's name for a foreign one.
std::string_view type_name(const TensorInfo& info);

// Bytes of a tensor whose elements have `bits` bits each; none if the count, or a stride of the
// shape, does not fit in 64 bits, or if the last byte would not be full.
std::optional<int64_t> byte_count(const Shape& shape, int64_t bits);

// A file mapped for reading, and its tensors according to its format. Formats check everything on
// opening: every listed tensor can be read. Usable from several threads.
class TensorFile {
 public:
  virtual ~TensorFile() = default;
  TensorFile(const TensorFile&) = delete;
  TensorFile& operator=(const TensorFile&) = delete;

  const std::string& path() const { return file_.path(); }
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  const std::vector<std::pair<std::string, std::string>>& metadata() const { return metadata_; }
  const TensorInfo* find(std::string_view name) const;  // null if absent
  // Elements of one of tensors(), row-major, with any alignment; valid as long as this object.
  virtual std::span<const std::byte> bytes(const TensorInfo& info) const = 0;

 protected:
  explicit TensorFile(const std::string& path);
  void index_names();  // call once tensors_ is complete

  MappedFile file_;
  std::vector<TensorInfo> tensors_;
  std::vector<std::pair<std::string, std::string>> metadata_;

 private:
  std::map<std::string, size_t, std::less<>> by_name_;
};

}  // namespace megatron::checkpoint
