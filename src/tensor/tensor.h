// A view of storage: shape, strides (in elements), element type, offset. Copying a Tensor copies
// the view, not the data.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "device/arena.h"
#include "device/stream.h"
#include "tensor/shape.h"

namespace megatron {

class Tensor {
 public:
  Tensor() = default;  // undefined
  // A contiguous tensor with undefined contents.
  static Tensor empty(Arena& arena, Shape shape, DType dtype, std::string_view label);

  bool defined() const { return storage_ != nullptr; }
  const Shape& shape() const { return shape_; }
  int rank() const { return shape_.rank(); }
  int64_t size(int dim) const { return shape_[dim]; }
  int64_t stride(int dim) const {
    return strides_[static_cast<size_t>(dim < 0 ? dim + rank() : dim)];
  }
  int64_t offset() const { return offset_; }  // of the first element, in elements of the storage
  int64_t elements() const { return shape_.elements(); }
  int64_t bytes() const { return elements() * size_of(dtype_); }
  DType dtype() const { return dtype_; }
  Device device() const { return storage_->device(); }
  bool is_contiguous() const;
  bool same_storage(const Tensor& other) const { return storage_ == other.storage_; }
  const void* storage_id() const { return storage_.get(); }  // unique among existing storages
  MemoryClass memory_class() const { return storage_->memory_class(); }

  // First element. data<T>() checks the type. Both assert that the tensor is on the host.
  template <class T>
  T* data() const {
    check_type(DTypeOf<T>::value);
    return static_cast<T*>(raw());
  }
  void* raw() const;
  // Address of the first element in device memory. Null on meta.
  void* address() const;
  template <class T>
  std::span<T> span() const {
    check_contiguous();
    return {data<T>(), static_cast<size_t>(elements())};
  }

  // Views. Out-of-range arguments are InternalErrors: shapes from users must be checked before.
  Tensor view(Shape shape) const;  // requires a contiguous tensor and the same number of elements
  Tensor slice(int dim, int64_t begin, int64_t size) const;
  Tensor select(int dim, int64_t index) const;  // slice at an index, without that dimension
  Tensor transpose(int a, int b) const;
  Tensor as_strided(Shape shape, std::span<const int64_t> strides, int64_t offset = 0) const;
  Tensor view_as(DType dtype) const;  // requires the same element size
  Tensor whole() const;               // all elements of the storage, 1-d

  // The same view without ownership, for memory that recorded work (device/recorded_part.h) uses
  // repeatedly. Its contents may be overwritten.
  Tensor unowned() const;
  // The view without its storage: undefined, and keeps nothing alive.
  Tensor shell() const;
  // The same view (this may be a shell) of another tensor's storage. That must be at least as large
  // as this one's.
  Tensor on(const Tensor& other) const;

 private:
  void check_type(DType wanted) const;
  void check_contiguous() const;

  std::shared_ptr<Storage> storage_;
  Shape shape_;
  std::array<int64_t, kMaxRank> strides_{};
  int64_t offset_ = 0;
  DType dtype_ = DType::f32;
};

// Host copies of a tensor, for tests, checkpoints and results. They convert between floating types.
// For a CUDA tensor they wait for all work queued on its device.
std::vector<double> to_doubles(const Tensor& tensor);  // row-major; accepts strided tensors
std::vector<float> to_floats(const Tensor& tensor);
void copy_from(Tensor& tensor, std::span<const double> values);
void copy_from(Tensor& tensor, std::span<const float> values);
void copy_from(Tensor& tensor, std::span<const int32_t> values);
// The bytes of a contiguous tensor, in the same way.
void copy_bytes_from(const Tensor& tensor, std::span<const std::byte> bytes);
std::span<const std::byte> bytes_of(const Tensor& tensor);  // requires a host tensor
void copy_bytes_to(const Tensor& tensor, std::span<std::byte> bytes);
// For a CUDA tensor: a tensor of the same shape, strides and type in host memory, with its values
// if `filled`. For any other: the tensor itself.
Tensor on_host(const Tensor& tensor, bool filled = true);
// Copies in the order of the stream, without waiting for it; `values` may be changed when the call
// returns. CUDA tensors must be contiguous.
void copy_from(Tensor& tensor, std::span<const double> values, Stream& stream);
void copy_from(Tensor& tensor, std::span<const int32_t> values, Stream& stream);
void copy_from(Tensor& tensor, std::span<const int64_t> values, Stream& stream);

// Returns the value of a one-element tensor, after the stream's work. Throws InternalError on meta,
// and while the stream's work is recorded: nothing below `training` may let a value decide what
// runs.
double read_scalar(const Tensor& tensor, Stream& stream);

}  // namespace megatron
