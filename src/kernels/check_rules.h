// Building blocks of each kernel's check(args): the shape and type rules of its contract, declared
// in the kernel's header and shared by all back-ends. A violated rule is a defect of the caller:
// throws InternalError naming the kernel, the rule and the shapes. Data is never read.
#pragma once

#include <array>

#include "base/error.h"
#include "kernels/table.h"

namespace megatron::kernels {

inline bool accumulator_of(const Tensor& t, DType type) { return t.dtype() == accumulator(type); }

inline bool last_is_dense(const Tensor& t) { return t.size(-1) <= 1 || t.stride(-1) == 1; }

inline bool is_wide(const Tensor& t) { return t.dtype() == DType::f64 || t.dtype() == DType::f32; }
inline bool is_float_type(const Tensor& t) { return is_floating(t.dtype()); }
inline bool is_16_bit(const Tensor& t) {
  return t.dtype() == DType::bf16 || t.dtype() == DType::f16;
}

// The rules of one call; their errors name its tensors.
class Rules {
 public:
  template <class Args>
  Rules(const char* kernel, const Args& args) : kernel_(kernel) {
    visit(const_cast<Args&>(args),
          [this](const char* name, Access, const Tensor& tensor) { add(name, tensor); });
    require_one_device();
  }
  explicit Rules(const char* kernel) : kernel_(kernel) {}
  void add(const char* name, const Tensor& tensor) {
    MG_ASSERT(count_ < kMax);
    names_[count_] = name;
    tensors_[count_++] = &tensor;
  }
  void require_one_device() const {
    const Tensor* first = nullptr;
    for (size_t i = 0; i < count_; ++i) {
      const Tensor& t = *tensors_[i];
      // Every device can access the host memory of offload arenas.
      if (!t.defined() || t.memory_class() == MemoryClass::offload) continue;
      if (first == nullptr) first = &t;
      require(t.device() == first->device(), "one device for all");
    }
  }
  void require(bool condition, const char* rule) const {
    if (!condition) [[unlikely]]
      broken(rule);
  }
  void defined(const Tensor& t, const char* rule) const { require(t.defined(), rule); }
  // Requires a defined, contiguous tensor of this shape and type.
  void dense(const Tensor& t, const Shape& shape, DType type, const char* rule) const {
    require(t.defined() && t.shape() == shape && t.dtype() == type && t.is_contiguous(), rule);
  }
  // The same for a tensor that may be undefined.
  void optional(const Tensor& t, const Shape& shape, DType type, const char* rule) const {
    if (t.defined()) dense(t, shape, type, rule);
  }
  // The same for a sum that is written or added to.
  void sum(const Accumulate& sum, const Shape& shape, DType type, const char* rule) const {
    dense(sum.out, shape, type, rule);
    require(sum.beta == 0 || sum.beta == 1, "beta is 0 or 1");
  }
  void optional(const Accumulate& to, const Shape& shape, DType type, const char* rule) const {
    if (to.out.defined()) sum(to, shape, type, rule);
  }
  // Requires a defined, contiguous tensor of this rank: of a floating type, of f32 or f64, of i32.
  void floats(const Tensor& t, int rank, const char* rule) const {
    require(t.defined() && t.rank() == rank && t.is_contiguous() && is_float_type(t), rule);
  }
  void wide(const Tensor& t, int rank, const char* rule) const {
    require(t.defined() && t.rank() == rank && t.is_contiguous() && is_wide(t), rule);
  }
  void indices(const Tensor& t, int rank, const char* rule) const {
    require(t.defined() && t.rank() == rank && t.is_contiguous() && t.dtype() == DType::i32, rule);
  }
  // Requires a defined tensor of this rank and of a floating type, the last dim contiguous.
  void rows(const Tensor& t, int rank, const char* rule) const {
    require(t.defined() && t.rank() == rank && is_float_type(t) && last_is_dense(t), rule);
  }
  void scalar(const Tensor& t, const char* rule) const { dense(t, {}, DType::f64, rule); }

 private:
  [[noreturn]] void broken(const char* rule) const {
    std::string text = fmt::format("internal error: {}: broken rule '{}' with", kernel_, rule);
    for (size_t i = 0; i < count_; ++i) {
      const Tensor& tensor = *tensors_[i];
      text += tensor.defined()
                  ? fmt::format(" {} {} {}", names_[i], tensor.shape().str(), name(tensor.dtype()))
                  : fmt::format(" {} undefined", names_[i]);
      if (tensor.defined() && !tensor.is_contiguous()) text += " strided";
    }
    throw InternalError(text);
  }

  static constexpr size_t kMax = 20;
  const char* kernel_;
  std::array<const char*, kMax> names_{};
  std::array<const Tensor*, kMax> tensors_{};
  size_t count_ = 0;
};

// Logits of a router.
inline void check_logits(const Rules& rules, const Tensor& logits) {
  rules.wide(logits, 2, "logits f32 or f64 [T,E]");
  rules.require(logits.size(1) > 0, "E > 0");
}

// rows: of the tensor.
inline void check_row_tokens(const Rules& rules, const RowTokens& tokens, int64_t rows) {
  rules.require(tokens.sample_ids.defined() && tokens.sample_ids.rank() == 1, "sample_ids i64 [B]");
  const int64_t samples = tokens.sample_ids.size(0);
  rules.dense(tokens.sample_ids, {samples}, DType::i64, "sample_ids i64 [B]");
  if (tokens.positions.defined())
    rules.dense(tokens.positions, {samples * tokens.length_of(rows)}, DType::i32,
                "positions i32 [B*L]");
  if (tokens.length != 0) {
    rules.require(
        tokens.first >= 0 && tokens.length > 0 && tokens.first + rows <= samples * tokens.length,
        "rows [first, first + rows) of B * length");
    return;
  }
  rules.require(tokens.first == 0, "a first row with the length only");
  rules.require(rows == 0 || (samples > 0 && rows % samples == 0),
                "rows are a multiple of the samples");
}

inline void check_mask(const Rules& rules, const DropoutArgs::Mask& mask, int64_t batch) {
  rules.require(mask.p >= 0 && mask.p < 1, "dropout p in [0, 1)");
  if (mask.p == 0) return;
  rules.dense(mask.rows.sample_ids, {batch}, DType::i64, "sample_ids i64 [B]");
}

}  // namespace megatron::kernels
