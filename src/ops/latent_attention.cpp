#include "ops/latent_attention.h"

#include <array>

#include "base/error.h"

namespace megatron::ops {
namespace {

struct LatentForm {
  LatentHead head;
  bool interleaved;
};

// x [T, N*size] as [T,N,size].
Tensor by_head(const Tensor& x, int64_t size) {
  return x.view({x.size(0), x.size(1) / size, size});
}
// x [B,S,N,size] as [T,N,size].
Tensor heads_of_tokens(const Tensor& x) {
  return x.view({x.size(0) * x.size(1), x.size(2), x.size(3)});
}

void rotate(Tape& tape, const Tensor& x, const Tensor& out, const Rotary& rotary) {
  tape.kernels().rope({.x = x,
                       .out = out,
                       .cos = rotary.cos,
                       .sin = rotary.sin,
                       .positions = rotary.positions,
                       .interleaved = rotary.interleaved},
                      tape.stream());
}

// Writes the gradients of q, kv and the rotary key.
class LatentGradient {
 public:
  explicit LatentGradient(Backward& backward)
      : backward_(backward),
        form_(backward.attributes<LatentForm>()),
        dq_(heads_of_tokens(backward.gradient(0))),
        dk_(heads_of_tokens(backward.gradient(1))),
        dv_(heads_of_tokens(backward.gradient(2))) {}

  void run() {
    const auto& [plain, rotated, value] = form_.head;
    const int64_t tokens = dq_.size(0), heads = dq_.size(1);
    const Tensor q = empty({tokens, heads, plain + rotated}, "latent_heads.dq");
    copy(dq_.slice(2, 0, plain), q.slice(2, 0, plain));
    const Tensor dq = dq_.slice(2, plain, rotated), rotated_back = q.slice(2, plain, rotated);
    rotates() ? rotate_back(dq, rotated_back) : copy(dq, rotated_back);
    const Tensor kv = empty({tokens, heads, plain + value}, "latent_heads.dkv");
    copy(dk_.slice(2, 0, plain), kv.slice(2, 0, plain));
    copy(dv_, kv.slice(2, plain, value));
    // The rotation is linear, so it is undone once for the sum over the heads.
    const Tensor key = empty({tokens, rotated}, "latent_heads.dkey");
    backward_.kernels().sum_rows({.x = dk_.slice(2, plain, rotated), .index = {}, .out = key},
                                 backward_.stream());
    if (rotates()) rotate_back(by_head(key, rotated), by_head(key, rotated));
    backward_.set(0, q.view({tokens, q.size(1) * q.size(2)}));
    backward_.set(1, kv.view({tokens, kv.size(1) * kv.size(2)}));
    backward_.set(2, key);
  }

 private:
  Tensor empty(Shape shape, std::string_view label) const {
    return backward_.empty(shape, dq_.dtype(), label);
  }
  void copy(const Tensor& x, const Tensor& out) const {
    backward_.kernels().copy({.x = x, .out = out}, backward_.stream());
  }
  bool rotates() const { return backward_.saved(0).defined(); }
  void rotate_back(const Tensor& x, const Tensor& out) const {
    backward_.kernels().rope({.x = x,
                              .out = out,
                              .cos = backward_.saved(0),
                              .sin = backward_.saved(1),
                              .positions = backward_.saved(2),
                              .interleaved = form_.interleaved,
                              .inverse = true},
                             backward_.stream());
  }

  Backward& backward_;
  const LatentForm& form_;
  Tensor dq_, dk_, dv_;
};

void latent_heads_dgrad(Backward& backward) {
  for (int i = 0; i < 3; ++i) MG_ASSERT(backward.gradient(i).defined());
  LatentGradient(backward).run();
}

}  // namespace

Tensor latent_keys(const Tensor& kv, const Tensor& rotary_key, const LatentHead& head,
                   const Rotary& rotary, Tape& tape) {
  const auto& [plain, rotated, value] = head;
  const Tensor both = by_head(kv, plain + value), shared = by_head(rotary_key, rotated);
  const int64_t tokens = both.size(0), heads = both.size(1);
  const Tensor keys = tape.empty({tokens, heads, head.key()}, kv.dtype(), "latent_heads.keys");
  const auto copy = [&](const Tensor& x, const Tensor& out) {
    tape.kernels().copy({.x = x, .out = out}, tape.stream());
  };
  copy(both.slice(2, 0, plain), keys.slice(2, 0, plain));
  const Tensor of_heads = keys.slice(2, plain, rotated), first = of_heads.slice(1, 0, 1);
  rotary.cos.defined() ? rotate(tape, shared, first, rotary) : copy(shared, first);
  if (heads == 1) return keys;
  const std::array<int64_t, 3> repeated = {keys.stride(0), 0, 1};
  copy(first.as_strided({tokens, heads - 1, rotated}, repeated), of_heads.slice(1, 1, heads - 1));
  return keys;
}

void rotate_latent_queries(const Tensor& q, const LatentHead& head, const Rotary& rotary,
                           Tape& tape) {
  if (!rotary.cos.defined()) return;
  const Tensor part = by_head(q, head.key()).slice(2, head.plain, head.rotated);
  rotate(tape, part, part, rotary);
}

Tensor latent_values(const Tensor& kv, const LatentHead& head) {
  return by_head(kv, head.plain + head.value).slice(2, head.plain, head.value);
}

Heads latent_heads(Tape& tape, Var&& q, const Var& kv, const Var& rotary_key, int64_t sequences,
                   const LatentHead& head, const Rotary& rotary) {
  rotate_latent_queries(q.value, head, rotary, tape);
  const auto by_sequence = [&](const Tensor& x) {
    const int64_t length = x.size(0) / sequences;
    const std::array<int64_t, 4> strides = {length * x.stride(0), x.stride(0), x.stride(1), 1};
    return x.as_strided({sequences, length, x.size(1), x.size(2)}, strides);
  };
  Node node{.name = "latent_heads",
            .inputs = {q.id, kv.id, rotary_key.id},
            .saved = {rotary.cos, rotary.sin, rotary.positions},
            .dgrad = latent_heads_dgrad};
  node.attributes = LatentForm{head, rotary.interleaved};
  const std::vector<Var> out = tape.record(
      std::move(node), {by_sequence(by_head(q.value, head.key())),
                        by_sequence(latent_keys(kv.value, rotary_key.value, head, rotary, tape)),
                        by_sequence(latent_values(kv.value, head))});
  return {.q = out[0], .k = out[1], .v = out[2], .gate = {}};
}

}  // namespace megatron::ops
