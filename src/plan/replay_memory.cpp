#include "plan/replay_memory.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/divide.h"

namespace megatron::plan {
namespace {

constexpr int64_t kAlignment = 4096;
constexpr int64_t kPattern = int64_t{1} << 20;  // bytes of random data that a pool repeats

// In +-[0.01, 0.05], so that products and sums are not denormal.
float small_number(uint64_t index) {
  const uint64_t bits = index * 0x9E3779B97F4A7C15u >> 40;
  const float size = 0.01f + 0.04f * static_cast<float>(bits >> 1) / static_cast<float>(1 << 23);
  return (bits & 1) != 0 ? size : -size;
}

template <class T>
void put_numbers(std::byte* begin, int64_t bytes) {
  T* numbers = reinterpret_cast<T*>(begin);
  for (int64_t i = 0; i < bytes / static_cast<int64_t>(sizeof(T)); ++i)
    numbers[i] = T(small_number(static_cast<uint64_t>(i)));
}

void put_numbers(std::byte* begin, int64_t bytes, DType type) {
  switch (type) {
    case DType::f32: return put_numbers<float>(begin, bytes);
    case DType::f64: return put_numbers<double>(begin, bytes);
    case DType::bf16: return put_numbers<bf16>(begin, bytes);
    case DType::f16: return put_numbers<f16>(begin, bytes);
    default: std::memset(begin, 0, static_cast<size_t>(bytes));
  }
}

// Number of rows that the indices of a call may refer to.
int64_t index_end(const OperandForm& form, const WorkItem& item) {
  for (const OperandForm& o : item.operands) {
    if (form.name == "ids" && (o.name == "table" || o.name == "dtable")) return o.shape[0];
    if (form.name == "labels" && o.name == "logits") return o.shape[-1];
    if (form.name == "positions" && o.name == "cos") return o.shape[0];
  }
  return 0;
}

// Gives every expert the same number of choices, with consecutive rows.
std::optional<int64_t> expert_index(const OperandForm& form, const WorkItem& item,
                                    const ExpertFill& fill, int64_t i) {
  if (form.name == "offsets")
    for (const char* rows : {"a", "dy"})
      if (const OperandForm* operand = item.find(rows))
        return rows_before(fill, operand->shape[0], i, form.shape.elements() - 1);
  if (form.name == "experts") {
    for (const char* table : {"dlogits", "counts", "offsets"})
      if (const OperandForm* operand = item.find(table))
        return i % std::max<int64_t>(operand->shape[-1] - (operand->name == "offsets" ? 1 : 0), 1);
  }
  if (form.name == "index")
    if (const OperandForm* x = item.find("x")) return i % std::max<int64_t>(x->shape[0], 1);
  return std::nullopt;
}

double number_for(std::string_view name) {
  if (name == "lr") return 1e-4;
  if (name == "weight_decay") return 0.01;
  if (name == "step") return 10;
  return 1;
}

// Value for integers, and for operands that a kernel divides by or takes roots of.
double value_at(const OperandForm& form, const WorkItem& item, const ExpertFill& fill, int64_t i) {
  if (form.name == "ids" || form.name == "labels")
    return static_cast<double>((i * 7919 + 13) % std::max<int64_t>(index_end(form, item), 1));
  if (form.name == "positions") {
    const int64_t end = index_end(form, item);
    return static_cast<double>(end > 0 ? i % end : i);
  }
  if (form.name == "q_positions" || form.name == "k_positions")
    return static_cast<double>(i % form.shape[-1]);
  if (form.name == "window_end")  // one document, as window_start 0
    return static_cast<double>(item.operand("k").shape[1] - 1);
  if (const auto index = expert_index(form, item, fill, i)) return static_cast<double>(*index);
  if (form.name == "sample_ids") return static_cast<double>(i);
  return is_floating(form.type) ? number_for(form.name) : 0;
}

template <class T>
std::vector<T> whole(const std::vector<double>& values) {
  return {values.begin(), values.end()};
}

// Positions, ids, weights of tokens, scalars of the optimizer: small operands whose values matter.
bool is_small(const OperandForm& form) {
  const std::string_view n = form.name;
  if (!is_floating(form.type)) return form.type != DType::i16;
  return n == "weights" || n == "rstd" || (form.type == DType::f64 && form.shape.elements() == 1);
}

}  // namespace

Tensor ReplayMemory::small(const OperandForm& form, const WorkItem& item) {
  Tensor t = Tensor::empty(runtime_.arena(MemoryClass::activations), form.shape, form.type,
                           "replay.values");
  std::vector<double> values(static_cast<size_t>(form.shape.elements()));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = value_at(form, item, fill_, static_cast<int64_t>(i));
  Stream& stream = runtime_.stream();
  if (form.type == DType::i64) {
    copy_from(t, std::span<const int64_t>(whole<int64_t>(values)), stream);
  } else if (form.type == DType::i32) {
    copy_from(t, std::span<const int32_t>(whole<int32_t>(values)), stream);
  } else if (is_floating(form.type)) {
    copy_from(t, std::span<const double>(values), stream);
  }
  return t;
}

void ReplayMemory::reserve(DType type, bool written, int64_t bytes) {
  Pool& pool = pools_[{type, written}];
  if (!pool.memory.defined() || pool.memory.bytes() < bytes) {
    pool = {};
    const int64_t size = std::max(bytes, round_up(cold_ / 2, kAlignment));
    pool.memory = Tensor::empty(runtime_.arena(MemoryClass::activations), {size / size_of(type)},
                                type, "replay.operands");
    fill(pool.memory);
  }
  if (pool.next + bytes > pool.memory.bytes()) pool.next = 0;
}

Tensor ReplayMemory::take(DType type, bool written, int64_t bytes) {
  Pool& pool = pools_[{type, written}];
  const int64_t size = round_up(bytes, kAlignment);
  Tensor taken = pool.memory.slice(0, pool.next / size_of(type), size / size_of(type));
  pool.next += size;
  return taken;
}

void ReplayMemory::fill(const Tensor& pool) {
  const int64_t size = pool.bytes();
  std::vector<std::byte> pattern(static_cast<size_t>(std::min(kPattern, size)));
  put_numbers(pattern.data(), static_cast<int64_t>(pattern.size()), pool.dtype());
  const int64_t unit = size_of(pool.dtype());
  for (int64_t at = 0; at < size; at += kPattern) {
    const int64_t part = std::min(kPattern, size - at);
    copy_bytes_from(pool.slice(0, at / unit, part / unit),
                    std::span(pattern).first(static_cast<size_t>(part)));
  }
}

std::vector<Tensor> ReplayMemory::operands(const WorkItem& item) {
  const size_t count = item.operands.size();
  std::vector<int64_t> bytes(count, 0);
  std::vector<bool> written(count, false), pooled(count, false);
  for (const OperandForm& form : item.operands) {
    const auto storage = static_cast<size_t>(form.storage);
    bytes[storage] = std::max(bytes[storage], form.end());
    if (form.access != kernels::Access::read) written[storage] = true;
    if (!is_small(form)) pooled[storage] = true;
  }
  // Allocated together, so that no two operands of a call share memory.
  std::map<std::pair<DType, bool>, int64_t> together;
  for (size_t i = 0; i < count; ++i) {
    pooled[i] = pooled[i] || written[i];
    if (pooled[i]) together[{item.operands[i].type, written[i]}] += round_up(bytes[i], kAlignment);
  }
  for (const auto& [pool, all] : together) reserve(pool.first, pool.second, all);
  std::vector<Tensor> memory(count), tensors;
  for (size_t i = 0; i < count; ++i) {
    const OperandForm& form = item.operands[i];
    const auto storage = static_cast<size_t>(form.storage);
    if (!pooled[storage]) {
      tensors.push_back(small(form, item));
      continue;
    }
    if (!memory[storage].defined())
      memory[storage] = take(item.operands[storage].type, written[storage], bytes[storage]);
    const std::span<const int64_t> strides(form.strides.data(),
                                           static_cast<size_t>(form.shape.rank()));
    tensors.push_back(memory[storage].view_as(form.type).as_strided(
        form.shape, strides, form.offset / size_of(form.type)));
  }
  return tensors;
}

}  // namespace megatron::plan
