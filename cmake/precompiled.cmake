# Headers of the standard library, fmt and GoogleTest that most files include. They are compiled once instead of by each
# file, which saves a third of the compiler's work. No header of the project is among them, and every file still
# includes what it uses: MEGATRON_PRECOMPILED=OFF builds without them.
option(MEGATRON_PRECOMPILED "Precompile the headers of other libraries that most files include" ON)

set(megatron_common_headers <fmt/core.h> <algorithm> <array> <cmath> <cstdint> <cstring> <filesystem> <functional> <limits>
  <map> <memory> <mutex> <numeric> <optional> <set> <span> <string> <string_view> <thread> <utility> <vector>)

# megatron_precompile(TARGET KIND): KIND's headers are in front of every source of the target; the compiler options must be
# the same in all targets of a kind.
#   program    the rooms      plugin     the rooms that the CUDA plugin links, too, as position independent code
#   test       test programs
function(megatron_precompile target kind)
  if(NOT MEGATRON_PRECOMPILED)
    return()
  endif()
  set(owner megatron_precompiled_${kind})
  if(NOT TARGET ${owner})
    set(source ${PROJECT_BINARY_DIR}/${owner}.cpp)
    file(CONFIGURE OUTPUT ${source} CONTENT "")
    add_library(${owner} OBJECT ${source})
    target_link_libraries(${owner} PRIVATE megatron_compiler fmt::fmt)
    target_compile_features(${owner} PRIVATE cxx_std_20)
    set(headers ${megatron_common_headers})
    if(kind STREQUAL plugin)
      set_target_properties(${owner} PROPERTIES POSITION_INDEPENDENT_CODE ON)
    elseif(kind STREQUAL test)
      target_link_libraries(${owner} PRIVATE GTest::gtest)
      target_compile_options(${owner} PRIVATE ${megatron_test_options})
      list(APPEND headers <gtest/gtest.h> <chrono> <fstream> <random> <sstream>)
    endif()
    target_precompile_headers(${owner} PRIVATE ${headers})
  endif()
  target_precompile_headers(${target} REUSE_FROM ${owner})
  # GCC 12 inlines more of a precompiled std::string, and warns of copies that cannot occur.
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND NOT kind STREQUAL plugin)
    target_compile_options(${target} PRIVATE -Wno-array-bounds -Wno-stringop-overflow
      -Wno-stringop-overread)
  endif()
endfunction()
