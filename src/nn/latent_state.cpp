#include "nn/latent_state.h"

#include "base/error.h"

namespace megatron::nn {
namespace {

class LatentPass {
 public:
  LatentPass(Tape& tape, const Tensor& pages, const ops::LatentHead& head, double scale,
             const LatentTokens& tokens, const ColumnLinear& kv_up)
      : tape_(tape),
        pages_(pages),
        head_(head),
        scale_(scale),
        kv_up_(kv_up),
        latent_(tokens.latent.size(1)),
        heads_(tokens.q.size(1) / head.key()),
        q_(tokens.q.view({1, tokens.q.size(0), heads_, head.key()})) {}

  void store(const LatentTokens& tokens, const Tensor& rows, const ops::Rotary& rotary) const {
    const int64_t count = tokens.latent.size(0);
    const Tensor made = tape_.empty({count, 1, latent_ + head_.rotated}, tokens.latent.dtype(),
                                    "latent_state.rows");
    copy(tokens.latent.view({count, 1, latent_}), made.slice(2, 0, latent_));
    const Tensor key = tokens.rotary_key.view({count, 1, head_.rotated}),
                 to = made.slice(2, latent_, head_.rotated);
    if (rotary.cos.defined()) {
      tape_.kernels().rope({.x = key,
                            .out = to,
                            .cos = rotary.cos,
                            .sin = rotary.sin,
                            .positions = rotary.positions,
                            .interleaved = rotary.interleaved},
                           tape_.stream());
    } else {
      copy(key, to);
    }
    tape_.kernels().put_rows({.x = made, .rows = rows, .out = pages_}, tape_.stream());
  }

  // [T, N V]. Keys and values of one sequence at a time are in memory.
  Tensor plain(const Continuation::Group& group) const {
    const Tensor out = empty({1, q_.size(1), heads_, head_.value}, "attention.out");
    for (const Continuation::Call& call : calls_of_one(group)) {
      const Tensor seen = gathered(call.block_table);
      const int64_t tokens = seen.size(0), page = pages_.size(1);
      const Tensor latents = empty({tokens, latent_}, "latent_state.latents"),
                   keys = empty({tokens, head_.rotated}, "latent_state.rotary_keys");
      copy(seen.slice(1, 0, latent_), latents);
      copy(seen.slice(1, latent_, head_.rotated), keys);
      const Tensor kv = kv_up_(tape_, Var(latents)).value;
      const auto paged = [&](const Tensor& x) {  // [tokens,N,D] as pages
        const std::array<int64_t, 4> strides = {page * x.stride(0), x.stride(0), x.stride(1), 1};
        return x.as_strided({tokens / page, page, heads_, x.size(2)}, strides);
      };
      attend(call, q_, paged(ops::latent_keys(kv, keys, head_, {}, tape_)),
             paged(ops::latent_values(kv, head_)), call.own_pages, out);
    }
    return out.view({q_.size(1), heads_ * head_.value});
  }

  Tensor absorbed(const Continuation::Group& group) const {
    const int64_t tokens = q_.size(1);
    const Tensor q = empty({1, tokens, heads_, latent_ + head_.rotated}, "latent_state.queries");
    of_heads(q_.slice(3, 0, head_.plain), matrix(0, head_.plain), false, q.slice(3, 0, latent_));
    copy(q_.slice(3, head_.plain, head_.rotated), q.slice(3, latent_, head_.rotated));
    const Tensor sums = empty({1, tokens, heads_, latent_}, "latent_state.sums");
    for (const Continuation::Call& call : group.calls)
      attend(call, q, pages_, pages_.slice(3, 0, latent_), call.block_table, sums);
    const Tensor out = empty({1, tokens, heads_, head_.value}, "attention.out");
    of_heads(sums, matrix(head_.plain, head_.value), true, out);
    return out.view({tokens, heads_ * head_.value});
  }

 private:
  Tensor empty(Shape shape, std::string_view label) const {
    return tape_.empty(shape, q_.dtype(), label);
  }
  void copy(const Tensor& x, const Tensor& out) const {
    tape_.kernels().copy({.x = x, .out = out}, tape_.stream());
  }

  // The same calls, for each sequence by itself.
  static std::vector<Continuation::Call> calls_of_one(const Continuation::Group& group) {
    std::vector<Continuation::Call> calls;
    for (const Continuation::Call& call : group.calls)
      for (int64_t b = 0; b < call.q_positions.size(0); ++b)
        calls.push_back({.first = call.first + b * call.q_positions.size(1),
                         .q_positions = call.q_positions.slice(0, b, 1),
                         .block_table = call.block_table.slice(0, b, 1),
                         .own_pages = call.own_pages.slice(0, 0, 1)});
    return calls;
  }

  // The rows of all pages of a table: [B * blocks * P, L+R].
  Tensor gathered(const Tensor& table) const {
    const int64_t page = pages_.size(1), width = pages_.size(3), count = table.elements();
    const Tensor all = pages_.transpose(1, 2).view({pages_.size(0), page * width}),
                 out = empty({count, page * width}, "latent_state.seen");
    tape_.kernels().take_rows({.x = all, .index = table.view({count}), .out = out}, tape_.stream());
    return out.view({count * page, width});
  }

  // Rows [begin, begin + count) of each head's part of kv_up: [N,count,L].
  Tensor matrix(int64_t begin, int64_t count) const {
    return kv_up_.weight()
        .value()
        .view({heads_, head_.plain + head_.value, latent_})
        .slice(1, begin, count);
  }
  // out[t,n] = x[t,n] times the matrix of head n, or its transpose.
  void of_heads(const Tensor& x, const Tensor& matrices, bool transpose, const Tensor& out) const {
    const auto by_head = [](const Tensor& t) { return t.select(0, 0).transpose(0, 1); };
    tape_.kernels().gemm(
        {.a = by_head(x), .b = matrices, .out = by_head(out), .transpose_b = transpose},
        tape_.stream());
  }

  void attend(const Continuation::Call& call, const Tensor& q, const Tensor& k, const Tensor& v,
              const Tensor& table, const Tensor& out) const {
    const Tensor queries = by_sequence(q, call);
    tape_.kernels().attention(
        {.q = queries,
         .k = k,
         .v = v,
         .q_positions = call.q_positions,
         .k_positions = {},
         .block_table = table,
         .window_start = {},
         .scale = scale_,
         .sinks = {},
         .dropout = {},
         .out = by_sequence(out, call),
         .lse = tape_.empty({queries.size(0), queries.size(2), queries.size(1)},
                            kernels::accumulator(q.dtype()), "attention.lse")},
        tape_.stream());
  }

  Tape& tape_;
  const Tensor& pages_;
  const ops::LatentHead& head_;
  double scale_;
  const ColumnLinear& kv_up_;
  int64_t latent_, heads_;
  Tensor q_;  // [1,T,N,P+R]
};

}  // namespace

Tensor attend_to_latents(Tape& tape, const SequenceState& state, int64_t layer,
                         const ops::LatentHead& head, const ops::Rotary& rotary, double scale,
                         const LatentTokens& tokens, const ColumnLinear& kv_up,
                         const Continuation& at) {
  MG_ASSERT(!tape.recording() && at.state == &state);
  const Continuation::Group& group = state.group(at, layer);
  const LatentPass pass(tape, state.latents(layer), head, scale, tokens, kv_up);
  pass.store(tokens, group.rows, rotary);
  ops::rotate_latent_queries(tokens.q, head, rotary, tape);
  return state.shape().absorbed && !kv_up.adapted() ? pass.absorbed(group) : pass.plain(group);
}

}  // namespace megatron::nn
