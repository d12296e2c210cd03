# The compute capabilities for which the CUDA plugin is built: 80, 89, 90a, 100f. NUMBER+ptx is machine code for NUMBER,
# and code that the driver compiles for every later GPU when the program starts there.

# megatron_cuda_architectures(ARCHITECTURE...): refuses invalid architectures.
function(megatron_cuda_architectures)
  foreach(one ${ARGN})
    set(given "MEGATRON_CUDA_ARCHITECTURES has '${one}'")
    if(NOT one MATCHES "^([1-9][0-9]+)([af]?)([+]ptx)?$")
      message(FATAL_ERROR "${given}; it lists compute capabilities without a dot, such as 80;89;90a, and 90+ptx for later GPUs, too")
    endif()
    if(CMAKE_MATCH_2 AND CMAKE_MATCH_3)
      message(FATAL_ERROR "${given}; code for ${CMAKE_MATCH_1}${CMAKE_MATCH_2} runs on no later GPU: write ${CMAKE_MATCH_1}+ptx")
    endif()
    if(CMAKE_MATCH_1 LESS 80)
      message(FATAL_ERROR "${given}; the kernels need compute capability 8.0 or later (tensor cores that multiply bf16, copies to \
shared memory that run meanwhile): Ampere (80, 86), Ada (89), Hopper (90a), Blackwell (100a, 120a). On an older GPU use --device cpu")
    endif()
  endforeach()
endfunction()

# megatron_cuda_code(OUT ARCHITECTURE): nvcc's options for one architecture.
function(megatron_cuda_code out architecture)
  string(REPLACE "+ptx" "" machine ${architecture})
  set(options "-gencode=arch=compute_${machine},code=sm_${machine}")
  if(NOT machine STREQUAL architecture)
    string(APPEND options " -gencode=arch=compute_${machine},code=compute_${machine}")
  endif()
  set(${out} "${options}" PARENT_SCOPE)
endfunction()
