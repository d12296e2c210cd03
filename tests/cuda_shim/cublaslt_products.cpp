// Computes the products of cuBLASLt on the CPU.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <vector>

#include "base/divide.h"
#include "base/dtype.h"
#include "base/low_precision.h"
#include "cublaslt.h"

namespace cuda_shim::lt {

int64_t bytes(cudaDataType type, int64_t elements) {
  if (type == CUDA_R_4F_E2M1) return (elements + 1) / 2;
  return elements * (type == CUDA_R_32F ? 4 : is_fp8(type) ? 1 : 2);
}

int64_t scaled_elements(int32_t mode) {
  switch (mode) {
    case CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3: return 16;
    case CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0: return 32;
    case CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F:
    case CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F: return 128;
    default: return 0;
  }
}

// Layouts: cuBLAS 13 documentation, sections 3.1.4.4.2 and 3.1.4.5.1.
int64_t scale_bytes(int32_t mode, int64_t depth, int64_t places) {
  if (scaled_elements(mode) == 0) return 4;
  const int64_t blocks = megatron::ceil_div(depth, scaled_elements(mode));
  if (mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F) return 4 * blocks * places;
  const int64_t tiles = megatron::ceil_div(places, 128);
  if (mode == CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F)
    return 4 * megatron::round_up(blocks, 4) * tiles;
  return tiles * megatron::round_up(blocks, 4) * 128;
}

bool adds_bias(const Product& o) {
  return o.epilogue == CUBLASLT_EPILOGUE_BIAS || o.epilogue == CUBLASLT_EPILOGUE_GELU_BIAS ||
         o.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}
bool sums_b(const Product& o) { return o.epilogue == CUBLASLT_EPILOGUE_BGRADB; }
bool has_bias(const Product& o) { return adds_bias(o) || sums_b(o); }
bool differentiates(const Product& o) { return o.epilogue == CUBLASLT_EPILOGUE_DGELU; }
bool has_aux(const Product& o) {
  return differentiates(o) || o.epilogue == CUBLASLT_EPILOGUE_GELU_AUX ||
         o.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}
bool applies_gelu(const Product& o) {
  return (o.epilogue & CUBLASLT_EPILOGUE_GELU) != 0 && !differentiates(o);
}

namespace {

using megatron::bf16;
using megatron::f16;

// A matrix on the device. Column j of matrix g begins at `at(g, j)`.
struct Matrix {
  const std::byte* data;
  Layout layout;
  const std::byte* at(int64_t g, int64_t column) const {
    return data + bytes(layout.type, g * layout.offset + column * layout.ld);
  }
};

float load(const std::byte* p, cudaDataType type, int64_t i) {
  if (type == CUDA_R_32F) return reinterpret_cast<const float*>(p)[i];
  if (type == CUDA_R_4F_E2M1)
    return megatron::decode(megatron::LowFormat::e2m1,
                            static_cast<uint8_t>(p[i / 2]) >> (i % 2 == 0 ? 0 : 4) & 15);
  if (is_fp8(type))
    return megatron::decode(
        type == CUDA_R_8F_E4M3 ? megatron::LowFormat::e4m3 : megatron::LowFormat::e5m2,
        static_cast<uint8_t>(p[i]));
  if (type == CUDA_R_16BF) return static_cast<float>(reinterpret_cast<const bf16*>(p)[i]);
  return static_cast<float>(reinterpret_cast<const f16*>(p)[i]);
}
void store(std::byte* p, cudaDataType type, int64_t i, float value) {
  if (type == CUDA_R_32F) {
    reinterpret_cast<float*>(p)[i] = value;
  } else if (type == CUDA_R_16BF) {
    reinterpret_cast<bf16*>(p)[i] = bf16(value);
  } else {
    reinterpret_cast<f16*>(p)[i] = f16(value);
  }
}

// Scales of blocks of an operand whose columns are along K.
struct BlockScales {
  int32_t mode;
  const void* scales;
  int64_t depth, places;

  float of(int64_t k, int64_t place) const {
    const int64_t along = scaled_elements(mode);
    if (along == 0) return 1;
    const int64_t block = k / along, blocks = megatron::ceil_div(depth, along);
    const auto* numbers = static_cast<const float*>(scales);
    if (mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F) return numbers[block * places + place];
    if (mode == CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F)
      return numbers[place / 128 * megatron::round_up(blocks, 4) + block];
    const int64_t outer = place % 128, inner = block % 4;
    const int64_t tile = (block - inner + place / 128 * megatron::round_up(blocks, 4)) * 128;
    const uint8_t code =
        static_cast<const uint8_t*>(scales)[tile + outer % 32 * 16 + outer / 32 * 4 + inner];
    return mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0
               ? megatron::e8m0_value(code)
               : megatron::decode(megatron::LowFormat::e4m3, code & 0x7f);
  }
};

// Returns op(matrix) of one matrix of a batch, column after column.
std::vector<float> columns(const Matrix& matrix, int64_t g, bool transposed, int32_t mode,
                           const void* scales) {
  const auto rows = static_cast<int64_t>(matrix.layout.rows);
  const auto cols = static_cast<int64_t>(matrix.layout.cols);
  const BlockScales blocks{mode, scales, rows, cols};
  std::vector<float> values(static_cast<size_t>(rows * cols));
  for (int64_t j = 0; j < cols; ++j) {
    const std::byte* from = matrix.at(g, j);
    for (int64_t i = 0; i < rows; ++i)
      values[static_cast<size_t>(transposed ? i * cols + j : j * rows + i)] =
          load(from, matrix.layout.type, i) * blocks.of(i, j);
  }
  return values;
}

struct Gelu {
  float value, slope;
};
Gelu gelu(float x) {
  const float u = 0.797884561f * (x + 0.044715f * x * x * x), t = std::tanh(u);
  const float du = 0.797884561f * (1 + 3 * 0.044715f * x * x);
  return {0.5f * x * (1 + t), 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * du};
}

// Applies the epilogue to the element in row i of column j.
float finish(const Work& work, float value, int64_t i, int64_t j) {
  const Product& o = work.call.operation;
  const cudaDataType type = work.call.d.type;
  if (adds_bias(o)) value += load(static_cast<const std::byte*>(work.bias), type, i);
  auto* const aux = static_cast<std::byte*>(o.aux);
  const int64_t at = j * o.aux_ld + i;
  if (differentiates(o)) return value * gelu(load(aux, type, at)).slope;
  if (has_aux(o)) store(aux, type, at, value);
  return applies_gelu(o) ? gelu(value).value : value;
}

// Sums each column of op(B) [k, n] over k.
void sum_columns(const Work& work, const std::vector<float>& b, int64_t n) {
  if (!sums_b(work.call.operation)) return;
  auto* const to = static_cast<std::byte*>(const_cast<void*>(work.bias));
  const int64_t k = static_cast<int64_t>(b.size()) / n;
  for (int64_t j = 0; j < n; ++j) {
    float total = 0;
    for (int64_t l = 0; l < k; ++l) total += b[static_cast<size_t>(j * k + l)];
    store(to, work.call.d.type, j, total);
  }
}

// Sums columns of A over parts of k, each starting from 0, then adds the parts in order.
void sum(const Work& work, const std::vector<float>& a, const float* b, int64_t m, int64_t k,
         std::vector<float>& sums) {
  std::vector<float> part(static_cast<size_t>(m));
  std::fill(sums.begin(), sums.end(), 0.0f);
  const int64_t parts = std::max(1, work.algorithm.parts), length = (k + parts - 1) / parts;
  for (int64_t p = 0; p < parts; ++p) {
    const int64_t begin = (work.backwards ? parts - 1 - p : p) * length;
    std::fill(part.begin(), part.end(), 0.0f);
    for (int64_t l = begin; l < std::min(k, begin + length); ++l) {
      const float* column = a.data() + l * m;
      for (int64_t i = 0; i < m; ++i) part[static_cast<size_t>(i)] += column[i] * b[l];
    }
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += part[i];
  }
}

}  // namespace

void multiply(const Work& work) {
  const Call& call = work.call;
  const auto matrix = [](const void* p, const Layout& layout) {
    return Matrix{static_cast<const std::byte*>(p), layout};
  };
  const Matrix a = matrix(work.a, call.a), b = matrix(work.b, call.b);
  const Matrix c = matrix(work.c, call.c), d = matrix(work.d, call.d);
  const auto m = static_cast<int64_t>(call.d.rows), n = static_cast<int64_t>(call.d.cols);
  const auto number = [](const void* on_device, float otherwise) {
    return on_device == nullptr ? otherwise : *static_cast<const float*>(on_device);
  };
  const Product& o = call.operation;
  const bool of_blocks = scaled_elements(o.a_mode) > 0;
  const float alpha = number(work.alpha, work.host_alpha) *
                      (of_blocks ? 1 : number(o.a_scale, 1) * number(o.b_scale, 1)),
              beta = number(work.beta, work.host_beta);
  if (work.algorithm.workspace > 0) std::memset(work.workspace, 0xff, work.algorithm.workspace);
  std::vector<float> sums(static_cast<size_t>(m));
  for (int64_t g = 0; g < call.d.batch; ++g) {
    const std::vector<float> left =
        columns(a, g, o.transpose_a != CUBLAS_OP_N, o.a_mode, o.a_scale);
    const std::vector<float> right =
        columns(b, g, o.transpose_b != CUBLAS_OP_N, o.b_mode, o.b_scale);
    const int64_t k = static_cast<int64_t>(left.size()) / m;
    for (int64_t j = 0; j < n; ++j) {
      sum(work, left, right.data() + j * k, m, k, sums);
      auto* out = const_cast<std::byte*>(d.at(g, j));
      for (int64_t i = 0; i < m; ++i) {
        float value = alpha * sums[static_cast<size_t>(i)];
        if (beta != 0) value += beta * load(c.at(g, j), call.c.type, i);
        store(out, call.d.type, i, finish(work, value, i, j));
      }
    }
    sum_columns(work, right, n);
  }
}

}  // namespace cuda_shim::lt
