# The CUDA plugin, libmegatron_cuda.so: src/*/cuda and src/comm/gpu/nccl. The program opens it at run time
# (src/device/cuda_plugin.h), and it opens NVIDIA's libraries (src/device/cuda/libraries.h). MEGATRON_CUDA: auto (if
# there is a GPU), ON or OFF. The same sources compile for the CPU against tests/cuda_shim, which has CUDA's names: that
# plugin is in cuda_shim/ of the build, beside the test programs that open it.
set(MEGATRON_CUDA "auto" CACHE STRING "auto (where this machine has an NVIDIA GPU), ON or OFF")
set(MEGATRON_CUDA_ARCHITECTURES "90a" CACHE STRING "compute capabilities, such as 80;89;90a; 90+ptx: and of later GPUs")

set(cuda_choices auto ON OFF)
if(NOT MEGATRON_CUDA IN_LIST cuda_choices)
  message(FATAL_ERROR "MEGATRON_CUDA is '${MEGATRON_CUDA}'; it can be auto, ON or OFF")
endif()
include(cuda_architectures)
if(MEGATRON_CUDA)
  megatron_cuda_architectures(${MEGATRON_CUDA_ARCHITECTURES})
endif()
set(MEGATRON_CUDA_FOUND OFF)
if(MEGATRON_CUDA STREQUAL ON OR (MEGATRON_CUDA STREQUAL auto AND EXISTS /dev/nvidiactl))
  include(cuda_toolkit)
  if(NOT cuda_missing)
    set(MEGATRON_CUDA_FOUND ON)
    message(STATUS "CUDA: ${CUDAToolkit_VERSION} (${MEGATRON_NVCC}) for ${MEGATRON_CUDA_ARCHITECTURES}")
  elseif(MEGATRON_CUDA STREQUAL ON)
    message(FATAL_ERROR "MEGATRON_CUDA is ON, but ${cuda_missing}")
  else()
    message(STATUS "CUDA: a GPU, but ${cuda_missing}; the program runs on CPU")
  endif()
else()
  message(STATUS "CUDA: not built (-DMEGATRON_CUDA=ON builds it)")
endif()

# Fingerprint that a shared object and a program must share: the headers that both compile.
function(megatron_cuda_interface out)
  file(GLOB headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/base/*.h ${PROJECT_SOURCE_DIR}/src/device/*.h
    ${PROJECT_SOURCE_DIR}/src/tensor/*.h ${PROJECT_SOURCE_DIR}/src/kernels/*.h ${PROJECT_SOURCE_DIR}/src/comm/*.h)
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
# Passes definitions to a source file; source properties only apply in the folder that sets them.
function(megatron_cuda_tell file)
  set_property(SOURCE ${PROJECT_SOURCE_DIR}/src/${file} APPEND PROPERTY COMPILE_DEFINITIONS
    MEGATRON_CUDA_INTERFACE="${MEGATRON_CUDA_INTERFACE}")
endfunction()

# Libraries that the plugin opens at run time: "libcublasLt.so.13,libcudnn.so.9,...", in the versions of the headers.
function(megatron_cuda_libraries out)
  set(cuda ${CUDAToolkit_VERSION_MAJOR})
  foreach(library CUDNN NCCL)
    set(header ${MEGATRON_NCCL_HEADERS}/nccl.h)
    if(library STREQUAL CUDNN)
      set(header ${MEGATRON_CUDNN_HEADERS}/cudnn_version.h)
    endif()
    file(STRINGS ${header} line REGEX "^#define ${library}_MAJOR +[0-9]+")
    if(NOT line MATCHES "_MAJOR +([0-9]+)")
      message(FATAL_ERROR "${header} does not say which major version of ${library} it is of")
    endif()
    set(${library} ${CMAKE_MATCH_1})
  endforeach()
  set(${out} "libcublasLt.so.${cuda},libcudnn.so.${CUDNN},libnccl.so.${NCCL},libnvrtc.so.${cuda}" PARENT_SCOPE)
endfunction()

# Compiles the kernels of a folder in units of a few files (unity.cmake), since a small kernel's cost is mostly that of
# its includes. A digit of the hash of a file's name selects the unit, so that a new file leaves other units unchanged;
# it is the fourth digit because then no two names in a unit clash.
function(megatron_cuda_units out)
  if(NOT MEGATRON_UNITY)
    set(${out} ${ARGN} PARENT_SCOPE)
    return()
  endif()
  foreach(source ${ARGN})
    get_filename_component(name ${source} NAME)
    get_filename_component(folder ${source} DIRECTORY)
    get_filename_component(folder ${folder} NAME)
    string(MD5 hash ${name})
    string(SUBSTRING ${hash} 3 1 digit)
    math(EXPR digit "0x${digit} % 8")
    list(APPEND names ${folder}_${digit})
    string(APPEND includes_${folder}_${digit} "#include \"${source}\"\n")
  endforeach()
  list(REMOVE_DUPLICATES names)
  foreach(name ${names})
    set(unit ${CMAKE_CURRENT_BINARY_DIR}/cuda_units/${name}.cu)
    file(CONFIGURE OUTPUT ${unit} CONTENT "${includes_${name}}" @ONLY)
    list(APPEND units ${unit})
  endforeach()
  set(${out} ${units} PARENT_SCOPE)
endfunction()

# megatron_cuda_sources(OUT [WITHOUT folder...]): the plugin's sources.
function(megatron_cuda_sources out)
  cmake_parse_arguments(PLUGIN "" "" "WITHOUT" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/device/cuda/*.cpp ${PROJECT_SOURCE_DIR}/src/kernels/cuda/*.cpp
    ${PROJECT_SOURCE_DIR}/src/kernels/cuda/*.cu ${PROJECT_SOURCE_DIR}/src/comm/gpu/nccl/*.cpp
    ${PROJECT_SOURCE_DIR}/src/comm/gpu/nccl/*.cu)
  foreach(folder ${PLUGIN_WITHOUT})
    list(FILTER sources EXCLUDE REGEX "/src/${folder}/")
  endforeach()
  set(kernels ${sources})
  list(FILTER sources EXCLUDE REGEX "[.]cu$")
  list(FILTER kernels INCLUDE REGEX "[.]cu$")
  megatron_cuda_units(units ${kernels})
  set(${out} ${sources} ${units} PARENT_SCOPE)
endfunction()

# The rooms linked into a plugin, which has its own copies of the functions it calls; it exports only its entries.
function(megatron_cuda_link target)
  target_link_libraries(${target} PRIVATE megatron_kernels megatron_compiler)
  target_link_options(${target} PRIVATE -Wl,--exclude-libs,ALL -Wl,--no-undefined)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-unknown-pragmas>)  # #pragma unroll
  set_target_properties(${target} PROPERTIES OUTPUT_NAME megatron_cuda CXX_VISIBILITY_PRESET hidden
    CUDA_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  set_property(SOURCE ${PROJECT_SOURCE_DIR}/src/device/cuda/build.cpp PROPERTY SKIP_UNITY_BUILD_INCLUSION ON)  # one each
  megatron_unity(${target})
endfunction()

function(megatron_cuda_plugin)
  if(NOT MEGATRON_CUDA_FOUND)
    return()
  endif()
  megatron_cuda_sources(sources WITHOUT kernels/cuda/attention/without_cudnn)
  megatron_cuda_tell(device/cuda/plugin.cpp)
  add_library(megatron_cuda MODULE ${sources})
  megatron_cuda_link(megatron_cuda)
  megatron_cuda_libraries(libraries)
  string(REPLACE ";" "," code "${MEGATRON_CUDA_ARCHITECTURES}")
  set_property(SOURCE ${PROJECT_SOURCE_DIR}/src/device/cuda/build.cpp APPEND PROPERTY COMPILE_DEFINITIONS
    MEGATRON_CUDA_LIBRARIES="${libraries}" MEGATRON_CUDA_CODE="${code}")
  foreach(architecture ${MEGATRON_CUDA_ARCHITECTURES})
    megatron_cuda_code(options ${architecture})
    target_compile_options(megatron_cuda PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:${options}>")
  endforeach()
  # Prints the resources of the kernels' machine code; tools/check_cuda reads them.
  target_compile_options(megatron_cuda PRIVATE
    "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Werror all-warnings --expt-relaxed-constexpr -lineinfo -Xptxas -v>")
  target_include_directories(megatron_cuda SYSTEM PRIVATE ${MEGATRON_CUDNN_HEADERS} ${MEGATRON_NCCL_HEADERS})
  target_link_libraries(megatron_cuda PRIVATE CUDA::cudart_static ${CMAKE_DL_LIBS})
  set_target_properties(megatron_cuda PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR} CUDA_RUNTIME_LIBRARY Static)
endfunction()

if(CMAKE_SYSTEM_PROCESSOR STREQUAL x86_64)
  set(megatron_shim_options -mfma)  # fmaf() is one instruction, as on a GPU
endif()

# CUDA's runtime for the CPU, as the library cuda_shim with its headers.
function(megatron_cuda_shim_library)
  file(GLOB shim CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/cuda_shim/*.cpp)
  add_library(cuda_shim STATIC ${shim})
  target_include_directories(cuda_shim BEFORE PUBLIC ${PROJECT_SOURCE_DIR}/tests/cuda_shim/include)
  target_compile_options(cuda_shim PUBLIC -Wno-unknown-pragmas)                            # #pragma unroll
  target_compile_options(cuda_shim PRIVATE ${megatron_shim_options})
  target_link_libraries(cuda_shim PUBLIC megatron_base megatron_compiler fmt::fmt Threads::Threads ${CMAKE_DL_LIBS})
  set_target_properties(cuda_shim PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden)
  megatron_unity(cuda_shim)
endfunction()

# The plugin on the CPU: the same sources against tests/cuda_shim, in `folder`.
function(megatron_cuda_shim folder)
  megatron_cuda_sources(sources WITHOUT kernels/cuda/attention/cudnn kernels/cuda/products/cublaslt comm/gpu/nccl/library)
  set(kernels ${sources})
  list(FILTER kernels INCLUDE REGEX "[.]cu$")
  set_property(SOURCE ${kernels} PROPERTY LANGUAGE CXX)
  set_property(SOURCE ${kernels} APPEND PROPERTY COMPILE_OPTIONS -x c++)
  megatron_cuda_tell(device/cuda/plugin.cpp)
  add_library(megatron_cuda_shim MODULE ${sources} $<TARGET_OBJECTS:cuda_shim>)
  target_include_directories(megatron_cuda_shim BEFORE PRIVATE ${PROJECT_SOURCE_DIR}/tests/cuda_shim/include)
  target_compile_options(megatron_cuda_shim PRIVATE ${megatron_shim_options})
  megatron_cuda_link(megatron_cuda_shim)
  # It has none of NVIDIA's libraries, and its kernels run anywhere.
  target_compile_definitions(megatron_cuda_shim PRIVATE MEGATRON_CUDA_LIBRARIES="" MEGATRON_CUDA_CODE="")
  set_target_properties(megatron_cuda_shim PROPERTIES PREFIX lib LIBRARY_OUTPUT_DIRECTORY ${folder})
endfunction()
