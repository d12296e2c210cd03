#include "kernels/cpu/attention/bias.h"

#include <limits>

namespace megatron::kernels::cpu {
namespace {

// Distance from row i of the block to a key; rows of padding are like the last one.
int64_t distance(const RowBlock& block, const TilePlace& place, int64_t i, int64_t j) {
  return int64_t{place.key[j]} - block.position[i];
}

int64_t head_in_group(const AttentionSizes& sizes, const RowBlock& block, int64_t i) {
  return (block.begin + std::min(i, block.count - 1)) % sizes.group;
}

}  // namespace

bool has_run_of_keys(const AttentionSizes& sizes, const TilePlace& place) {
  if (!sizes.k_positions.defined()) return true;
  int64_t count = place.keys;
  while (count > 0 && place.key[count - 1] == std::numeric_limits<int32_t>::max()) --count;
  for (int64_t j = 1; j < count; ++j)
    if (int64_t{place.key[j]} != int64_t{place.key[0]} + j) return false;
  return true;
}

int64_t HeadBias::bytes(const Tensor& bias) {
  return bias.size(1) * DistanceSlots(bias).count() * size_of(DType::f32);
}

HeadBias::HeadBias(const Tensor& bias, const std::shared_ptr<Storage>& memory, Stream& stream)
    : values_(nullptr), slots_(bias) {
  if (!bias.defined()) return;
  auto* values = reinterpret_cast<float*>(memory->data());
  const float* from = bias.data<float>();
  stream.pool().parallel_for(bias.size(1), [&](int64_t n, int) {
    float* to = values + n * slots_.count();
    for (int64_t slot = 0; slot < slots_.count(); ++slot)
      to[slot] = from[slots_.row(slot) * bias.stride(0) + n * bias.stride(1)];
  });
  values_ = values;
}

const float* const* HeadBias::of_tile(const AttentionSizes& sizes, const RowBlock& block,
                                      const TilePlace& place, uint32_t* gathered,
                                      const float** rows) const {
  if (values_ == nullptr) return nullptr;
  const bool run = has_run_of_keys(sizes, place);
  for (int64_t i = 0; i < place.rows; ++i) {
    const int64_t head = block.key_head * sizes.group + head_in_group(sizes, block, i);
    const float* values = values_ + head * slots_.count();
    if (run) {
      rows[i] = values + slots_.run(distance(block, place, i, 0));
      continue;
    }
    float* row = floats(gathered) + i * kKeyColumns;
    for (int64_t j = 0; j < place.keys; ++j)
      row[j] = values[slots_.slot(distance(block, place, i, j))];
    rows[i] = row;
  }
  return rows;
}

int64_t BiasSums::part_words(const Tensor& bias, int64_t group) {
  return 2 * group * DistanceSlots(bias).count();
}

BiasSums::BiasSums(const Tensor& bias, int64_t group, uint32_t* parts, uint32_t* scattered,
                   double* sums)
    : slots_(bias),
      group_(group),
      parts_(floats(parts)),
      scattered_(floats(scattered)),
      sums_(sums),
      first_(slots_.count()) {
  std::fill_n(parts_, part_words(bias, group), 0.0f);
  std::fill_n(sums_, group * slots_.count(), 0.0);
}

float* const* BiasSums::of_tile(const AttentionSizes& sizes, const RowBlock& block,
                                const TilePlace& place) {
  scatters_ = !has_run_of_keys(sizes, place);
  for (int64_t i = 0; i < place.rows; ++i) {
    if (scatters_) {
      rows_[i] = scattered_ + i * kKeyColumns;
      std::fill_n(rows_[i], place.keys, 0.0f);
      continue;
    }
    const int64_t slot = slots_.run(distance(block, place, i, 0));
    rows_[i] = part(i, head_in_group(sizes, block, i)) + slot;
    touch(slot, slot + place.keys);
  }
  return rows_;
}

void BiasSums::end_tile(const AttentionSizes& sizes, const RowBlock& block,
                        const TilePlace& place) {
  if (!scatters_) return;
  for (int64_t i = 0; i < block.count; ++i) {
    float* sums = part(i, head_in_group(sizes, block, i));
    for (int64_t j = 0; j < place.keys; ++j) {
      const int64_t slot = slots_.slot(distance(block, place, i, j));
      sums[slot] += rows_[i][j];
      touch(slot, slot + 1);
    }
  }
}

void BiasSums::end_rows() {
  for (int64_t head = 0; head < group_; ++head) {
    float *even = part(0, head), *odd = part(1, head);
    double* sums = sums_ + head * slots_.count();
    for (int64_t slot = first_; slot < end_; ++slot) {
      sums[slot] += static_cast<double>(even[slot]) + static_cast<double>(odd[slot]);
      even[slot] = odd[slot] = 0;
    }
  }
  first_ = slots_.count();
  end_ = 0;
}

void store_bias_gradient(const double* sums, int64_t samples, const Accumulate& to,
                         Stream& stream) {
  const DistanceSlots slots(to.out);
  const int64_t rows = to.out.size(0), heads = to.out.size(1);
  float* out = to.out.data<float>();
  stream.pool().parallel_for(heads, [&](int64_t n, int) {
    for (int64_t row = 0; row < rows; ++row) {
      double sum = 0;
      for (int64_t b = 0; b < samples; ++b) {
        const double* of_head = sums + (b * heads + n) * slots.count();
        for (int64_t slot = slots.first(row); slot < slots.end(row); ++slot) sum += of_head[slot];
      }
      float& stored = out[row * heads + n];
      stored = static_cast<float>((to.beta == 0 ? 0.0 : static_cast<double>(stored)) + sum);
    }
  });
}

}  // namespace megatron::kernels::cpu
