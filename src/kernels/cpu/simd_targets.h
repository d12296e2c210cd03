// Instruction sets for which the SIMD sources are compiled; the program chooses one at run time.
// Must be included before any Highway header. x86: AVX-512 (16 floats at a time), AVX2 (8), SSE4
// (4, the minimum for the cpu back-end). Arm: NEON.
#pragma once

#if defined(__x86_64__)
#define HWY_BASELINE_TARGETS HWY_SSE4
#define HWY_DISABLED_TARGETS (HWY_SCALAR | HWY_EMU128 | HWY_SSSE3 | HWY_AVX3_DL)
#else
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#endif
