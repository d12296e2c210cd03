# CUDA's toolkit and the headers of cuDNN and NCCL for the plugin (cuda.cmake): the language CUDA, MEGATRON_NVCC,
# CUDAToolkit_*, MEGATRON_CUDNN_HEADERS, MEGATRON_NCCL_HEADERS. cuda_missing says what is missing and what to do.
set(MEGATRON_CUDA_VERSION "" CACHE STRING "the CUDA to build for: 12, 13, or such as 12.8; empty: that of nvcc or /usr/local/cuda")
set(cuda_missing "")
if(NOT MEGATRON_CUDA_VERSION MATCHES "^(|1[0-9]+([.][0-9]+)?)$")
  message(FATAL_ERROR "MEGATRON_CUDA_VERSION is '${MEGATRON_CUDA_VERSION}'; it can be 12, 13, or such as 12.8")
endif()

include(cuda_nvcc)
if(MEGATRON_NVCC)
  cuda_version_of(${MEGATRON_NVCC} version)
  if(MEGATRON_CUDA_VERSION AND NOT version MATCHES "^${MEGATRON_CUDA_VERSION}([.]|$)")
    message(FATAL_ERROR "MEGATRON_CUDA_VERSION is ${MEGATRON_CUDA_VERSION}, and this build folder has ${MEGATRON_NVCC} of CUDA "
      "${version}; choose another build folder, or remove its CMakeCache.txt and CMakeFiles")
  endif()
else()
  cuda_find_nvcc()
endif()
if(MEGATRON_NVCC)
  set(CMAKE_CUDA_COMPILER ${MEGATRON_NVCC})
  set(CMAKE_CUDA_ARCHITECTURES OFF)                      # each is named in cuda.cmake
  set(CMAKE_CUDA_STANDARD 20)
  if(MEGATRON_CCACHE)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${MEGATRON_CCACHE})
  endif()
  enable_language(CUDA)
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)           # CMake 3.25 does not know nvcc's C++20
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  endif()
  find_package(CUDAToolkit 12.4 QUIET)
  find_path(MEGATRON_CUDNN_HEADERS cudnn_version.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  find_path(MEGATRON_NCCL_HEADERS nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  find_path(MEGATRON_CUBLASLT_HEADERS cublasLt.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
endif()

if(NOT MEGATRON_NVCC AND MEGATRON_CUDA_VERSION)
  set(cuda_missing "there is no nvcc of CUDA ${MEGATRON_CUDA_VERSION}, as MEGATRON_CUDA_VERSION asks for (${cuda_others}): \
install that toolkit, or name its folder by -DCUDAToolkit_ROOT=")
elseif(NOT MEGATRON_NVCC)
  set(cuda_missing "there is no nvcc: install CUDA's toolkit 12.4 or later, or name its folder by -DCUDAToolkit_ROOT=")
elseif(NOT CUDAToolkit_FOUND)
  set(cuda_missing "${MEGATRON_NVCC} is of a toolkit that is older than 12.4, or lacks parts: install a later one, or name \
its folder by -DCUDAToolkit_ROOT=")
elseif(NOT MEGATRON_CUBLASLT_HEADERS)
  set(cuda_missing "cublasLt.h is missing, which comes with CUDA's toolkit (libcublas-dev)")
elseif(NOT MEGATRON_CUDNN_HEADERS)
  set(cuda_missing "cudnn.h is missing: install cuDNN 9 with its headers (cudnn9-cuda-${CUDAToolkit_VERSION_MAJOR}, or pip's \
nvidia-cudnn-cu${CUDAToolkit_VERSION_MAJOR}), or name their folder by -DMEGATRON_CUDNN_HEADERS=")
elseif(NOT MEGATRON_NCCL_HEADERS)
  set(cuda_missing "nccl.h is missing: install NCCL 2.18 or later with its header (libnccl-dev, or pip's \
nvidia-nccl-cu${CUDAToolkit_VERSION_MAJOR}), or name its folder by -DMEGATRON_NCCL_HEADERS=")
endif()
