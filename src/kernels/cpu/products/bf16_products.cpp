#include "kernels/cpu/products/bf16_products.h"

#include "kernels/instruction_set.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernels/cpu/products/amx.h"
#endif

namespace megatron::kernels::cpu {

namespace {

#if defined(__x86_64__) && defined(__linux__)
// Checks by CPUID for bf16 tiles (leaf 7) of the size used here (leaf 1DH, palette 1). Some virtual
// machines report the first without the second; they are treated as having neither.
bool has_tiles() {
  unsigned a, b, c, d;
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & kBf16) == 0 || (d & kTile) == 0)
    return false;
  // Operands are packed with these, which every processor with AMX has.
  if (!__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512vl") ||
      !__builtin_cpu_supports("avx512vbmi"))
    return false;
  if (!__get_cpuid_count(0x1d, 0, &a, &b, &c, &d) || a < 1) return false;
  if (!__get_cpuid_count(0x1d, 1, &a, &b, &c, &d)) return false;
  const unsigned row_bytes = b & 0xffff, tiles = b >> 16, rows = c & 0xffff;
  return tiles >= 8 && row_bytes >= amx::kRowWords * 4 && rows >= amx::kRows;
}

// Linux saves tiles only for processes that requested them (Documentation/arch/x86/xstate.rst).
bool kernel_permits_tiles() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

bool has_pairs() { return __builtin_cpu_supports("avx512bf16"); }
#else
bool has_tiles() { return false; }
bool kernel_permits_tiles() { return false; }
bool has_pairs() { return false; }
#endif

Bf16Products find_products() {
  if (!has_pairs()) return Bf16Products::widened;
  return has_tiles() && kernel_permits_tiles() ? Bf16Products::amx : Bf16Products::pairs;
}

}  // namespace

Bf16Products bf16_products() {
  static const Bf16Products products = find_products();
  switch (instruction_set_limit()) {
    case InstructionSet::newest: return products;
    case InstructionSet::amx: return Bf16Products::amx;
    case InstructionSet::avx512_bf16: return Bf16Products::pairs;
    default: return Bf16Products::widened;
  }
}

std::string_view remark_on_bf16_products() {
  switch (bf16_products()) {
    case Bf16Products::amx: return "bf16 GEMMs run on AMX tiles";
    case Bf16Products::pairs:
      return has_tiles()
                 ? "this CPU has AMX, but the operating system does not let this process use it: "
                   "bf16 GEMMs run on AVX512_BF16, more slowly"
                 : "";
    case Bf16Products::widened:
      return instruction_set_limit() == InstructionSet::avx2
                 ? "without AVX512_BF16 (--instruction-set avx2), bf16 GEMMs are computed in fp32, "
                   "no faster than fp32"
                 : "this CPU has no AVX512_BF16: bf16 GEMMs are computed in fp32, no "
                   "faster than fp32";
  }
  return "";
}

}  // namespace megatron::kernels::cpu
