#include "kernels/cuda_products.h"

#include "device/wing.h"

namespace megatron::kernels {

const CudaProducts& cuda_products() {
  using Products = const CudaProducts* (*)();
  return *reinterpret_cast<Products>(cuda_symbol("megatron_cuda_products"))();
}

}  // namespace megatron::kernels
