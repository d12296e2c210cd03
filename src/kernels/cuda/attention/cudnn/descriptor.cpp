#include "kernels/cuda/attention/cudnn/descriptor.h"

#include <array>

#include "base/error.h"
#include "device/cuda/out_of_memory.h"

namespace megatron::kernels::cuda::cudnn {

bool lacks_memory(cudnnStatus_t status) {
  return status == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ||
         status == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED;
}

void check(cudnnStatus_t status, const char* call) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  std::array<char, 1024> text{};
  cudnnGetLastErrorString(text.data(), text.size());
  const std::string failure = fmt::format("CUDA: cuDNN's {} failed: {} ({})", call,
                                          cudnnGetErrorString(status), text.data());
  if (lacks_memory(status)) megatron::cuda::fail_for_memory(failure);
  fail("{}", failure);
}

Descriptor::Descriptor(cudnnBackendDescriptorType_t type) {
  cudnnBackendDescriptor_t made = nullptr;
  check(cudnnBackendCreateDescriptor(type, &made), "cudnnBackendCreateDescriptor");
  handle_.reset(made);
}

Descriptor& Descriptor::set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                            int64_t count, const void* values) {
  check(cudnnBackendSetAttribute(get(), name, type, count, values), "cudnnBackendSetAttribute");
  return *this;
}

cudnnStatus_t Descriptor::try_finalize() { return cudnnBackendFinalize(get()); }

void Descriptor::finalize() { check(try_finalize(), "cudnnBackendFinalize"); }

int64_t Descriptor::get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                        int64_t most, void* values) const {
  int64_t count = 0;
  check(cudnnBackendGetAttribute(get(), name, type, most, &count, values),
        "cudnnBackendGetAttribute");
  return count;
}

int64_t Descriptor::get_int64(cudnnBackendAttributeName_t name) const {
  int64_t value = 0;
  get(name, CUDNN_TYPE_INT64, 1, &value);
  return value;
}

}  // namespace megatron::kernels::cuda::cudnn
