# Compiler settings of every target of this project; a project that uses its libraries keeps its own. No -ffast-math, no
# -march=native, no fused contraction: an element has the same bits on every machine and at every index.
add_library(megatron_compiler INTERFACE)
target_include_directories(megatron_compiler INTERFACE ${PROJECT_SOURCE_DIR}/src)
# Designated initialisers leave fields at their defaults on purpose; -Wrestrict has false alarms in GCC 12 (its bug 105329).
target_compile_options(megatron_compiler INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Werror;-Wno-missing-field-initializers;-Wno-restrict;-ffp-contract=off;-fno-math-errno>"
  "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Werror,-Wno-missing-field-initializers,-ffp-contract=off,-fno-math-errno>")
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)  # collects its garbage from 512 MiB on: a tenth less time, but more memory
  target_compile_options(megatron_compiler INTERFACE $<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-heapsize=524288>)
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-O3 -DNDEBUG")
set(CMAKE_CXX_FLAGS_DEBUG "-O1 -g1")                     # vector shuffles need constants, which -O0 does not see

if(MEGATRON_SANITIZER AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  add_compile_options(-Wno-maybe-uninitialized)  # a false alarm of GCC in the code that sanitizers add
endif()
if(MEGATRON_SANITIZER STREQUAL "address")
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -O1 -g1)
  add_link_options(-fsanitize=address,undefined)
elseif(MEGATRON_SANITIZER STREQUAL "thread")
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer -O1 -g1)
  add_link_options(-fsanitize=thread)
elseif(MEGATRON_SANITIZER)
  message(FATAL_ERROR "MEGATRON_SANITIZER is '${MEGATRON_SANITIZER}'; it can be empty, address or thread")
endif()

find_program(MEGATRON_CCACHE ccache)
if(MEGATRON_CCACHE)
  # Precompiled headers are cached if the compiler checks their macros and times, and shared by build folders if their
  # paths are relative.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros
    CCACHE_BASEDIR=${PROJECT_BINARY_DIR} ${MEGATRON_CCACHE})
endif()
find_program(MEGATRON_MOLD mold)
if(MEGATRON_MOLD)
  add_link_options(-fuse-ld=mold)
endif()
