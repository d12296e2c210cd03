// Minimum work of a kernel call, which gives the floor of its time.
#pragma once

#include <algorithm>

#include "kernels/table.h"

namespace megatron::kernels {

struct Cost {
  double flops = 0;  // in matrix products: 2MNK each; causal attention counts visible pairs only
  double bytes = 0;  // each tensor once: read, written, or both
};

inline double product_flops(const GemmArgs& a) {
  const double depth = static_cast<double>(a.a.size(a.transpose_a ? -2 : -1));
  return 2 * static_cast<double>(a.out.elements()) * depth;
}

// Number of unmasked query-key pairs, if positions count up from 0 and queries are the last of the
// keys: a causal mask leaves T (S - T) + T (T + 1) / 2 of T S pairs; window and chunk (0: none)
// reduce these further, a window also without a causal mask. Documents inside a sample
// (window_start, window_end) are not considered.
inline double seen_pairs(int64_t queries, int64_t keys, bool causal, int64_t window = 0,
                         int64_t chunk = 0) {
  const auto t = static_cast<double>(queries), s = static_cast<double>(keys);
  const bool bounded = window > 0 || chunk > 0;
  if (queries > keys || (!causal && !bounded)) return t * s;
  if (!bounded) return t * (s - t) + t * (t + 1) / 2;
  double pairs = 0;
  for (int64_t p = keys - queries; p < keys; ++p)
    pairs += static_cast<double>(std::min(keys - 1, highest_seen(p, causal, window)) + 1 -
                                 std::max<int64_t>(0, lowest_seen(p, window, chunk)));
  return pairs;
}
// Products over the size of keys and over that of values: forward 1 (scores) and 1 (values),
// backward 3 (scores again, dQ, dK) and 2 (dP, dV).
template <class Args>
double attention_flops(const Args& a, int of_keys, int of_values) {
  const auto heads = static_cast<double>(a.q.size(0) * a.q.size(2));
  const auto width = static_cast<double>(of_keys * a.q.size(3) + of_values * a.v.size(3));
  return 2 * heads * width * seen_pairs(a.q.size(1), a.keys(), a.causal, a.window, a.chunk);
}

// Sizes of a scan of states, from which FLOPs follow: products over all heads and groups for each
// pair of tokens of a chunk (except for rows in its first half with columns in its second), and for
// each token with the state.
struct ScanFlops {
  template <class Args>
  explicit ScanFlops(const Args& a)
      : sequences(static_cast<double>(a.x.size(0))),
        inner(static_cast<double>(a.x.size(2) * a.x.size(3))),
        group(static_cast<double>(a.b.size(2) * a.b.size(3))),
        states(static_cast<double>(a.b.size(3))),
        tokens(a.x.size(1)) {}
  static double pairs(double t) {
    constexpr double kHalf = static_cast<double>(kScanChunk) / 2;
    return t <= kHalf ? t * t : t * t - kHalf * t + kHalf * kHalf;
  }
  // Calls f(tokens, is there a chunk before, is there one after) for each chunk. initial: there is
  // a state before the first one.
  template <class F>
  void for_chunks(bool initial, F f) const {
    for (int64_t t = 0; t < tokens; t += kScanChunk)
      f(static_cast<double>(std::min(kScanChunk, tokens - t)), initial || t > 0,
        t + kScanChunk < tokens);
  }
  double sequences, inner, group, states;
  int64_t tokens;
};

template <class Args>
double flops_of(const Args&) {
  return 0;
}
// G and M x; the state's part of outputs, and the state after the chunk.
inline double flops_of(const StateScanArgs& a) {
  const ScanFlops s(a);
  double sum = 0;
  s.for_chunks(a.initial.defined(), [&](double t, bool before, bool after) {
    sum += (s.group + s.inner) * ScanFlops::pairs(t) +
           s.inner * s.states * t * ((before ? 1 : 0) + (after ? 1 : 0));
  });
  return 2 * s.sequences * sum;
}
// G, its gradients of b and c, dM and M^T dy; dC and dS before a chunk; dx, dB and the state after
// it.
inline double flops_of(const StateScanBackwardArgs& a) {
  const ScanFlops s(a);
  double sum = 0;
  s.for_chunks(a.initial.defined(), [&](double t, bool before, bool after) {
    sum += (s.group + 2 * s.inner) * ScanFlops::pairs(t) + 2 * s.group * t * t +
           s.inner * s.states * t * ((before ? 2 : 0) + (after ? 3 : 0));
  });
  // dx and dB by the gradient of the final state.
  if (a.dfinal.defined() && s.tokens > 0)
    sum += 2 * s.inner * s.states * static_cast<double>((s.tokens - 1) % kScanChunk + 1);
  return 2 * s.sequences * sum;
}
// On average over the places in a chunk at which a piece begins.
inline double flops_of(const StateScanContinuedArgs& a) {
  const ScanFlops s(a);
  constexpr double kSeen = 0.75 * static_cast<double>(kScanChunk);
  return 2 * s.sequences * static_cast<double>(s.tokens) *
         ((s.group + s.inner) * kSeen + 2 * s.inner * s.states);
}
inline double flops_of(const StateCarryArgs& a) {
  return 2 * static_cast<double>(a.x.elements()) * static_cast<double>(a.b.size(3));
}
inline double flops_of(const GemmArgs& a) { return product_flops(a); }
inline double flops_of(const CodedGemmArgs& a) {
  return 2 * static_cast<double>(a.out.elements()) * static_cast<double>(a.a.depth());
}
inline double flops_of(const GroupedGemmArgs& a) {
  return 2 * static_cast<double>(a.out.elements()) * static_cast<double>(a.a.size(1));
}
inline double flops_of(const GroupedGradientArgs& a) {
  return 2 * static_cast<double>(a.dy.elements()) * static_cast<double>(a.x.size(1));
}
inline double flops_of(const AttentionArgs& a) { return attention_flops(a, 1, 1); }
inline double flops_of(const AttentionBackwardArgs& a) { return attention_flops(a, 3, 2); }

// Number of bytes of one operand that a call must move.
template <class Args>
double bytes_of(const Args&, std::string_view, Access access, const Tensor& tensor) {
  return static_cast<double>(tensor.bytes()) * (access == Access::update ? 2 : 1);
}
// Counts only the pages that the table lists, not the whole pool, and values that are a part of the
// keys only once.
inline double bytes_of(const AttentionArgs& a, std::string_view name, Access,
                       const Tensor& tensor) {
  if (name == "v" && a.v.same_storage(a.k) && a.v.offset() == a.k.offset()) return 0;
  const auto bytes = static_cast<double>(tensor.bytes());
  if (!a.block_table.defined() || (name != "k" && name != "v")) return bytes;
  return bytes / static_cast<double>(a.k.size(0)) * static_cast<double>(a.block_table.elements());
}
// Counts the slots of as many texts, which are read.
inline double bytes_of(const StateScanContinuedArgs& a, std::string_view, Access access,
                       const Tensor& tensor) {
  const auto bytes = static_cast<double>(tensor.bytes());
  if (access != Access::update) return bytes;
  return bytes / static_cast<double>(tensor.size(0)) * static_cast<double>(a.x.size(0));
}
// Counts only the rows that are written.
inline double bytes_of(const PutRowsArgs& a, std::string_view name, Access, const Tensor& tensor) {
  return static_cast<double>(name == "out" ? a.x.bytes() : tensor.bytes());
}
// Counts only one tail before each piece and one after it.
inline double bytes_of(const CausalConvContinuedArgs& a, std::string_view name, Access,
                       const Tensor& tensor) {
  if (name != "tails") return static_cast<double>(tensor.bytes());
  const int64_t tail = tensor.size(1) * tensor.size(2) * size_of(tensor.dtype());
  return static_cast<double>(2 * a.x.size(0) * tail);
}
// Counts only the rows that are looked up; of a part that keeps other rows, as many as it has.
inline double bytes_of(const EmbeddingArgs& a, std::string_view name, Access,
                       const Tensor& tensor) {
  if (name == "ids") return static_cast<double>(tensor.bytes());
  return static_cast<double>(a.keeps ? std::min(a.table.bytes(), a.out.bytes()) : a.out.bytes());
}
inline double bytes_of(const EmbeddingBackwardArgs& a, std::string_view name, Access access,
                       const Tensor& tensor) {
  if (name != "dtable" || access == Access::write) return static_cast<double>(tensor.bytes());
  return 2 * static_cast<double>(a.dout.elements() * size_of(tensor.dtype()));
}

// Distinguishes calls of one kernel that do different work on operands of the same shapes.
template <class Args>
int form_of(const Args&) {
  return 0;
}
inline constexpr int kDoubleSums = 16;  // bit for double_sums in a gemm's form
inline int form_of(const GemmArgs& a) {
  return (a.transpose_a ? 1 : 0) + (a.transpose_b ? 2 : 0) + 4 * static_cast<int>(a.epilogue) +
         (a.double_sums ? kDoubleSums : 0);
}
inline int form_of(const CodedGemmArgs& a) { return a.a.layout == ScaleLayout::tensor ? 0 : 1; }
inline int form_of(const EmbeddingArgs& a) { return a.keeps ? 1 : 0; }
inline int form_of(const GroupedGemmArgs& a) { return a.transpose_b ? 2 : 0; }  // as for gemm
inline int form_of(const ActivationArgs& a) { return static_cast<int>(a.function); }
inline int form_of(const ActivationBackwardArgs& a) { return static_cast<int>(a.function); }
template <class Args>
int attention_form(const Args& a) {
  constexpr int64_t kPrime = 1'000'003, kMax = int64_t{1} << 28;
  const int64_t bounds = (a.window * kPrime + a.chunk) % kMax;
  return static_cast<int>((a.causal ? 1 : 0) + (a.soft_cap > 0 ? 2 : 0) + 4 * bounds);
}
constexpr bool is_causal_form(int attention_form) { return attention_form % 2 != 0; }
inline int form_of(const AttentionArgs& a) { return attention_form(a); }
inline int form_of(const AttentionBackwardArgs& a) { return attention_form(a); }

template <class Args>
Cost cost_of(const Args& args) {
  Cost cost{.flops = flops_of(args)};
  Args copy = args;
  visit(copy, [&](std::string_view name, Access access, const Tensor& tensor) {
    if (tensor.defined()) cost.bytes += bytes_of(args, name, access, tensor);
  });
  return cost;
}

}  // namespace megatron::kernels
