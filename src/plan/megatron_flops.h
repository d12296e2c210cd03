// Floating-point operations of a step as Megatron-LM counts them: 2 per multiply-add, backward
// twice the forward. Norms, rotations, routers, softmax, lookups, optimizer and recompute are not
// counted.
//
// h hidden, n heads, g key groups, d head size, V padded vocabulary, f feed-forward, k matrices (3
// with SwiGLU, otherwise 2), m multi-token predictions, which are layers like the last one. FLOPs =
// token * T + pair * Q, where T is the number of real tokens of the batch and Q the sum of the
// squared lengths of its sequences:
//
//   MLP                  token  6 h f k
//   experts              token  6 h f_e topk k (latent size l: 6 (f_e topk k l + 2 l h)),
//                               shared 6 h f_s k
//   attention            token  6 (h (n d + 2 g d + gate n d) + n d h), pair 6 n d
//   multi-latent         token  6 (weights, and each latent once), pair 3 n (d_qk + d_rope + d_v)
//   gated delta net      token  6 (h in + conv (2 q + v) + 4 n_v d_v^2 + h v),
//                               in = 2 q + 2 v + 2 n_v (second: 4 q + 3 v)
//   prediction           token  6 (3 h + 2 h^2) each
//   output               token  6 h V (m + 1)
//   hybrid layers        attention 6 (2 n d h + 2 g d h - that is 3 x 2 x weights), Mamba-2 of
//                        width w = 2 h: 3 (2 h (2 w + 2 groups state + heads) + 7 w state + 2 w h);
//                        no count of the predictions' projection
#pragma once

#include <string>

#include "plan/megatron_shape.h"

namespace megatron::plan {

// Tokens of a batch: the number of real ones, and the sum of its squared sequence lengths.
struct Tokens {
  using Wide = unsigned __int128;
  int64_t count = 0;
  Wide squares = 0;
  static Tokens alike(int64_t sequences, int64_t length) {
    return {sequences * length, static_cast<Wide>(sequences * length) * static_cast<Wide>(length)};
  }
};

struct FlopTerms {
  int64_t token = 0, pair = 0;
  double total(const Tokens& tokens) const;
};

// Keys counted for a query: those up to its own (on average half), or all.
enum class Attention { causal, full };

// Throws Error naming a value that a formula needs and that was not given, or a letter of the
// pattern for which there is no formula.
FlopTerms megatron_flops(const MegatronShape& shape, Attention attention);

}  // namespace megatron::plan
