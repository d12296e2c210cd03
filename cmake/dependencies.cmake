include(libraries)

# oneDNN or its replacement: the folders onednn and without_onednn of src/kernels/cpu/products. Debian's dnnl config
# requires OpenCL's development files, so the library is found by name.
if(MEGATRON_ONEDNN)
  find_library(DNNL_LIBRARY dnnl REQUIRED)
  find_path(DNNL_INCLUDE dnnl.hpp REQUIRED)
  add_library(megatron_dnnl INTERFACE)
  # Debian's dnnl runs on GCC's OpenMP; every thread that calls it sets its own OpenMP thread count to one.
  target_link_libraries(megatron_dnnl INTERFACE ${DNNL_LIBRARY} gomp)
  target_include_directories(megatron_dnnl SYSTEM INTERFACE ${DNNL_INCLUDE})
  megatron_export(megatron_dnnl dnnl)
  set(MEGATRON_KERNELS_WITHOUT cpu/products/without_onednn)
  set(MEGATRON_KERNELS_LIBRARIES megatron_dnnl)
else()
  set(MEGATRON_KERNELS_WITHOUT cpu/products/onednn)
  set(MEGATRON_KERNELS_LIBRARIES "")
endif()
