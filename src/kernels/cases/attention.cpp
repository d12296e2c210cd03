#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "base/divide.h"
#include "kernels/cases/inputs.h"

namespace megatron::kernels {
namespace {

struct Heads {
  int64_t batch = 1, queries = 1, keys = 1, heads = 1, kv_heads = 1, width = 8;
  DType type = DType::f32;
  bool causal = true;
  bool positions = false;  // shuffled; some queries see no key
  float dropout = 0;
  bool packed = false;  // q, k, v are part of one tensor, the output of a qkv product
  bool real = false, large = false;
  // Lengths of the documents that confine attention, repeated cyclically; each sample starts one
  // token later. With `positions`, window_start is shuffled too.
  std::vector<int64_t> documents = {};
  int64_t first_head = 0, window = 0, chunk = 0;  // first_head: for dropout
  double soft_cap = 0;
  bool sinks = false;
  bool wide = false;   // gradients in f32
  bool added = false;  // accumulated
  // Keys per page; a sample's pages are in arbitrary order, and the queries are the last tokens.
  int64_t page = 0;

  bool bounded() const { return window > 0 || chunk > 0; }
  bool scored() const { return soft_cap > 0 || sinks; }
  std::string str() const {
    std::string text =
        fmt::format("b={} t={} s={} n={}/{} d={} {}{}{}{}{}{}{}", batch, queries, keys, heads,
                    kv_heads, width, describe(type, {}), causal ? " causal" : " full",
                    positions ? " positions" : "", dropout > 0 ? " dropout" : "",
                    packed ? " packed" : "", documents.empty() ? "" : " documents",
                    first_head > 0 ? fmt::format(" from head {}", first_head) : "");
    if (window > 0) text += fmt::format(" window={}", window);
    if (chunk > 0) text += fmt::format(" chunk={}", chunk);
    if (soft_cap > 0) text += fmt::format(" cap={}", soft_cap);
    if (sinks) text += " sinks";
    if (wide) text += " wide";
    if (added) text += " added";
    if (page > 0) text += fmt::format(" pages of {}", page);
    return text;
  }
  std::vector<double> begins() const {
    std::vector<double> begins;
    for (int64_t b = 0; b < batch; ++b) {
      int64_t begin = 0, end = documents[0] + b;
      size_t next = 1;
      for (int64_t i = 0; i < queries; ++i) {
        if (i == end) {
          begin = end;
          end += documents[next++ % documents.size()];
        }
        begins.push_back(static_cast<double>(begin));
      }
    }
    return begins;
  }
};

// Puts pages in arbitrary order; the last sample also reads the first page of the first one. Sample
// b has b fewer keys.
void put_in_pages(Inputs& inputs, const Heads& h, AttentionArgs& args) {
  const int64_t blocks = ceil_div(h.keys, h.page), pages = h.batch * blocks + 1;
  const Shape shape = {pages, h.page, h.kv_heads, h.width};
  args.k = inputs.normal("k", shape, h.type);
  args.v = inputs.normal("v", shape, h.type);
  std::vector<double> table, positions;
  for (int64_t b = 0; b < h.batch; ++b) {
    for (int64_t i = 0; i < blocks; ++i)
      table.push_back(static_cast<double>((b * blocks + i) * 7 % pages));
    for (int64_t i = 0; i < h.queries; ++i)
      positions.push_back(static_cast<double>(h.keys - b - h.queries + i));
  }
  if (h.batch > 1) table[static_cast<size_t>((h.batch - 1) * blocks)] = table[0];
  args.block_table = inputs.values("block_table", {h.batch, blocks}, DType::i32, table);
  args.q_positions = inputs.values("q_positions", {h.batch, h.queries}, DType::i32, positions);
}

AttentionArgs forward_args(Inputs& inputs, const Heads& h) {
  AttentionArgs args{.causal = h.causal,
                     .scale = 1 / std::sqrt(static_cast<float>(h.width)),
                     .window = h.window,
                     .chunk = h.chunk,
                     .soft_cap = h.soft_cap};
  if (h.sinks) args.sinks = inputs.normal("sinks", {h.heads}, accumulator(h.type));
  if (h.packed) {
    const Tensor qkv =
        inputs.normal("qkv", {h.batch, h.queries, h.heads + 2 * h.kv_heads, h.width}, h.type);
    args.q = qkv.slice(2, 0, h.heads);
    args.k = qkv.slice(2, h.heads, h.kv_heads);
    args.v = qkv.slice(2, h.heads + h.kv_heads, h.kv_heads);
  } else {
    args.q = inputs.normal("q", {h.batch, h.queries, h.heads, h.width}, h.type);
    if (h.page > 0) {
      put_in_pages(inputs, h, args);
    } else {
      args.k = inputs.normal("k", {h.batch, h.keys, h.kv_heads, h.width}, h.type);
      args.v = inputs.normal("v", {h.batch, h.keys, h.kv_heads, h.width}, h.type);
    }
  }
  if (h.positions) {
    args.q_positions =
        inputs.integers("q_positions", {h.batch, h.queries}, DType::i32, 0, h.queries + h.keys);
    args.k_positions = inputs.integers("k_positions", {h.batch, h.keys}, DType::i32,
                                       h.queries / 4 + 1, h.queries + h.keys);
  }
  if (!h.documents.empty()) {
    const Shape shape = {h.batch, h.queries};
    args.window_start =
        h.positions ? inputs.integers("window_start", shape, DType::i32, 0, h.queries + h.keys)
                    : inputs.values("window_start", shape, DType::i32, h.begins());
  }
  if (h.dropout > 0) {
    args.dropout = {h.dropout, 1234, 77,
                    inputs.integers("sample_ids", {h.batch}, DType::i64, 0, int64_t{1} << 40)};
    args.dropout.first_head = h.first_head;
  }
  args.out = inputs.output("out", {h.batch, h.queries, h.heads, h.width}, h.type,
                           h.packed ? kPadded : Layout{});
  args.lse = inputs.output("lse", {h.batch, h.heads, h.queries}, accumulator(h.type));
  return args;
}

// The forward results come from the reference.
AttentionBackwardArgs backward_args(Inputs& inputs, const Heads& h) {
  Inputs forward_inputs(inputs.runtime());
  const AttentionArgs f = forward_args(forward_inputs, h);
  table(inputs.forward_of(h.real)).attention(f, inputs.runtime().stream());
  AttentionBackwardArgs args{.q = f.q, .k = f.k, .v = f.v, .out = f.out, .lse = f.lse};
  args.dout = inputs.normal("dout", f.out.shape(), h.type);
  args.q_positions = f.q_positions;
  args.k_positions = f.k_positions;
  args.window_start = f.window_start;
  args.causal = f.causal;
  args.scale = f.scale;
  args.dropout = f.dropout;
  args.window = f.window;
  args.chunk = f.chunk;
  args.soft_cap = f.soft_cap;
  const DType wide = accumulator(h.type), type = h.wide ? wide : h.type;
  const auto gradient = [&](const char* name, Shape shape, DType of, Layout layout = {}) {
    return h.added ? inputs.updated(name, inputs.normal(name, shape, of, 1, layout))
                   : inputs.output(name, shape, of, layout);
  };
  args.dq = gradient("dq", f.q.shape(), type, h.packed ? kPadded : Layout{});
  args.dk = gradient("dk", f.k.shape(), type);
  args.dv = gradient("dv", f.v.shape(), type);
  args.beta_q = args.beta_kv = h.added ? 1 : 0;
  if (h.sinks) {
    args.sinks = f.sinks;
    args.dsinks = {gradient("dsinks", f.sinks.shape(), wide), h.added ? 1.0f : 0.0f};
  }
  return args;
}

// On tensor cores, weights and gradients of scores are rounded to bf16 or f16 before their
// products. Each has a relative error of at most u, u = 2^-8 or 2^-11, and a mean square error of u
// / sqrt(3) or less: a sum of such terms errs by 0.6 u of its rms, the worst of 1e5 sums by 2.7 u.
// With 4 u for a result's own rounding at 4 rms that is below the 8 u of `tolerance`.

// Products per pair and width: scores and values; in the backward pass again, and three gradients.
Case forward(const Heads& h) {
  return {.kernel = "attention",
          .name = h.str(),
          .dtype = h.type,
          // Scores of size 4 from D products, their exp, then sums over S keys of which the result
          // keeps 1 / sqrt(S). In documents and at shuffled positions many queries see few keys, so
          // more elements are far above the rms than `tolerance` allows for; so are those of the
          // first queries if later ones share their weight with sinks.
          .tolerance = tolerance(h.type, 8 + std::sqrt(h.width) + std::sqrt(h.keys)) *
                       (h.sinks                                                              ? 4
                        : h.documents.empty() && !h.positions && !h.bounded() && !h.scored() ? 1
                                                                                             : 2),
          .real = h.real,
          .large = h.large,
          .make = [h](Runtime& runtime) {
            Inputs inputs(runtime);
            const AttentionArgs args = forward_args(inputs, h);
            return inputs.call(
                [args](Stream& stream, const Table& table) { table.attention(args, stream); });
          }};
}

Case backward(const Heads& h) {
  return {.kernel = "attention_backward",
          .name = h.str(),
          .dtype = h.type,
          // As forward, with sums over keys and queries. Under a causal mask the first key gets p =
          // 1, 1/2, ... of the queries, so its gradient is 1.4 sqrt(S) above the rms, while
          // `tolerance` allows for 4. Shuffled positions create such keys at any S.
          .tolerance =
              tolerance(h.type, 8 + std::sqrt(h.width) + std::sqrt(h.keys) + std::sqrt(h.queries)) *
              std::max(h.positions ? 4.0 : 2.0, 0.35 * std::sqrt(h.keys)),
          .real = h.real,
          .large = h.large,
          .make = [h](Runtime& runtime) {
            Inputs inputs(runtime);
            const AttentionBackwardArgs args = backward_args(inputs, h);
            return inputs.call([args](Stream& stream, const Table& table) {
              table.attention_backward(args, stream);
            });
          }};
}

// Boundaries of documents inside and at the ends of the cpu's tiles (32, 64 and 128); documents of
// one token, of several blocks, and longer than the sequence.
void add_confined(std::vector<Heads>& list, DType type) {
  list.push_back({.batch = 2,
                  .queries = 33,
                  .keys = 33,
                  .heads = 4,
                  .kv_heads = 2,
                  .width = 24,
                  .type = type,
                  .documents = {1, 5, 1, 1, 13}});
  list.push_back({.batch = 2,
                  .queries = 450,
                  .keys = 450,
                  .heads = 2,
                  .kv_heads = 1,
                  .width = 16,
                  .type = type,
                  .packed = true,
                  .documents = {64, 128, 1, 32, 200}});
  list.push_back({.batch = 2,
                  .queries = 300,
                  .keys = 300,
                  .heads = 2,
                  .kv_heads = 2,
                  .width = 8,
                  .type = type,
                  .documents = {260, 1, 1000}});
  list.push_back({.batch = 2,
                  .queries = 160,
                  .keys = 290,
                  .heads = 3,
                  .kv_heads = 1,
                  .width = 8,
                  .type = type,
                  .causal = false,
                  .documents = {70, 31}});
  list.push_back({.batch = 2,
                  .queries = 150,
                  .keys = 150,
                  .heads = 2,
                  .kv_heads = 2,
                  .width = 16,
                  .type = type,
                  .dropout = 0.25f,
                  .documents = {9, 40, 65}});
  list.push_back({.batch = 2,
                  .queries = 70,
                  .keys = 145,
                  .heads = 2,
                  .kv_heads = 1,
                  .width = 16,
                  .type = type,
                  .positions = true,
                  .documents = {1}});
}

// Windows and chunks shorter and longer than blocks of keys, aligned to their boundaries or not.
void add_bounded(std::vector<Heads>& list, DType type) {
  list.push_back({.batch = 2,
                  .queries = 33,
                  .keys = 33,
                  .heads = 4,
                  .kv_heads = 2,
                  .width = 24,
                  .type = type,
                  .window = 2});
  list.push_back({.batch = 1,
                  .queries = 450,
                  .keys = 450,
                  .heads = 2,
                  .kv_heads = 1,
                  .width = 16,
                  .type = type,
                  .packed = true,
                  .window = 65});
  list.push_back({.batch = 1,
                  .queries = 200,
                  .keys = 200,
                  .heads = 2,
                  .kv_heads = 2,
                  .width = 64,
                  .type = type,
                  .dropout = 0.1f,
                  .packed = true,
                  .chunk = 96});
  list.push_back({.batch = 1,
                  .queries = 160,
                  .keys = 160,
                  .heads = 2,
                  .kv_heads = 1,
                  .width = 160,
                  .type = type,
                  .documents = {70, 31, 9},
                  .window = 40,
                  .chunk = 64});
  list.push_back({.batch = 2,
                  .queries = 70,
                  .keys = 145,
                  .heads = 2,
                  .kv_heads = 1,
                  .width = 16,
                  .type = type,
                  .positions = true,
                  .window = 50});
}

// Soft caps, sinks, and gradients in f32 or accumulated, each alone and all at once.
void add_scored(std::vector<Heads>& list, DType type) {
  const Heads shape{.batch = 1,
                    .queries = 75,
                    .keys = 75,
                    .heads = 2,
                    .kv_heads = 1,
                    .width = 64,
                    .type = type,
                    .packed = true};
  const auto add = [&](const auto& change) {
    list.push_back(shape);
    change(list.back());
  };
  add([](Heads& h) { h.soft_cap = 1.5; });
  add([](Heads& h) {
    h.batch = 2;
    h.sinks = true;
  });
  add([](Heads& h) { h.added = true; });
  add([](Heads& h) { h.wide = true; });
  add([](Heads& h) {
    h.width = 33;
    h.wide = h.added = true;
  });
  for (const int64_t width : {16, 120, 200}) {
    if (type == DType::f16 && width > 16) continue;  // bf16 covers the other tiles
    add([=](Heads& h) {
      h.batch = 2;
      h.queries = 90;
      h.keys = 110;
      h.width = width;
      h.packed = false;
      h.positions = width == 16;
      h.dropout = 0.1f;
      h.window = 60;
      h.soft_cap = 2;
      h.sinks = h.wide = h.added = true;
    });
  }
}

// GPT-2 124M and a Llama of 160M parameters with 4 query groups, 4 x 1024 tokens; longer sequences,
// and documents in one.
void add_real(std::vector<Heads>& list, DType type) {
  const auto add = [&](int64_t batch, int64_t length, int64_t kv_heads, float dropout,
                       std::vector<int64_t> documents) {
    list.push_back({.batch = batch,
                    .queries = length,
                    .keys = length,
                    .heads = 12,
                    .kv_heads = kv_heads,
                    .width = 64,
                    .type = type,
                    .dropout = dropout,
                    .packed = true,
                    .real = true,
                    .documents = std::move(documents)});
  };
  add(4, 1024, 12, 0, {});
  add(4, 1024, 12, 0.1f, {});
  add(4, 1024, 4, 0, {});
  add(1, 4096, 12, 0, {});
  add(1, 4096, 12, 0, {700, 300, 1500, 20, 900});
  add(1, 8192, 4, 0, {});
  add(1, 8192, 4, 0, {});
  list.back().window = 128;
  for (const int64_t window : {0, 128}) {
    add(1, 8192, 2, 0, {});
    list.back().heads = 4;
    list.back().width = 128;
    list.back().window = window;
  }
  if (type != DType::bf16) return;
  list.push_back({.batch = 1,
                  .queries = 4096,
                  .keys = 4096,
                  .heads = 32,
                  .kv_heads = 8,
                  .width = 128,
                  .type = type,
                  .packed = true,
                  .real = true,
                  .large = true});
}

std::vector<Heads> attention_shapes() {
  std::vector<Heads> list;
  for (const DType type : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    list.push_back({.type = type});
    list.push_back(
        {.batch = 2, .queries = 2, .keys = 2, .heads = 2, .kv_heads = 2, .width = 1, .type = type});
    list.push_back({.batch = 2,
                    .queries = 33,
                    .keys = 33,
                    .heads = 4,
                    .kv_heads = 2,
                    .width = 24,
                    .type = type});
    list.push_back({.batch = 1,
                    .queries = 7,
                    .keys = 19,
                    .heads = 3,
                    .kv_heads = 1,
                    .width = 33,
                    .type = type,
                    .causal = false});
    list.push_back({.batch = 1,
                    .queries = 19,
                    .keys = 7,
                    .heads = 2,
                    .kv_heads = 2,
                    .width = 16,
                    .type = type});
    list.push_back({.batch = 2,
                    .queries = 70,
                    .keys = 45,
                    .heads = 2,
                    .kv_heads = 1,
                    .width = 16,
                    .type = type,
                    .positions = true});
    if (type == DType::bf16 || type == DType::f16)  // cuDNN supports these
      list.push_back({.batch = 1,
                      .queries = 128,
                      .keys = 128,
                      .heads = 2,
                      .kv_heads = 1,
                      .width = 64,
                      .type = type,
                      .packed = true});
    list.push_back(
        {.batch = 0, .queries = 5, .keys = 5, .heads = 2, .kv_heads = 1, .width = 8, .type = type});
    list.push_back(
        {.batch = 1, .queries = 0, .keys = 5, .heads = 2, .kv_heads = 2, .width = 8, .type = type});
    list.push_back({.batch = 1,
                    .queries = 5,
                    .keys = 0,
                    .heads = 2,
                    .kv_heads = 2,
                    .width = 8,
                    .type = type,
                    .causal = false});
    list.push_back({.batch = 2,
                    .queries = 21,
                    .keys = 21,
                    .heads = 4,
                    .kv_heads = 2,
                    .width = 16,
                    .type = type,
                    .dropout = 0.25f});
    list.push_back({.batch = 2,
                    .queries = 21,
                    .keys = 21,
                    .heads = 4,
                    .kv_heads = 2,
                    .width = 16,
                    .type = type,
                    .dropout = 0.25f,
                    .first_head = 4});
    list.push_back({.batch = 1,
                    .queries = 18,
                    .keys = 27,
                    .heads = 2,
                    .kv_heads = 2,
                    .width = 8,
                    .type = type,
                    .positions = true,
                    .dropout = 0.5f});
    list.push_back({.batch = 2,
                    .queries = 150,
                    .keys = 150,
                    .heads = 4,
                    .kv_heads = 2,
                    .width = 64,
                    .type = type,
                    .packed = true});
    list.push_back({.batch = 1,
                    .queries = 140,
                    .keys = 140,
                    .heads = 2,
                    .kv_heads = 1,
                    .width = 128,
                    .type = type,
                    .dropout = 0.1f,
                    .packed = true,
                    .documents = {50, 3, 70}});
    list.push_back({.batch = 1,
                    .queries = 75,
                    .keys = 100,
                    .heads = 2,
                    .kv_heads = 2,
                    .width = 80,
                    .type = type,
                    .positions = true,
                    .dropout = 0.1f,
                    .first_head = 2});
    add_confined(list, type);
    add_bounded(list, type);
    add_scored(list, type);
    if (!trained(type)) continue;
    add_real(list, type);
  }
  return list;
}

// One new token, a few and many, with pages smaller and larger than tiles, and windows that skip
// pages.
std::vector<Heads> paged_shapes(DType type) {
  return {
      {.batch = 3,
       .queries = 1,
       .keys = 77,
       .heads = 4,
       .kv_heads = 2,
       .width = 24,
       .type = type,
       .page = 32},
      {.batch = 2,
       .queries = 2,
       .keys = 200,
       .heads = 4,
       .kv_heads = 1,
       .width = 64,
       .type = type,
       .page = 64},
      {.batch = 2,
       .queries = 90,
       .keys = 300,
       .heads = 4,
       .kv_heads = 2,
       .width = 32,
       .type = type,
       .page = 32},
      {.batch = 1,
       .queries = 150,
       .keys = 150,
       .heads = 2,
       .kv_heads = 2,
       .width = 40,
       .type = type,
       .page = 96},
      {.batch = 2,
       .queries = 3,
       .keys = 260,
       .heads = 2,
       .kv_heads = 1,
       .width = 16,
       .type = type,
       .window = 70,
       .soft_cap = 2,
       .page = 32},
      {.batch = 2,
       .queries = 70,
       .keys = 270,
       .heads = 2,
       .kv_heads = 1,
       .width = 16,
       .type = type,
       .chunk = 100,
       .sinks = true,
       .page = 128},
      {.batch = 2,
       .queries = 0,
       .keys = 40,
       .heads = 2,
       .kv_heads = 1,
       .width = 16,
       .type = type,
       .page = 32},
  };
}

}  // namespace

void add_attention_cases(std::vector<Case>& cases) {
  for (const Heads& h : attention_shapes())
    if (h.scored() || !(h.wide || h.added)) cases.push_back(forward(h));
  for (const DType type : {DType::f32, DType::bf16, DType::f16, DType::f64})
    for (const Heads& h : paged_shapes(type)) cases.push_back(forward(h));
  for (const Heads& h : attention_shapes()) cases.push_back(backward(h));
}

}  // namespace megatron::kernels
