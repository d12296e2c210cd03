// Floating-point operations of a step as Megatron-LM counts them: 2 per multiply-add, backward
// twice the forward. Norms, rotations, routers, softmax, lookups, optimizer and recompute are not
// counted.
//
// h hidden, n heads, g key groups, d head size, V padded vocabulary, f feed-forward, k matrices (3
// with SwiGLU, otherwise 2). FLOPs =
// token * T + pair * Q, where T is the number of real tokens of the batch and Q the sum of the
// squared lengths of its sequences:
//
//   MLP                  token  6 h f k
//   experts              token  6 h f_e topk k (latent size l: 6 (f_e topk k l + 2 l h)),
//                               shared 6 h f_s k
//   attention            token  6 (h (n d + 2 g d + gate n d) + n d h), pair 6 n d
//   output               token  6 h V
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

FlopTerms megatron_flops(const MegatronShape& shape, Attention attention);

}  // namespace megatron::plan
