#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "base/divide.h"
#include "kernels/cases/inputs.h"

namespace megatron::kernels {
namespace {

struct Sizes {
  int64_t batch = 1, queries = 1, keys = 1, heads = 1, kv_heads = 1, width = 8;
  int64_t other_value_width = 0;  // 0: that of keys

  int64_t value_width() const { return other_value_width == 0 ? width : other_value_width; }
};

struct Heads {
  Sizes sizes;
  bool causal = true;
  bool positions = false;  // shuffled; some queries see no key
  float dropout = 0;
  bool packed = false;  // q, k, v are part of one tensor, the output of a qkv product
  bool real = false, large = false;
  // Lengths of the documents that confine attention, repeated cyclically; each sample starts one
  // token later. With `positions`, window_start and window_end are shuffled too.
  std::vector<int64_t> documents = {};
  bool ends = false;  // without a causal mask, documents have a window_end, too
  int64_t first_head = 0, window = 0, chunk = 0;  // first_head: for dropout
  double soft_cap = 0;
  bool sinks = false;
  bool wide = false;   // gradients in f32
  bool added = false;  // accumulated
  // Keys per page; a sample's pages are in arbitrary order, and the queries are the last tokens.
  int64_t page = 0;
  bool latent = false;  // values are the first elements of keys in pages
  int64_t radius = -1;  // of the bias by distance; -1: none
  DType type = DType::f32;

  bool bounded() const { return window > 0 || chunk > 0; }
  bool scored() const { return soft_cap > 0 || sinks || radius >= 0; }
  std::string str() const {
    const auto& [batch, queries, keys, heads, kv_heads, width, other] = sizes;
    std::string text = fmt::format("b={} t={} s={} n={}/{} d={} {}{}{}{}{}{}{}", batch, queries,
                                   keys, heads, kv_heads, width, describe(type, {}),
                                   causal               ? " causal"
                                   : ends || window > 0 ? " two-sided"
                                                        : " full",
                                   positions ? " positions" : "", dropout > 0 ? " dropout" : "",
                                   packed ? " packed" : "", documents.empty() ? "" : " documents",
                                   first_head > 0 ? fmt::format(" from head {}", first_head) : "");
    if (other > 0) text += fmt::format(" values of {}", other);
    if (window > 0) text += fmt::format(" window={}", window);
    if (chunk > 0) text += fmt::format(" chunk={}", chunk);
    if (soft_cap > 0) text += fmt::format(" cap={}", soft_cap);
    if (sinks) text += " sinks";
    if (wide) text += " wide";
    if (added) text += " added";
    if (radius >= 0) text += fmt::format(" bias to {}", radius);
    if (page > 0) text += fmt::format(" pages of {}", page);
    if (latent) text += " latents";
    return text;
  }
  // First and last position of each query's document.
  struct Bounds {
    std::vector<double> begins, ends;
  };
  Bounds bounds() const {
    Bounds bounds;
    for (int64_t b = 0; b < sizes.batch; ++b) {
      int64_t begin = 0, end = documents[0] + b;
      size_t next = 1;
      for (int64_t i = 0; i < sizes.queries; ++i) {
        if (i == end) {
          begin = end;
          end += documents[next++ % documents.size()];
        }
        bounds.begins.push_back(static_cast<double>(begin));
        bounds.ends.push_back(static_cast<double>(end - 1));
      }
    }
    return bounds;
  }
};

// Puts pages in arbitrary order; the last sample also reads the first page of the first one. Sample
// b has b fewer keys.
void put_in_pages(Inputs& inputs, const Heads& h, AttentionArgs& args) {
  const auto& [batch, queries, keys, heads, kv_heads, width, other] = h.sizes;
  const int64_t blocks = ceil_div(keys, h.page), pages = batch * blocks + 1;
  args.k = inputs.normal("k", {pages, h.page, kv_heads, width}, h.type);
  args.v = h.latent ? args.k.slice(3, 0, h.sizes.value_width())
                    : inputs.normal("v", {pages, h.page, kv_heads, h.sizes.value_width()}, h.type);
  std::vector<double> table, positions;
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t i = 0; i < blocks; ++i)
      table.push_back(static_cast<double>((b * blocks + i) * 7 % pages));
    for (int64_t i = 0; i < queries; ++i)
      positions.push_back(static_cast<double>(keys - b - queries + i));
  }
  if (batch > 1) table[static_cast<size_t>((batch - 1) * blocks)] = table[0];
  args.block_table = inputs.values("block_table", {batch, blocks}, DType::i32, table);
  args.q_positions = inputs.values("q_positions", {batch, queries}, DType::i32, positions);
}

// [2R+1,N]: columns of a wider tensor, or if the heads share keys, stored by head.
Tensor some_bias(Inputs& inputs, const Heads& h) {
  const int64_t rows = 2 * h.radius + 1, heads = h.sizes.heads;
  const DType type = accumulator(h.type);
  if (heads == h.sizes.kv_heads)
    return inputs.normal("bias", {rows, heads + 3}, type).slice(1, 2, heads);
  return inputs.normal("bias", {heads, rows}, type).transpose(0, 1);
}

AttentionArgs attention_args(Inputs& inputs, const Heads& h) {
  const auto& [batch, queries, keys, heads, kv_heads, width, other] = h.sizes;
  AttentionArgs args{.causal = h.causal,
                     .scale = 1 / std::sqrt(static_cast<float>(width)),
                     .window = h.window,
                     .chunk = h.chunk,
                     .soft_cap = h.soft_cap};
  if (h.sinks) args.sinks = inputs.normal("sinks", {heads}, accumulator(h.type));
  if (h.radius >= 0) args.bias = some_bias(inputs, h);
  if (h.packed) {
    const Tensor qkv = inputs.normal("qkv", {batch, queries, heads + 2 * kv_heads, width}, h.type);
    args.q = qkv.slice(2, 0, heads);
    args.k = qkv.slice(2, heads, kv_heads);
    args.v = qkv.slice(2, heads + kv_heads, kv_heads);
  } else {
    args.q = inputs.normal("q", {batch, queries, heads, width}, h.type);
    if (h.page > 0) {
      put_in_pages(inputs, h, args);
    } else {
      args.k = inputs.normal("k", {batch, keys, kv_heads, width}, h.type);
      args.v = inputs.normal("v", {batch, keys, kv_heads, h.sizes.value_width()}, h.type);
    }
  }
  const int64_t all = queries + keys;
  const Shape tokens = {batch, queries};
  if (h.positions) {
    args.q_positions = inputs.integers("q_positions", tokens, DType::i32, 0, all);
    args.k_positions =
        inputs.integers("k_positions", {batch, keys}, DType::i32, queries / 4 + 1, all);
  }
  if (!h.documents.empty()) {
    const auto bound = [&](const char* name, const std::vector<double>& values) {
      return h.positions ? inputs.integers(name, tokens, DType::i32, 0, all)
                         : inputs.values(name, tokens, DType::i32, values);
    };
    const Heads::Bounds bounds = h.bounds();
    args.window_start = bound("window_start", bounds.begins);
    if (h.ends) args.window_end = bound("window_end", bounds.ends);
  }
  if (h.dropout > 0) {
    args.dropout = {h.dropout, 1234, 77,
                    inputs.integers("sample_ids", {batch}, DType::i64, 0, int64_t{1} << 40)};
    args.dropout.first_head = h.first_head;
  }
  args.out = inputs.output("out", {batch, queries, heads, h.sizes.value_width()}, h.type,
                           h.packed ? kPadded : Layout{});
  args.lse = inputs.output("lse", {batch, heads, queries}, accumulator(h.type));
  return args;
}

// The forward's results come from the reference.
AttentionBackwardArgs attention_backward_args(Inputs& inputs, const Heads& h) {
  Inputs forward_inputs(inputs.runtime());
  const AttentionArgs f = attention_args(forward_inputs, h);
  table(inputs.forward_of(h.real)).attention(f, inputs.runtime().stream());
  AttentionBackwardArgs args{.q = f.q, .k = f.k, .v = f.v, .out = f.out, .lse = f.lse};
  args.dout = inputs.normal("dout", f.out.shape(), h.type);
  args.q_positions = f.q_positions;
  args.k_positions = f.k_positions;
  args.window_start = f.window_start;
  args.window_end = f.window_end;
  args.causal = f.causal;
  args.scale = f.scale;
  args.dropout = f.dropout;
  args.window = f.window;
  args.chunk = f.chunk;
  args.soft_cap = f.soft_cap;
  const DType wide = accumulator(h.type), type = h.wide ? wide : h.type;
  const float beta = h.added ? 1 : 0;
  args.dq = inputs.sum("dq", f.q.shape(), type, beta, h.packed ? kPadded : Layout{}).out;
  args.dk = inputs.sum("dk", f.k.shape(), type, beta).out;
  args.dv = inputs.sum("dv", f.v.shape(), type, beta).out;
  args.beta_q = args.beta_kv = beta;
  if (h.radius >= 0) {
    args.bias = f.bias;
    args.dbias = inputs.sum("dbias", f.bias.shape(), wide, beta);
  }
  if (h.sinks) {
    args.sinks = f.sinks;
    args.dsinks = inputs.sum("dsinks", f.sinks.shape(), wide, beta);
  }
  return args;
}

// On tensor cores, weights and gradients of scores are rounded to bf16 or f16 before their
// products. Each has a relative error of at most u, u = 2^-8 or 2^-11, and a mean square error of u
// / sqrt(3) or less: a sum of such terms errs by 0.6 u of its rms, the worst of 1e5 sums by 2.7 u.
// With 4 u for a result's own rounding at 4 rms that is below the 8 u of `tolerance`.

// Scores of size 4 from D products, their exp, then sums over S keys of which the result keeps 1 /
// sqrt(S). In documents and at shuffled positions many queries see few keys: more elements stand
// far above the rms than `tolerance` allows for, as do those of the first queries where later ones
// share their weight with sinks.
Case forward(const Heads& h) {
  const bool few = !h.documents.empty() || h.positions || h.bounded() || h.scored();
  const double bound = tolerance(h.type, 8 + std::sqrt(h.sizes.width) + std::sqrt(h.sizes.keys));
  return case_of(&Table::attention, h, bound * (h.sinks ? 4 : few ? 2 : 1), attention_args);
}

// As forward, with sums over keys and queries. Under a causal mask the first key gets p = 1, 1/2,
// ... of the queries: its gradient stands 1.4 sqrt(S) above the rms, where `tolerance` allows for
// 4. Shuffled positions make such keys at any S.
Case backward(const Heads& h) {
  const auto& [batch, queries, keys, heads, kv_heads, width, other] = h.sizes;
  const double roundings = 8 + std::sqrt(width) + std::sqrt(keys) + std::sqrt(queries),
               above = std::max(h.positions ? 4.0 : 2.0, 0.35 * std::sqrt(keys));
  return case_of(&Table::attention_backward, h, tolerance(h.type, roundings) * above,
                 attention_backward_args);
}

// Sizes are {batch, queries, keys, heads, kv_heads, width, width of values if it differs}.
std::vector<Heads> plain_shapes() {
  return {
      {},
      {.sizes = {2, 2, 2, 2, 2, 1}},
      {.sizes = {2, 33, 33, 4, 2, 24}},
      {.sizes = {1, 7, 19, 3, 1, 33}, .causal = false},
      {.sizes = {1, 19, 7, 2, 2, 16}},
      {.sizes = {2, 70, 45, 2, 1, 16}, .positions = true},
      {.sizes = {0, 5, 5, 2, 1, 8}},
      {.sizes = {1, 0, 5, 2, 2, 8}},
      {.sizes = {1, 5, 0, 2, 2, 8}, .causal = false},
      {.sizes = {2, 21, 21, 4, 2, 16}, .dropout = 0.25f},
      {.sizes = {2, 21, 21, 4, 2, 16}, .dropout = 0.25f, .first_head = 4},
      {.sizes = {1, 18, 27, 2, 2, 8}, .positions = true, .dropout = 0.5f},
      {.sizes = {2, 150, 150, 4, 2, 64}, .packed = true},
      {.sizes = {1, 140, 140, 2, 1, 128},
       .dropout = 0.1f,
       .packed = true,
       .documents = {50, 3, 70}},
      {.sizes = {1, 75, 100, 2, 2, 80}, .positions = true, .dropout = 0.1f, .first_head = 2},
      {.sizes = {2, 70, 70, 4, 2, 24, 40}},
      {.sizes = {1, 150, 150, 2, 2, 192, 128}, .dropout = 0.1f, .documents = {50, 3, 70}},
  };
}

// Borders of documents inside and at the ends of the cpu's tiles (32, 64 and 128), documents of one
// token, several blocks long, and longer than the sequence. Then windows and chunks shorter and
// longer than blocks of keys, aligned to their borders or not.
std::vector<Heads> bounded_shapes() {
  return {
      {.sizes = {2, 33, 33, 4, 2, 24}, .documents = {1, 5, 1, 1, 13}},
      {.sizes = {2, 450, 450, 2, 1, 16}, .packed = true, .documents = {64, 128, 1, 32, 200}},
      {.sizes = {2, 300, 300, 2, 2, 8}, .documents = {260, 1, 1000}},
      {.sizes = {2, 160, 290, 3, 1, 8}, .causal = false, .documents = {70, 31}},
      {.sizes = {2, 150, 150, 2, 2, 16}, .dropout = 0.25f, .documents = {9, 40, 65}},
      {.sizes = {2, 70, 145, 2, 1, 16}, .positions = true, .documents = {1}},
      {.sizes = {2, 33, 33, 4, 2, 24}, .window = 2},
      {.sizes = {1, 450, 450, 2, 1, 16}, .packed = true, .window = 65},
      {.sizes = {1, 200, 200, 2, 2, 64}, .dropout = 0.1f, .packed = true, .chunk = 96},
      {.sizes = {1, 160, 160, 2, 1, 160}, .documents = {70, 31, 9}, .window = 40, .chunk = 64},
      {.sizes = {2, 70, 145, 2, 1, 16}, .positions = true, .window = 50},
  };
}

// The same without a causal mask, in documents and windows with two sides; with more and fewer keys
// than queries.
std::vector<Heads> two_sided_shapes() {
  return {
      {.sizes = {2, 33, 33, 4, 2, 24},
       .causal = false,
       .documents = {1, 5, 1, 1, 13},
       .ends = true},
      {.sizes = {2, 450, 450, 2, 1, 16},
       .causal = false,
       .packed = true,
       .documents = {64, 128, 1, 32, 200},
       .ends = true},
      {.sizes = {2, 160, 290, 3, 1, 8}, .causal = false, .documents = {70, 31}, .ends = true},
      {.sizes = {2, 70, 145, 2, 1, 16},
       .causal = false,
       .positions = true,
       .documents = {1},
       .ends = true},
      {.sizes = {2, 33, 33, 4, 2, 24}, .causal = false, .window = 2},
      {.sizes = {1, 450, 450, 2, 1, 16}, .causal = false, .packed = true, .window = 65},
      {.sizes = {2, 90, 300, 2, 2, 8}, .causal = false, .window = 30},
      {.sizes = {2, 300, 90, 2, 2, 8}, .causal = false, .window = 30},
      {.sizes = {2, 70, 145, 2, 1, 16}, .causal = false, .positions = true, .window = 50},
      {.sizes = {1, 200, 200, 2, 1, 64},
       .causal = false,
       .dropout = 0.1f,
       .packed = true,
       .documents = {70, 31, 9},
       .ends = true,
       .window = 20},
      {.sizes = {2, 150, 150, 4, 2, 160},
       .causal = false,
       .documents = {9, 40, 65},
       .ends = true,
       .window = 40},
  };
}

// Soft caps, sinks and gradients in f32 or added to, each alone and all at once.
std::vector<Heads> scored_shapes(DType type) {
  std::vector<Heads> list = {
      {.sizes = {1, 75, 75, 2, 1, 64}, .packed = true, .soft_cap = 1.5},
      {.sizes = {2, 75, 75, 2, 1, 64}, .packed = true, .sinks = true},
      {.sizes = {1, 75, 75, 2, 1, 64}, .packed = true, .added = true},
      {.sizes = {1, 75, 75, 2, 1, 64}, .packed = true, .wide = true},
      {.sizes = {1, 75, 75, 2, 1, 33}, .packed = true, .wide = true, .added = true},
  };
  for (const int64_t width : {16, 120, 200}) {
    if (type == DType::f16 && width > 16) continue;  // bf16 shows the other tiles
    list.push_back({.sizes = {2, 90, 110, 2, 1, width},
                    .positions = width == 16,
                    .dropout = 0.1f,
                    .window = 60,
                    .soft_cap = 2,
                    .sinks = true,
                    .wide = true,
                    .added = true});
  }
  list.push_back({.sizes = {2, 90, 110, 2, 1, 64},
                  .causal = false,
                  .documents = {30, 7},
                  .ends = true,
                  .window = 20,
                  .soft_cap = 2,
                  .sinks = true,
                  .wide = true,
                  .added = true});
  return list;
}

// A bias that depends on distances shorter than tiles, as long as several of them, and longer than
// the sequence; alone, with each kind of bound, and with everything else.
std::vector<Heads> biased_shapes() {
  return {
      {.sizes = {1, 1, 1, 1, 1, 8}, .sinks = true, .radius = 0},
      {.sizes = {0, 5, 5, 2, 1, 8}, .radius = 2},
      {.sizes = {1, 0, 5, 2, 2, 8}, .radius = 2},
      {.sizes = {1, 5, 0, 2, 2, 8}, .causal = false, .radius = 2},
      {.sizes = {2, 33, 33, 4, 2, 24}, .radius = 7},
      {.sizes = {1, 450, 450, 2, 1, 16}, .causal = false, .packed = true, .radius = 128},
      {.sizes = {2, 150, 150, 4, 4, 64}, .causal = false, .packed = true, .radius = 200},
      {.sizes = {1, 70, 290, 3, 1, 80}, .causal = false, .radius = 20},
      {.sizes = {1, 290, 70, 2, 2, 160}, .causal = false, .radius = 9},
      {.sizes = {2, 70, 145, 4, 2, 16}, .positions = true, .radius = 30},
      {.sizes = {1, 150, 150, 2, 2, 64}, .documents = {9, 40, 65}, .radius = 1},
      {.sizes = {2, 90, 110, 2, 1, 64},
       .causal = false,
       .dropout = 0.1f,
       .documents = {30, 7},
       .ends = true,
       .window = 20,
       .soft_cap = 2,
       .sinks = true,
       .wide = true,
       .added = true,
       .radius = 12},
      {.sizes = {2, 90, 110, 4, 1, 120, 40},
       .positions = true,
       .dropout = 0.1f,
       .window = 60,
       .soft_cap = 2,
       .wide = true,
       .added = true,
       .radius = 40},
  };
}

// GPT-2 124M and a Llama of 160M parameters with 4 query groups, 4 x 1024 tokens; longer sequences,
// and documents in one; an encoder's documents and windows (ModernBERT), and another's bias (T5).
std::vector<Heads> real_shapes() {
  return {
      {.sizes = {4, 1024, 1024, 12, 12, 64}},
      {.sizes = {4, 1024, 1024, 12, 12, 64}, .dropout = 0.1f},
      {.sizes = {4, 1024, 1024, 12, 4, 64}},
      {.sizes = {1, 4096, 4096, 12, 12, 64}},
      {.sizes = {1, 4096, 4096, 12, 12, 64}, .documents = {700, 300, 1500, 20, 900}},
      {.sizes = {1, 8192, 8192, 12, 4, 64}},
      {.sizes = {1, 8192, 8192, 12, 4, 64}, .window = 128},
      {.sizes = {1, 8192, 8192, 4, 2, 128}},
      {.sizes = {1, 8192, 8192, 4, 2, 128}, .window = 128},
      {.sizes = {1, 4096, 4096, 8, 8, 192, 128}},
      {.sizes = {1, 4096, 4096, 12, 12, 64},
       .causal = false,
       .documents = {700, 300, 1500, 20, 900},
       .ends = true},
      {.sizes = {1, 8192, 8192, 12, 12, 64}, .causal = false, .window = 65},
      {.sizes = {4, 512, 512, 12, 12, 64}, .causal = false, .radius = 128},
  };
}

std::vector<Heads> attention_shapes() {
  std::vector<Heads> list;
  for (const DType type : kFloats) {
    const auto add = [&](Heads h) {
      h.type = type;
      list.push_back(std::move(h));
    };
    for (const Heads& h : plain_shapes()) add(h);
    if (type == DType::bf16 || type == DType::f16)  // types that cuDNN also supports
      for (const Sizes& sizes : {Sizes{1, 128, 128, 2, 1, 64}, {1, 128, 128, 2, 2, 192, 128}})
        add({.sizes = sizes, .packed = sizes.other_value_width == 0});
    for (const Heads& h : bounded_shapes()) add(h);
    for (const Heads& h : two_sided_shapes()) add(h);
    for (const Heads& h : scored_shapes(type)) add(h);
    for (const Heads& h : biased_shapes()) add(h);
    for (Heads h : real_shapes()) {
      h.packed = h.sizes.other_value_width == 0;
      h.real = true;
      if (trained(type)) add(h);
    }
    if (type == DType::bf16)
      add({.sizes = {1, 4096, 4096, 32, 8, 128}, .packed = true, .real = true, .large = true});
  }
  return list;
}

// One new token, a few and many, with pages smaller and larger than tiles; windows that skip pages.
std::vector<Heads> paged_shapes() {
  return {
      {.sizes = {3, 1, 77, 4, 2, 24}, .page = 32},
      {.sizes = {2, 2, 200, 4, 1, 64}, .page = 64},
      {.sizes = {2, 90, 300, 4, 2, 32}, .page = 32},
      {.sizes = {1, 150, 150, 2, 2, 40}, .page = 96},
      {.sizes = {2, 3, 260, 2, 1, 16}, .window = 70, .soft_cap = 2, .page = 32},
      {.sizes = {2, 70, 270, 2, 1, 16}, .chunk = 100, .sinks = true, .page = 128},
      {.sizes = {2, 0, 40, 2, 1, 16}, .page = 32},
      {.sizes = {2, 3, 100, 4, 1, 40, 24}, .page = 32},
      {.sizes = {2, 1, 200, 4, 2, 24}, .page = 32, .radius = 128},
      {.sizes = {2, 70, 270, 2, 1, 16}, .window = 90, .page = 128, .radius = 50},
  };
}

// Latents of multi-latent attention in absorbed form, of DeepSeek's sizes and others: with few rows
// and many, with rows that are not whole chunks of 16 bytes, and with more keys than one range
// (kLatentRange), also with a window that hides parts of ranges.
std::vector<Heads> latent_shapes() {
  return {
      {.sizes = {2, 1, 77, 16, 1, 576, 512}, .page = 32, .latent = true},
      {.sizes = {1, 3, 100, 40, 1, 576, 512}, .page = 64, .latent = true},
      {.sizes = {1, 2, 1090, 3, 1, 290, 260}, .page = 96, .latent = true},
      {.sizes = {2, 0, 40, 3, 1, 290, 260}, .page = 32, .latent = true},
      {.sizes = {1, 20, 1100, 2, 1, 264, 200},
       .window = 70,
       .soft_cap = 2,
       .sinks = true,
       .page = 32,
       .latent = true},
  };
}

}  // namespace

void add_attention_cases(std::vector<Case>& cases) {
  for (const Heads& h : attention_shapes())
    if (h.scored() || !(h.wide || h.added)) cases.push_back(forward(h));
  for (const Heads& h : in_types(paged_shapes())) cases.push_back(forward(h));
  for (const Heads& h : in_types(latent_shapes())) cases.push_back(forward(h));
  cases.push_back(forward({.sizes = {8, 1, 8192, 128, 1, 576, 512},  // DeepSeek-V3 decoding
                           .real = true,
                           .page = 64,
                           .latent = true,
                           .type = DType::bf16}));
  for (const Heads& h : attention_shapes()) cases.push_back(backward(h));
}

}  // namespace megatron::kernels
