// Tolerances: how far results that should be equal may differ. Has every tolerance of the tests,
// selftest and the documentation, each with its derivation. Results that are promised bit for bit
// (recompute, overlap, schedule, PP, VPP, ZeRO stage, threads against MPI, CPU thread count,
// restart in fp32 on CPU) have no tolerance. Loosening one requires a page in docs/decisions/.
//
// u is the unit roundoff of a format: 2^-53 = 1.1e-16 (fp64), 2^-24 = 6.0e-8 (fp32), 2^-8 = 3.9e-3
// (bf16). A sum of n terms in another order differs by about sqrt(n) u relative to the terms' norm,
// by n u at worst (Higham, Accuracy and Stability of Numerical Algorithms, 2002, chapter 4).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace megatron::tolerance {

// Per-tensor distance |g - g'| / max(|g'|, 1e-3 rms(all tensors) sqrt(n)), where
// difference_norm = |g - g'| and reference_norm = |g'| (2-norms over the tensor), rms_all is the
// root mean square of the elements of all tensors of the reference, and elements = n. The second
// term is for tensors that are zero in exact arithmetic, such as the gradient of a key's bias. 0
// when nothing differs; infinity against an all-zero reference; NaN when an input is NaN, so that
// `metric <= tolerance` fails.
inline double tensor_metric(double difference_norm, double reference_norm, double rms_all,
                            int64_t elements) {
  const double floor = 1e-3 * rms_all * std::sqrt(static_cast<double>(elements));
  if (std::isnan(difference_norm) || std::isnan(reference_norm) || std::isnan(floor)) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  const double scale = std::max(reference_norm, floor);
  if (scale > 0) return difference_norm / scale;
  return difference_norm == 0 ? 0 : std::numeric_limits<double>::infinity();
}

// Layouts against one rank, by tensor_metric.
// fp64: sums of up to 1e8 terms in another order, sqrt(1e8) u = 1.1e-12, times 100 for the
// condition of a deep model.
inline constexpr double kLayoutFp64 = 1e-10;
// fp32, DP, TP, SP, ETP, micro-batch, and on a GPU feed-forward blocks in chunks: only sums are
// split differently; sqrt(1e3) terms u = 1.9e-6, times 2.5 for the layers.
inline constexpr double kLayoutFp32 = 5e-6;

// Backward in fp64 against central differences with a step of h = 1e-5. The step leaves h^2 / 6 =
// 2e-11 of the third derivative, rounding u / h = 1e-11 of the value; times 100 for sums over tens
// of elements. One op, relative to the largest gradient of its tensor (at least 1e-3):
inline constexpr double kDifferenceOp = 3e-9;
// The same in fp32 on another device against fp64: sums over tens of terms whose factors are
// products, exponentials and reciprocals of a few u each; 64 u of the largest gradient.
inline constexpr double kDeviceGradientOp = 4e-6;
// A whole model, absolute, along a direction of length 1: values of size 5, and layers that
// multiply the third derivative.
inline constexpr double kDifferenceModel = 1e-8;

// Against Hugging Face's models in fp32.
// Logits are of size 10, sums over the hidden size of values carried through all layers, which
// leaves 160 u of their size: absolute.
inline constexpr double kGoldenLogitsAbsolute = 1e-4;
// The loss averages the errors of the logits over the tokens, so its error is smaller than the
// largest by a factor of 10 or more; relative.
inline constexpr double kGoldenLossRelative = 1e-5;
// Gradients pass through the layers twice with different exp, rsqrt and tanh (2 to 4 u) and fused
// multiply-adds in every operation: 20 times kLayoutFp32; relative, ...
inline constexpr double kGoldenGradientRelative = 1e-4;
// ... plus the rest of gradients that vanish by cancellation: 16 u of terms of size 1, and so many
// times more of larger terms (selftest/verify.cpp); absolute.
inline constexpr double kGoldenGradientAbsolute = 1e-6;

// A number computed in fp64 against the same number stored in fp32 (learning rate, weight decay):
// one rounding, u, times 2; relative.
inline constexpr double kStoredFp32 = 1.2e-7;

// A weight with an adapter merged into it in fp32 against fp64, per tensor: products of r <= 16
// terms, the sum and DoRA's length, at most 16 u; relative, 2-norms.
inline constexpr double kMergedFp32 = 1e-6;

// Training runs of a few steps against a reference run in fp32.
// Loss and gradient norm at each step, relative: same as kGoldenLossRelative; both are sums over
// many terms.
inline constexpr double kTrajectoryLossRelative = 1e-5;
inline constexpr double kTrajectoryGradientNormRelative = 1e-5;
// Distance of a parameter after any step, relative to its movement from the start to the end of the
// run. Adam divides by sqrt(v): if a gradient is near 0, its relative error of 1e-4 is not averaged
// out, so the smallest tensors are allowed 10 times that ...
inline constexpr double kTrajectoryParameterOfMovement = 1e-3;
// ... while over all parameters together the relative error of the gradients remains.
inline constexpr double kTrajectoryMovementTotal = 1e-4;
// Lion moves an element by lr times the sign of a mean c of its gradients. c has an error of about
// 1e-5 of its rms (like the gradient norm), and 0.8e-5 of normally distributed numbers are that
// near 0: this share of a tensor's elements may have the other sign in each step. One element of a
// tensor, however small, is always allowed.
inline constexpr double kSignFlips = 1e-5;
// Optimizer states are means of gradients (and of their squares, with twice the error, averaged
// over steps): same as the gradients.
inline constexpr double kTrajectoryState = 1e-4;

// bf16: no fixed distance. The error of a tensor (tensor_metric) against the fp32 oracle is at most
// this times that of one rank in bf16: the errors of two roundings are independent, so another
// order of sums adds at most sqrt(2) = 1.41 of it; the rest is scatter.
inline constexpr double kBf16ErrorFactor = 1.5;

// CUDA against the CPU. fp32: the project's promise; sums in another order, fused multiply-adds and
// other exponentials cause errors of a few hundred u in a loss after a few steps, 2e-5.
inline constexpr double kCudaLossRelative = 1e-4;
// Losses of 16-bit runs: a logit changes by u of bf16, and the mean over a batch's tokens by less.
inline constexpr double kCudaNarrowLossRelative = 3.9e-3;

}  // namespace megatron::tolerance
