// Common parts of the files that call oneDNN.
#pragma once

#include <dnnl.hpp>

#include "base/dtype.h"
#include "base/error.h"

// libdnnl runs its own OpenMP regions. This function of the OpenMP runtime is declared here because
// some compilers only provide its header with -fopenmp. It sets a value of the calling thread.
extern "C" void omp_set_num_threads(int);

namespace megatron::kernels::cpu {

inline dnnl::memory::data_type type_of(DType type) {
  MG_ASSERT(type == DType::f32 || type == DType::bf16);
  return type == DType::f32 ? dnnl::memory::data_type::f32 : dnnl::memory::data_type::bf16;
}

inline dnnl::memory::desc matrix(int64_t rows, int64_t cols, int64_t stride, bool transposed,
                                 DType type) {
  return transposed
             ? dnnl::memory::desc({rows, cols}, type_of(type), dnnl::memory::dims{1, stride})
             : dnnl::memory::desc({rows, cols}, type_of(type), dnnl::memory::dims{stride, 1});
}

inline dnnl::matmul::primitive_desc matmul(const dnnl::memory::desc& a, const dnnl::memory::desc& b,
                                           const dnnl::memory::desc& bias,
                                           const dnnl::memory::desc& c, bool accumulate,
                                           const dnnl::engine& engine) {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
#if DNNL_VERSION_MAJOR >= 3
  return dnnl::matmul::primitive_desc(engine, a, b, bias, c, attributes);
#else
  return dnnl::matmul::primitive_desc(dnnl::matmul::desc(a, b, bias, c), attributes, engine);
#endif
}

}  // namespace megatron::kernels::cpu
