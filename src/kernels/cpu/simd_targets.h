// Instruction sets for which the SIMD sources are compiled; the program chooses one at run time.
// Must be included before any Highway header. x86: AVX-512 (16 floats at a time) and AVX2 with FMA
// (8), the minimum of the cpu back-end (kernels/instruction_set.h). Arm: NEON.
#pragma once

#if defined(__x86_64__)
#define HWY_BASELINE_TARGETS HWY_AVX2
#define HWY_DISABLED_TARGETS (HWY_SCALAR | HWY_EMU128 | HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#else
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#endif
