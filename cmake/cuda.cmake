# The CUDA wing, libmegatron_cuda.so: src/*/cuda and src/comm/nccl with NVIDIA's libraries, which the program opens when it
# runs (src/device/wing.h). MEGATRON_CUDA: auto (where a GPU is present), ON or OFF. The same sources compile for the CPU
# against tests/cuda_shim, which has CUDA's names: that wing lies in cuda_shim/ of the build, beside the test programs that open it.
set(MEGATRON_CUDA "auto" CACHE STRING "auto (where this machine has an NVIDIA GPU), ON or OFF")
set(MEGATRON_CUDA_ARCHITECTURES "90a" CACHE STRING "compute capabilities, such as 80;89;90a")

set(cuda_choices auto ON OFF)
if(NOT MEGATRON_CUDA IN_LIST cuda_choices)
  message(FATAL_ERROR "MEGATRON_CUDA is '${MEGATRON_CUDA}'; it can be auto, ON or OFF")
endif()
set(MEGATRON_CUDA_FOUND OFF)
if(MEGATRON_CUDA STREQUAL ON OR (MEGATRON_CUDA STREQUAL auto AND EXISTS /dev/nvidiactl))
  find_program(MEGATRON_NVCC nvcc HINTS /usr/local/cuda/bin)
  if(MEGATRON_NVCC)
    set(CMAKE_CUDA_COMPILER ${MEGATRON_NVCC})
    set(CMAKE_CUDA_ARCHITECTURES OFF)                      # each is named below
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
  endif()
  get_filename_component(cuda_home "${CUDAToolkit_BIN_DIR}" DIRECTORY)
  foreach(library cublasLt cudnn nccl)
    find_library(MEGATRON_${library} ${library} HINTS ${cuda_home}/lib64 ${cuda_home}/lib ${CUDAToolkit_LIBRARY_DIR})
    if(NOT MEGATRON_${library})
      list(APPEND cuda_missing ${library})
    endif()
  endforeach()
  if(CUDAToolkit_FOUND AND NOT cuda_missing)
    set(MEGATRON_CUDA_FOUND ON)
    message(STATUS "CUDA: ${CUDAToolkit_VERSION} for ${MEGATRON_CUDA_ARCHITECTURES}")
  elseif(MEGATRON_CUDA STREQUAL ON)
    message(FATAL_ERROR "MEGATRON_CUDA is ON, but nvcc 12.4 or later, or one of these is missing: ${cuda_missing} "
      "(cuBLASLt comes with the toolkit; cuDNN 9 and NCCL 2 are packages of their own)")
  else()
    message(STATUS "CUDA: a GPU, but no toolkit with ${cuda_missing}; the program runs on CPU")
  endif()
else()
  message(STATUS "CUDA: not built (-DMEGATRON_CUDA=ON builds it)")
endif()

# What a shared object and a program must have in common: the headers that both compile.
function(megatron_cuda_interface out)
  file(GLOB headers CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/base/*.h ${CMAKE_SOURCE_DIR}/src/device/*.h
    ${CMAKE_SOURCE_DIR}/src/tensor/*.h ${CMAKE_SOURCE_DIR}/src/kernels/*.h ${CMAKE_SOURCE_DIR}/src/comm/*.h)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${headers})
  set(all "${CMAKE_CXX_COMPILER_VERSION}")
  foreach(header ${headers})
    file(SHA256 ${header} hash)
    string(APPEND all ${hash})
  endforeach()
  string(SHA256 all "${all}")
  string(SUBSTRING ${all} 0 16 all)
  set(${out} ${all} PARENT_SCOPE)
endfunction()
megatron_cuda_interface(MEGATRON_CUDA_INTERFACE)
# Tells a source file; source properties hold in the folder that sets them.
function(megatron_cuda_tell file)
  set_property(SOURCE ${CMAKE_SOURCE_DIR}/src/${file} APPEND PROPERTY COMPILE_DEFINITIONS
    MEGATRON_CUDA_INTERFACE="${MEGATRON_CUDA_INTERFACE}")
endfunction()

# What the wing is linked with, and of which major version: "cuBLASLt 13,cuDNN 9,NCCL 2". A library's name has its major
# version: libcudnn.so is a link to libcudnn.so.9, or what that leads to.
function(megatron_cuda_libraries out)
  set(all "")
  foreach(pair cublasLt:cuBLASLt cudnn:cuDNN nccl:NCCL)
    string(REPLACE ":" ";" pair ${pair})
    list(GET pair 0 library)
    list(GET pair 1 name)
    file(REAL_PATH ${MEGATRON_${library}} path)
    if(NOT path MATCHES "[.]so[.]([0-9]+)")
      message(FATAL_ERROR "${MEGATRON_${library}} does not tell its major version by its name")
    endif()
    list(APPEND all "${name} ${CMAKE_MATCH_1}")
  endforeach()
  string(REPLACE ";" "," all "${all}")
  set(${out} "${all}" PARENT_SCOPE)
endfunction()

# megatron_cuda_sources(OUT [WITHOUT folder...]): the wing's sources.
function(megatron_cuda_sources out)
  cmake_parse_arguments(WING "" "" "WITHOUT" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/device/cuda/*.cpp ${CMAKE_SOURCE_DIR}/src/kernels/cuda/*.cpp
    ${CMAKE_SOURCE_DIR}/src/kernels/cuda/*.cu ${CMAKE_SOURCE_DIR}/src/comm/nccl/*.cpp
    ${CMAKE_SOURCE_DIR}/src/comm/nccl/*.cu)
  foreach(folder ${WING_WITHOUT})
    list(FILTER sources EXCLUDE REGEX "/src/${folder}/")
  endforeach()
  set(${out} ${sources} PARENT_SCOPE)
endfunction()

# The rooms that a wing is linked with, each with copies of its own of what it calls; it exports its entries only.
function(megatron_cuda_link target)
  target_link_libraries(${target} PRIVATE kernels)
  target_link_options(${target} PRIVATE -Wl,--exclude-libs,ALL -Wl,--no-undefined)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-unknown-pragmas>)  # #pragma unroll
  set_target_properties(${target} PROPERTIES OUTPUT_NAME megatron_cuda CXX_VISIBILITY_PRESET hidden
    CUDA_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
endfunction()

function(megatron_cuda_wing)
  if(NOT MEGATRON_CUDA_FOUND)
    return()
  endif()
  megatron_cuda_sources(sources WITHOUT kernels/cuda/without_cudnn)
  megatron_cuda_tell(device/cuda/wing.cpp)
  add_library(megatron_cuda MODULE ${sources})
  megatron_cuda_link(megatron_cuda)
  megatron_cuda_libraries(libraries)
  string(REPLACE ";" "," code "${MEGATRON_CUDA_ARCHITECTURES}")
  target_compile_definitions(megatron_cuda PRIVATE MEGATRON_CUDA_LIBRARIES="${libraries}")
  set_property(SOURCE ${CMAKE_SOURCE_DIR}/src/device/cuda/wing.cpp APPEND PROPERTY COMPILE_DEFINITIONS MEGATRON_CUDA_CODE="${code}")
  foreach(architecture ${MEGATRON_CUDA_ARCHITECTURES})
    target_compile_options(megatron_cuda PRIVATE
      "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-gencode=arch=compute_${architecture},code=sm_${architecture}>")
  endforeach()
  # What the kernels' machine code takes is printed; tools/check_cuda reads it.
  target_compile_options(megatron_cuda PRIVATE
    "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Werror all-warnings --expt-relaxed-constexpr -lineinfo -Xptxas -v>")
  target_link_libraries(megatron_cuda PRIVATE CUDA::cudart_static ${MEGATRON_cublasLt} ${MEGATRON_cudnn} ${MEGATRON_nccl})
  set_target_properties(megatron_cuda PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR} CUDA_RUNTIME_LIBRARY Static)
endfunction()

# CUDA's runtime for the CPU, as the library cuda_shim with its headers.
function(megatron_cuda_shim_library)
  file(GLOB shim CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/cuda_shim/*.cpp)
  add_library(cuda_shim STATIC ${shim})
  target_include_directories(cuda_shim BEFORE PUBLIC ${CMAKE_SOURCE_DIR}/tests/cuda_shim/include)
  target_compile_options(cuda_shim PUBLIC -Wno-unknown-pragmas)                            # #pragma unroll
  target_link_libraries(cuda_shim PUBLIC base fmt::fmt Threads::Threads ${CMAKE_DL_LIBS})
  set_target_properties(cuda_shim PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden)
endfunction()

# The wing on the CPU: the same sources against tests/cuda_shim, in `folder`.
function(megatron_cuda_shim folder)
  megatron_cuda_sources(sources WITHOUT kernels/cuda/cudnn)
  set(kernels ${sources})
  list(FILTER kernels INCLUDE REGEX "[.]cu$")
  set_property(SOURCE ${kernels} PROPERTY LANGUAGE CXX)
  set_property(SOURCE ${kernels} APPEND PROPERTY COMPILE_OPTIONS -x c++)
  megatron_cuda_tell(device/cuda/wing.cpp)
  add_library(megatron_cuda_shim MODULE ${sources} $<TARGET_OBJECTS:cuda_shim>)
  target_include_directories(megatron_cuda_shim BEFORE PRIVATE ${CMAKE_SOURCE_DIR}/tests/cuda_shim/include)
  megatron_cuda_link(megatron_cuda_shim)
  # It has none of NVIDIA's libraries, and its kernels run anywhere.
  target_compile_definitions(megatron_cuda_shim PRIVATE MEGATRON_CUDA_LIBRARIES="" MEGATRON_CUDA_CODE="")
  set_target_properties(megatron_cuda_shim PROPERTIES PREFIX lib LIBRARY_OUTPUT_DIRECTORY ${folder})
endfunction()
