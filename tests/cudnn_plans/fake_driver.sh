#!/bin/sh
# fake_driver.sh STUB FOLDER: makes FOLDER/libcuda.so.1, a driver without devices: each function that the toolkit's STUB of the
# driver names, doing nothing. cuDNN compiles its plans with it on machines without a GPU. The machine code goes nowhere.
set -eu
mkdir -p "$2"
{
  cat <<'C'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#define SUCCESS 0
#define NO_DEVICE 100
#define NOT_FOUND 500
static char module, function;
int cuInit(unsigned flags) { return NO_DEVICE; }
int cuDeviceGetCount(int* count) { *count = 0; return NO_DEVICE; }
int cuDriverGetVersion(int* version) { *version = 13000; return SUCCESS; }
int cuLibraryLoadData(void** to) { *to = &module; return SUCCESS; }
int cuModuleLoadData(void** to) { *to = &module; return SUCCESS; }
int cuModuleLoadDataEx(void** to) { *to = &module; return SUCCESS; }
int cuLibraryGetModule(void** to) { *to = &module; return SUCCESS; }
int cuLibraryGetKernel(void** to) { *to = &function; return SUCCESS; }
int cuModuleGetFunction(void** to) { *to = &function; return SUCCESS; }
int cuKernelGetFunction(void** to) { *to = &function; return SUCCESS; }
int cuFuncGetAttribute(int* value) { *value = 0; return SUCCESS; }
int cuKernelGetAttribute(int* value) { *value = 0; return SUCCESS; }
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks) { *blocks = 1; return SUCCESS; }
int cuOccupancyMaxActiveClusters(int* clusters) { *clusters = 66; return SUCCESS; }
int cuGetErrorString(int error, const char** text) { *text = "no driver"; return SUCCESS; }
int cuGetErrorName(int error, const char** text) { *text = "NO_DRIVER"; return SUCCESS; }
int cuGetProcAddress(const char* name, void** to) {
  *to = dlsym(RTLD_DEFAULT, name);
  return *to ? SUCCESS : NOT_FOUND;
}
int cuGetProcAddress_v2(const char* name, void** to, int version, unsigned long flags, int* found) {
  *to = dlsym(RTLD_DEFAULT, name);
  if (found) *found = *to ? 0 : 1;
  return SUCCESS;
}
C
} > "$2/driver.c"
nm -D --defined-only "$1" | awk '$2 == "T" { print $3 }' | sort -u | while read -r name; do
  grep -q "^int $name(" "$2/driver.c" || echo "int $name(void) { return SUCCESS; }"
done > "$2/rest.c"
cat "$2/rest.c" >> "$2/driver.c"
cc -shared -fPIC -w -o "$2/libcuda.so.1" "$2/driver.c" -ldl
