#include "tensor/tensor.h"

#include <cstring>

#include "base/error.h"
#include "device/cuda_plugin.h"
#include "tensor/element_types.h"

namespace megatron {

Shape::Shape(std::span<const int64_t> sizes) {
  MG_CHECK(sizes.size() <= kMaxRank, "a tensor has {} dimensions; at most {} are supported",
           sizes.size(), kMaxRank);
  for (const int64_t size : sizes) {
    MG_CHECK(size >= 0, "a tensor dimension is {}; it cannot be negative", size);
    sizes_[static_cast<size_t>(rank_++)] = size;
  }
}

int64_t Shape::elements() const {
  int64_t product = 1;
  for (int i = 0; i < rank_; ++i) product *= sizes_[static_cast<size_t>(i)];
  return product;
}

bool Shape::operator==(const Shape& other) const {
  if (rank_ != other.rank_) return false;
  for (int i = 0; i < rank_; ++i)
    if ((*this)[i] != other[i]) return false;
  return true;
}

std::string Shape::str() const {
  std::string text = "[";
  for (int i = 0; i < rank_; ++i) text += (i == 0 ? "" : ", ") + std::to_string((*this)[i]);
  return text + "]";
}

namespace {

std::array<int64_t, kMaxRank> row_major(const Shape& shape) {
  std::array<int64_t, kMaxRank> strides{};
  int64_t stride = 1;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    strides[static_cast<size_t>(i)] = stride;
    stride *= shape[i];
  }
  return strides;
}

}  // namespace

Tensor Tensor::empty(Arena& arena, Shape shape, DType dtype, std::string_view label) {
  Tensor t;
  t.shape_ = shape;
  t.strides_ = row_major(shape);
  t.dtype_ = dtype;
  t.storage_ = arena.allocate(shape.elements() * size_of(dtype), label);
  return t;
}

bool Tensor::is_contiguous() const {
  int64_t stride = 1;
  for (int i = rank() - 1; i >= 0; --i) {
    if (size(i) != 1 && this->stride(i) != stride) return false;
    stride *= size(i);
  }
  return true;
}

void* Tensor::raw() const {
  MG_ASSERT(defined() && device().is_host());
  return address();
}

void* Tensor::address() const {
  MG_ASSERT(defined());
  std::byte* const data = storage_->data();
  return data == nullptr ? nullptr : data + offset_ * size_of(dtype_);
}

Tensor Tensor::view(Shape shape) const {
  check_contiguous();
  MG_ASSERT(shape.elements() == elements());
  Tensor t = *this;
  t.shape_ = shape;
  t.strides_ = row_major(shape);
  return t;
}

Tensor Tensor::slice(int dim, int64_t begin, int64_t size) const {
  MG_ASSERT(begin >= 0 && size >= 0 && begin + size <= this->size(dim));
  Tensor t = *this;
  t.shape_.set(dim, size);
  t.offset_ += begin * stride(dim);
  return t;
}

Tensor Tensor::select(int dim, int64_t index) const {
  const int removed = dim < 0 ? dim + rank() : dim;
  const Tensor one = slice(removed, index, 1);
  std::array<int64_t, kMaxRank> sizes{}, strides{};
  size_t kept = 0;
  for (int i = 0; i < rank(); ++i) {
    if (i == removed) continue;
    sizes[kept] = one.size(i);
    strides[kept++] = one.stride(i);
  }
  return one.as_strided(Shape(std::span<const int64_t>(sizes.data(), kept)),
                        {strides.data(), kept});
}

Tensor Tensor::transpose(int a, int b) const {
  const auto index = [this](int dim) { return static_cast<size_t>(dim < 0 ? dim + rank() : dim); };
  Tensor t = *this;
  t.shape_.set(a, size(b));
  t.shape_.set(b, size(a));
  std::swap(t.strides_[index(a)], t.strides_[index(b)]);
  return t;
}

Tensor Tensor::as_strided(Shape shape, std::span<const int64_t> strides, int64_t offset) const {
  MG_ASSERT(static_cast<int>(strides.size()) == shape.rank());
  int64_t last = offset_ + offset;
  for (int i = 0; i < shape.rank(); ++i) last += (shape[i] - 1) * strides[static_cast<size_t>(i)];
  MG_ASSERT(shape.elements() == 0 || (last + 1) * size_of(dtype_) <= storage_->bytes());
  Tensor t = *this;
  t.shape_ = shape;
  t.offset_ += offset;
  for (size_t i = 0; i < strides.size(); ++i) t.strides_[i] = strides[i];
  return t;
}

Tensor Tensor::view_as(DType dtype) const {
  MG_ASSERT(size_of(dtype) == size_of(dtype_));
  Tensor t = *this;
  t.dtype_ = dtype;
  return t;
}

Tensor Tensor::whole() const {
  Tensor t;
  t.storage_ = storage_;
  t.dtype_ = dtype_;
  t.shape_ = {storage_->bytes() / size_of(dtype_)};
  t.strides_[0] = 1;
  return t;
}

Tensor Tensor::unowned() const {
  Tensor view = *this;
  view.storage_ = storage_->unowned();
  return view;
}

Tensor Tensor::shell() const {
  Tensor t = *this;
  t.storage_.reset();
  return t;
}

Tensor Tensor::on(const Tensor& other) const {
  Tensor t = *this;
  t.storage_ = other.storage_;
  int64_t last = offset_;
  for (int i = 0; i < rank(); ++i) last += (size(i) - 1) * stride(i);
  MG_ASSERT(elements() == 0 || (last + 1) * size_of(dtype_) <= t.storage_->bytes());
  return t;
}

void Tensor::check_type(DType wanted) const {
  if (dtype_ != wanted)
    throw InternalError(
        fmt::format("a tensor of type {} was read as {}", name(dtype_), name(wanted)));
}

void Tensor::check_contiguous() const { MG_ASSERT(is_contiguous()); }

namespace {

// Calls f(element offset) for each element in row-major order.
template <class F>
void for_each_offset(const Tensor& t, F&& f) {
  std::array<int64_t, kMaxRank> index{};
  const int64_t n = t.elements();
  for (int64_t i = 0; i < n; ++i) {
    int64_t offset = 0;
    for (int d = 0; d < t.rank(); ++d) offset += index[static_cast<size_t>(d)] * t.stride(d);
    f(offset);
    for (int d = t.rank() - 1; d >= 0; --d) {
      if (++index[static_cast<size_t>(d)] < t.size(d)) break;
      index[static_cast<size_t>(d)] = 0;
    }
  }
}

// Number of elements from the first to the last, including those between that do not belong to the
// tensor.
int64_t span_of(const Tensor& t) {
  if (t.elements() == 0) return 0;
  int64_t last = 0;
  for (int d = 0; d < t.rank(); ++d) last += (t.size(d) - 1) * t.stride(d);
  return last + 1;
}

// The elements of a tensor in host memory, with its strides: its own memory, or a copy of the range
// that a CUDA tensor spans.
class HostElements {
 public:
  explicit HostElements(const Tensor& t) : t_(t) {
    if (t.device().kind != DeviceKind::cuda) {
      data_ = static_cast<std::byte*>(t.raw());
      return;
    }
    copy_.resize(static_cast<size_t>(span_of(t) * size_of(t.dtype())));
    data_ = copy_.data();
  }
  void read() {
    if (!copy_.empty())
      cuda_plugin().copy_now(data_, t_.address(), static_cast<int64_t>(copy_.size()), t_.device());
  }
  void write(Stream* stream = nullptr) {
    if (copy_.empty()) return;
    const auto bytes = static_cast<int64_t>(copy_.size());
    if (stream != nullptr) return cuda_plugin().copy(t_.address(), data_, bytes, *stream);
    cuda_plugin().copy_now(t_.address(), data_, bytes, t_.device());
  }
  template <class T>
  T* data() {
    return reinterpret_cast<T*>(data_);
  }

 private:
  const Tensor& t_;
  std::vector<std::byte> copy_;
  std::byte* data_ = nullptr;
};

// Calls f(T{}) with the type of the tensor's elements.
template <class F>
void for_type(DType type, F&& f) {
  is_floating(type) ? for_floating_type(type, f) : for_integer_type(type, f);
}

template <class To>
std::vector<To> convert(const Tensor& t) {
  std::vector<To> out;
  out.reserve(static_cast<size_t>(t.elements()));
  HostElements elements(t);
  elements.read();
  for_type(t.dtype(), [&]<class From>(From) {
    const From* data = elements.data<From>();
    for_each_offset(t, [&](int64_t offset) {
      if constexpr (sizeof(From) == 2 && !std::is_integral_v<From>) {
        out.push_back(static_cast<To>(static_cast<float>(data[offset])));
      } else {
        out.push_back(static_cast<To>(data[offset]));
      }
    });
  });
  return out;
}

template <class From>
void assign(const Tensor& t, std::span<const From> values, Stream* stream = nullptr) {
  MG_ASSERT(static_cast<int64_t>(values.size()) == t.elements());
  HostElements elements(t);
  MG_ASSERT(stream == nullptr || t.is_contiguous());
  if (!t.is_contiguous()) elements.read();
  for_type(t.dtype(), [&]<class To>(To) {
    To* data = elements.data<To>();
    size_t i = 0;
    for_each_offset(t, [&](int64_t offset) {
      if constexpr (sizeof(To) == 2 && !std::is_integral_v<To>) {
        data[offset] = To(static_cast<float>(values[i++]));
      } else {
        data[offset] = static_cast<To>(values[i++]);
      }
    });
  });
  elements.write(stream);
}

}  // namespace

std::vector<double> to_doubles(const Tensor& tensor) { return convert<double>(tensor); }
std::vector<float> to_floats(const Tensor& tensor) { return convert<float>(tensor); }
void copy_from(Tensor& tensor, std::span<const double> values) { assign(tensor, values); }
void copy_from(Tensor& tensor, std::span<const float> values) { assign(tensor, values); }
void copy_from(Tensor& tensor, std::span<const int32_t> values) { assign(tensor, values); }
void copy_from(Tensor& tensor, std::span<const double> values, Stream& stream) {
  assign(tensor, values, &stream);
}
void copy_from(Tensor& tensor, std::span<const int32_t> values, Stream& stream) {
  assign(tensor, values, &stream);
}
void copy_from(Tensor& tensor, std::span<const int64_t> values, Stream& stream) {
  assign(tensor, values, &stream);
}

void copy_bytes_from(const Tensor& tensor, std::span<const std::byte> bytes) {
  MG_ASSERT(tensor.is_contiguous() && static_cast<int64_t>(bytes.size()) == tensor.bytes());
  if (bytes.empty()) return;
  if (tensor.device().kind == DeviceKind::cuda)
    return cuda_plugin().copy_now(tensor.address(), bytes.data(), tensor.bytes(), tensor.device());
  std::memcpy(tensor.raw(), bytes.data(), bytes.size());
}

std::span<const std::byte> bytes_of(const Tensor& tensor) {
  MG_ASSERT(tensor.is_contiguous());
  return {static_cast<const std::byte*>(tensor.raw()), static_cast<size_t>(tensor.bytes())};
}

void copy_bytes_to(const Tensor& tensor, std::span<std::byte> bytes) {
  MG_ASSERT(tensor.is_contiguous() && static_cast<int64_t>(bytes.size()) == tensor.bytes());
  if (bytes.empty()) return;
  if (tensor.device().kind == DeviceKind::cuda)
    return cuda_plugin().copy_now(bytes.data(), tensor.address(), tensor.bytes(), tensor.device());
  std::memcpy(bytes.data(), tensor.raw(), bytes.size());
}

Tensor on_host(const Tensor& tensor, bool filled) {
  if (tensor.device().kind != DeviceKind::cuda) return tensor;
  const auto arena = Arena::make({DeviceKind::cpu, 0}, tensor.memory_class());
  const Tensor copy = Tensor::empty(*arena, {span_of(tensor)}, tensor.dtype(), "host copy");
  if (filled && copy.bytes() > 0)
    cuda_plugin().copy_now(copy.raw(), tensor.address(), copy.bytes(), tensor.device());
  std::array<int64_t, kMaxRank> strides{};
  for (int d = 0; d < tensor.rank(); ++d) strides[static_cast<size_t>(d)] = tensor.stride(d);
  return copy.as_strided(tensor.shape(),
                         std::span(strides.data(), static_cast<size_t>(tensor.rank())));
}

double read_scalar(const Tensor& tensor, Stream& stream) {
  MG_ASSERT(tensor.elements() == 1 && tensor.device().has_data());
  stream.synchronize();
  return convert<double>(tensor)[0];
}

}  // namespace megatron
