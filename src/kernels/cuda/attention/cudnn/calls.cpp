// Defines cuDNN's functions under the names of its header; each calls the library that
// device/cuda/libraries.h opens.
#include <cudnn.h>

#include "device/cuda/libraries.h"

namespace {

template <class Function>
Function* find(const char* name) {
  return megatron::cuda::function_of<Function>(megatron::cuda::NvidiaLibrary::cudnn, name);
}

}  // namespace

size_t cudnnGetVersion() {
  static const auto call = find<decltype(cudnnGetVersion)>("cudnnGetVersion");
  return call();
}

const char* cudnnGetErrorString(cudnnStatus_t status) {
  static const auto call = find<decltype(cudnnGetErrorString)>("cudnnGetErrorString");
  return call(status);
}

void cudnnGetLastErrorString(char* words, size_t size) {
  static const auto call = find<decltype(cudnnGetLastErrorString)>("cudnnGetLastErrorString");
  call(words, size);
}

cudnnStatus_t cudnnCreate(cudnnHandle_t* library) {
  static const auto call = find<decltype(cudnnCreate)>("cudnnCreate");
  return call(library);
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t library) {
  static const auto call = find<decltype(cudnnDestroy)>("cudnnDestroy");
  return call(library);
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t library, cudaStream_t stream) {
  static const auto call = find<decltype(cudnnSetStream)>("cudnnSetStream");
  return call(library, stream);
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t* descriptor) {
  static const auto call =
      find<decltype(cudnnBackendCreateDescriptor)>("cudnnBackendCreateDescriptor");
  return call(type, descriptor);
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  static const auto call =
      find<decltype(cudnnBackendDestroyDescriptor)>("cudnnBackendDestroyDescriptor");
  return call(descriptor);
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  static const auto call = find<decltype(cudnnBackendFinalize)>("cudnnBackendFinalize");
  return call(descriptor);
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       const void* values) {
  static const auto call = find<decltype(cudnnBackendSetAttribute)>("cudnnBackendSetAttribute");
  return call(descriptor, name, type, count, values);
}

cudnnStatus_t cudnnBackendGetAttribute(const cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t most,
                                       int64_t* count, void* values) {
  static const auto call = find<decltype(cudnnBackendGetAttribute)>("cudnnBackendGetAttribute");
  return call(descriptor, name, type, most, count, values);
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t library, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pointers) {
  static const auto call = find<decltype(cudnnBackendExecute)>("cudnnBackendExecute");
  return call(library, plan, pointers);
}
