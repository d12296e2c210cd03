// Descriptors of cuDNN's graph API.
#pragma once

#include <cudnn.h>

#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

namespace megatron::kernels::cuda::cudnn {

bool lacks_memory(cudnnStatus_t status);
// Throws Error naming the call and quoting cuDNN's message; OutOfMemory if it lacks memory.
void check(cudnnStatus_t status, const char* call);

// A descriptor's attributes are set first, then it is finalized, then it is used.
class Descriptor {
 public:
  explicit Descriptor(cudnnBackendDescriptorType_t type);

  cudnnBackendDescriptor_t get() const { return handle_.get(); }

  Descriptor& set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
                  const void* values);
  Descriptor& set(cudnnBackendAttributeName_t name, int64_t value) {
    return set(name, CUDNN_TYPE_INT64, 1, &value);
  }
  Descriptor& set(cudnnBackendAttributeName_t name, bool value) {
    return set(name, CUDNN_TYPE_BOOLEAN, 1, &value);
  }
  Descriptor& set(cudnnBackendAttributeName_t name, cudnnDataType_t value) {
    return set(name, CUDNN_TYPE_DATA_TYPE, 1, &value);
  }
  Descriptor& set(cudnnBackendAttributeName_t name, const Descriptor& value) {
    const cudnnBackendDescriptor_t handle = value.get();
    return set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &handle);
  }
  Descriptor& set(cudnnBackendAttributeName_t name, std::span<const int64_t> values) {
    return set(name, CUDNN_TYPE_INT64, static_cast<int64_t>(values.size()), values.data());
  }
  Descriptor& set(cudnnBackendAttributeName_t name, std::span<void* const> values) {
    return set(name, CUDNN_TYPE_VOID_PTR, static_cast<int64_t>(values.size()), values.data());
  }
  Descriptor& set(cudnnBackendAttributeName_t name, cudnnHandle_t library) {
    return set(name, CUDNN_TYPE_HANDLE, 1, &library);
  }

  void finalize();
  cudnnStatus_t try_finalize();

  int64_t get_int64(cudnnBackendAttributeName_t name) const;
  // Returns the number of values of an attribute, and reads as many of them as `values` can hold.
  int64_t get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t most,
              void* values) const;

 private:
  struct Destroy {
    void operator()(void* handle) const { cudnnBackendDestroyDescriptor(handle); }
  };
  std::unique_ptr<std::remove_pointer_t<cudnnBackendDescriptor_t>, Destroy> handle_;
};

}  // namespace megatron::kernels::cuda::cudnn
