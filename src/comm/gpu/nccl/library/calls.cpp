// NCCL's functions under the names of its header: each calls the library that
// device/cuda/libraries.h opens.
#include <nccl.h>

#include "device/cuda/libraries.h"

namespace {

template <class Function>
Function* find(const char* name) {
  return megatron::cuda::function_of<Function>(megatron::cuda::NvidiaLibrary::nccl, name);
}

}  // namespace

const char* ncclGetErrorString(ncclResult_t result) {
  static const auto call = find<decltype(ncclGetErrorString)>("ncclGetErrorString");
  return call(result);
}

const char* ncclGetLastError(ncclComm_t comm) {
  static const auto call = find<decltype(ncclGetLastError)>("ncclGetLastError");
  return call(comm);
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static const auto call = find<decltype(ncclGetUniqueId)>("ncclGetUniqueId");
  return call(id);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  static const auto call = find<decltype(ncclCommInitRankConfig)>("ncclCommInitRankConfig");
  return call(comm, ranks, id, rank, config);
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  static const auto call = find<decltype(ncclCommFinalize)>("ncclCommFinalize");
  return call(comm);
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  static const auto call = find<decltype(ncclCommDestroy)>("ncclCommDestroy");
  return call(comm);
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  static const auto call = find<decltype(ncclCommAbort)>("ncclCommAbort");
  return call(comm);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  static const auto call = find<decltype(ncclCommGetAsyncError)>("ncclCommGetAsyncError");
  return call(comm, error);
}

ncclResult_t ncclGroupStart() {
  static const auto call = find<decltype(ncclGroupStart)>("ncclGroupStart");
  return call();
}

ncclResult_t ncclGroupEnd() {
  static const auto call = find<decltype(ncclGroupEnd)>("ncclGroupEnd");
  return call();
}

ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  static const auto call = find<decltype(ncclAllReduce)>("ncclAllReduce");
  return call(in, out, count, type, op, comm, stream);
}

ncclResult_t ncclReduceScatter(const void* in, void* out, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  static const auto call = find<decltype(ncclReduceScatter)>("ncclReduceScatter");
  return call(in, out, count, type, op, comm, stream);
}

ncclResult_t ncclAllGather(const void* in, void* out, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  static const auto call = find<decltype(ncclAllGather)>("ncclAllGather");
  return call(in, out, count, type, comm, stream);
}

ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  static const auto call = find<decltype(ncclBroadcast)>("ncclBroadcast");
  return call(in, out, count, type, root, comm, stream);
}

ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t type, int to, ncclComm_t comm,
                      cudaStream_t stream) {
  static const auto call = find<decltype(ncclSend)>("ncclSend");
  return call(data, count, type, to, comm, stream);
}

ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t type, int from, ncclComm_t comm,
                      cudaStream_t stream) {
  static const auto call = find<decltype(ncclRecv)>("ncclRecv");
  return call(data, count, type, from, comm, stream);
}
