# Libraries of the distribution; nothing is downloaded. A missing one is named with its Debian package.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(simdjson REQUIRED)
find_package(ICU REQUIRED COMPONENTS uc)
find_package(ZLIB REQUIRED)
find_package(yaml-cpp REQUIRED)
pkg_check_modules(pcre2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(sentencepiece REQUIRED IMPORTED_TARGET sentencepiece)
pkg_check_modules(zstd REQUIRED IMPORTED_TARGET libzstd)
pkg_check_modules(hwy REQUIRED IMPORTED_TARGET libhwy)

# Debian's dnnl config asks for OpenCL's development files, so the library is found by name.
find_library(DNNL_LIBRARY dnnl REQUIRED)
find_path(DNNL_INCLUDE dnnl.hpp REQUIRED)
add_library(dnnl_cpu INTERFACE)
# Debian's dnnl runs on GCC's OpenMP; every thread that calls it sets its own OpenMP thread count to one.
target_link_libraries(dnnl_cpu INTERFACE ${DNNL_LIBRARY} gomp)
target_include_directories(dnnl_cpu SYSTEM INTERFACE ${DNNL_INCLUDE})
