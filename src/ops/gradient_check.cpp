#include "ops/gradient_check.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>

#include "base/error.h"
#include "base/philox.h"
#include "ops/activation.h"
#include "ops/attention.h"
#include "ops/auxiliary_loss.h"
#include "ops/clip.h"
#include "ops/columns.h"
#include "ops/distance_bias.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/gate.h"
#include "ops/gradient_check_experts.h"
#include "ops/gradient_check_state_space.h"
#include "ops/head_norm.h"
#include "ops/latent_attention.h"
#include "ops/linear.h"
#include "ops/linear_cross_entropy.h"
#include "ops/norm.h"
#include "ops/rope.h"
#include "ops/scale.h"
#include "ops/soft_cap.h"
#include "ops/squared_error.h"

namespace megatron::ops {
namespace {

using Result = GradientCase::Result;

constexpr double kStep = 1e-5;
// Sequences and tokens per sequence, for ops that distinguish them.
constexpr int64_t kBatch = 2, kLength = 5;

Tensor integers(Tape& tape, const std::vector<int32_t>& values) {
  Tensor t =
      tape.empty({static_cast<int64_t>(values.size())}, DType::i32, "gradient_check.integers");
  copy_from(t, std::span<const int32_t>(values));
  return t;
}

Tensor numbers(Tape& tape, DType type, const Shape& shape, const std::vector<double>& values) {
  Tensor t = tape.empty(shape, type, "gradient_check.numbers");
  copy_from(t, std::span<const double>(values));
  return t;
}

std::vector<double> normals(std::string_view name, int64_t count) {
  const RandomStream stream(1, name);
  std::vector<double> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = stream.normal(i);
  return values;
}

kernels::DropoutArgs::Mask half_dropped(Tape& tape) {
  Tensor samples = tape.empty({kBatch}, DType::i64, "gradient_check.samples");
  std::array<int64_t, kBatch> numbers{};
  for (size_t b = 0; b < numbers.size(); ++b) numbers[b] = static_cast<int64_t>(7 + b);
  copy_bytes_from(samples, std::as_bytes(std::span(numbers)));
  return {.p = 0.5f, .seed = 3, .stream = 11, .rows = {.sample_ids = samples}};
}

// A table that is not trained, some of whose rows are replaced by w: rows 1, 2 and 4 of 5, or with
// 3 rows before this part 4, 5 and 7.
class ReplacedTable {
 public:
  ReplacedRows rows(Tape& tape, const Weight& w) const {
    const Shape shape = {5, w.value().size(1)};
    table_->trainable = false;
    table_->value = numbers(tape, w.value().dtype(), shape, normals("table", shape.elements()));
    return {.rows = w,
            .runs = {{.row = 1, .first = 0, .count = 2}, {.row = 4, .first = 3, .count = 1}}};
  }
  LowRank output(Tape& tape, const Weight& w) const {
    return {.blocks = {}, .replaced = rows(tape, w), .matrix = *table_};
  }
  Weight table() const { return *table_; }

 private:
  std::shared_ptr<Parameter> table_ = std::make_shared<Parameter>();
};

// Row 2 of the 4 that are trained belongs to another rank.
void add_replaced_cases(std::vector<GradientCase>& cases) {
  const ReplacedTable table;
  add_case(cases, "embedding with replaced rows", {}, {{4, 3}}, [table](Tape& t, auto, auto w) {
    const ReplacedRows rows = table.rows(t, w[0]);
    return embedding(t, integers(t, {4, 0, 1, 4, 3, 2}), table.table(), rows);
  });
  add_case(cases, "embedding_part with replaced rows", {}, {{4, 3}},
           [table](Tape& t, auto, auto w) {
             const ReplacedRows rows = table.rows(t, w[0]);
             return embedding_part(t, integers(t, {4, 0, 1, 7, 3, 9}), table.table(), 3,
                                   MemoryClass::activations, rows);
           });
  add_case(cases, "linear with replaced rows", {{6, 5}}, {{4, 5}},
           [table](Tape& t, auto x, auto w) {
             const LowRank output = table.output(t, w[0]);
             return linear(t, x[0], table.table(), {}, MemoryClass::activations, output);
           });
  add_case(cases, "linear_cross_entropy with replaced rows", {{5, 4}}, {{4, 4}},
           [table](Tape& t, auto x, auto w) {
             const LowRank output = table.output(t, w[0]);
             const DType type = kernels::accumulator(x[0].value.dtype());
             const Tensor weights = numbers(t, type, {5}, {1, 0.5, 0, 1, 2});
             return Result{
                 {},
                 linear_cross_entropy(t, x[0], table.table(), integers(t, {0, 4, -100, 3, 2}),
                                      weights, 0, output),
                 weights};
           });
}

void add_linear_cases(std::vector<GradientCase>& cases) {
  add_case(cases, "linear", {{6, 5}}, {{4, 5}},
           [](Tape& t, auto x, auto w) { return linear(t, x[0], w[0]); });
  add_case(cases, "linear with bias", {{6, 5}}, {{4, 5}, {4}},
           [](Tape& t, auto x, auto w) { return linear(t, x[0], w[0], w[1]); });
  // Two parts of one scale, of different ranks, and one of another scale for some of their rows.
  add_case(cases, "linear with adapters", {{6, 5}},
           {{7, 5}, {7}, {5, 5}, {3, 2}, {4, 3}, {2, 5}, {2, 2}, {4}}, [](Tape& t, auto x, auto w) {
             const LowRank adapter{
                 {{w[2], 0.5, {{w[3], 0, 0}, {w[4], 3, 2, w[7]}}}, {w[5], 2, {{w[6], 2, 0}}}}};
             return linear(t, x[0], w[0], w[1], MemoryClass::activations, adapter);
           });
  // A rank's columns of x are the whole's from the seventh on.
  add_case(cases, "linear with adapters and dropout", {{kBatch * kLength, 6}},
           {{4, 6}, {3, 6}, {4, 3}}, [](Tape& t, auto x, auto w) {
             LowRank adapter{{{w[1], 0.5, {{w[2], 0, 0}}}}};
             const kernels::DropoutArgs::Mask mask = half_dropped(t);
             adapter.dropout = {
                 .p = mask.p, .seed = mask.seed, .stream = mask.stream, .first_channel = 6};
             t.set_batch_rows({mask.rows, kBatch * kLength});
             return linear(t, x[0], w[0], {}, MemoryClass::activations, adapter);
           });
  add_case(cases, "linear of linear_gelu", {{6, 5}}, {{7, 5}, {7}, {4, 7}, {4}},
           [](Tape& t, auto x, auto w) {
             const Gelu inner = linear_gelu(t, x[0], w[0], w[1], true);
             return linear(t, inner, w[2], w[3]);
           });
  add_case(cases, "embedding", {}, {{6, 3}},
           [](Tape& t, auto, auto w) { return embedding(t, integers(t, {4, 0, 4, 5, 4}), w[0]); });
  // Rows 3 to 5 of a table: smaller and larger ids have no row here.
  add_case(cases, "distance_bias", {}, {{4, 3}}, [](Tape& t, auto, auto w) {
    return distance_bias(t, integers(t, {3, 3, 1, 0, 2, 2, 2}), w[0]);
  });
  add_case(cases, "embedding_part", {}, {{3, 3}}, [](Tape& t, auto, auto w) {
    return embedding_part(t, integers(t, {4, 0, 4, 5, 6, 3}), w[0], 3);
  });
  add_case(cases, "auxiliary_loss", {{5}}, {}, [](Tape& t, auto x, auto) {
    const DType type = x[0].value.dtype();
    auxiliary_loss(t, x[0], numbers(t, type, {5}, {1, 0.5, 0, 1, 2}),
                   {.metric = "auxiliary", .coefficient = 0.25});
    return Result{{}, x[0].value, numbers(t, type, {5}, {0.25, 0.125, 0, 0.25, 0.5})};
  });
  // Labels that must not be read are out of range.
  add_case(cases, "linear_cross_entropy", {{5, 4}}, {{7, 4}}, [](Tape& t, auto x, auto w) {
    const DType type = kernels::accumulator(x[0].value.dtype());
    const Tensor weights = numbers(t, type, {5}, {1, 0.5, 0, 1, 2});
    return Result{
        {}, linear_cross_entropy(t, x[0], w[0], integers(t, {0, 6, -100, 3, 3}), weights), weights};
  });
}

void add_elementwise_cases(std::vector<GradientCase>& cases) {
  add_case(cases, "add", {{3, 4}, {3, 4}}, {},
           [](Tape& t, auto x, auto) { return add(t, x[0], x[1]); });
  add_case(cases, "add to itself", {{3, 4}}, {},
           [](Tape& t, auto x, auto) { return add(t, x[0], x[0]); });
  add_case(cases, "summed_apart", {{3, 4}}, {},
           [](Tape& t, auto x, auto) { return add(t, summed_apart(t, x[0]), x[0]); });
  add_case(cases, "dropout", {{kBatch * kLength, 3}}, {},
           [](Tape& t, auto x, auto) { return dropout(t, x[0], half_dropped(t)); });
  add_case(cases, "dropout of some rows", {{4, 3}}, {}, [](Tape& t, auto x, auto) {
    kernels::DropoutArgs::Mask mask = half_dropped(t);
    mask.rows.first = 3;
    mask.rows.length = kLength;
    return dropout(t, x[0], mask);
  });
  add_case(cases, "scale", {{3, 4}}, {},
           [](Tape& t, auto x, auto) { return Result{{scale(t, x[0], 0.3), scale(t, x[0], 1)}}; });
  add_case(cases, "soft_cap", {{3, 4}}, {},
           [](Tape& t, auto x, auto) { return soft_cap(t, x[0], 1.5); });
  add_case(cases, "activation clamped", {{3, 8}}, {}, [](Tape& t, auto x, auto) {
    return activation(t, x[0], kernels::Activation::quick_gelu, true, 0.7, 1);
  });
  add_case(cases, "linear_cross_entropy, soft cap", {{5, 4}}, {{7, 4}},
           [](Tape& t, auto x, auto w) {
             const DType type = kernels::accumulator(x[0].value.dtype());
             const Tensor weights = numbers(t, type, {5}, {1, 0.5, 0, 1, 2});
             const Tensor labels = integers(t, {0, 6, -100, 3, 3});
             return Result{{}, linear_cross_entropy(t, x[0], w[0], labels, weights, 1.5), weights};
           });
  add_case(cases, "linear_cross_entropy, bias and soft cap", {{5, 4}}, {{7, 4}, {7}},
           [](Tape& t, auto x, auto w) {
             const DType type = kernels::accumulator(x[0].value.dtype());
             const Tensor weights = numbers(t, type, {5}, {1, 0.5, 0, 1, 2});
             const Tensor labels = integers(t, {0, 6, -100, 3, 3});
             return Result{
                 {}, linear_cross_entropy(t, x[0], w[0], labels, weights, 1.5, {}, w[1]), weights};
           });
  add_case(cases, "squared_error", {{5, 1}}, {}, [](Tape& t, auto x, auto) {
    const DType type = kernels::accumulator(x[0].value.dtype());
    const Tensor weights = numbers(t, type, {5}, {1, 0.5, 0, 1, 2});
    const Tensor targets = numbers(t, type, {5}, {0.3, -1, 5, 0, 2});
    return Result{{}, squared_error(t, x[0], targets, weights), weights};
  });
  add_case(cases, "clip", {{3, 4}}, {}, [](Tape& t, auto x, auto) { return clip(t, x[0], 0.7); });
  add_case(cases, "gate", {{3, 4}, {3, 4}}, {},
           [](Tape& t, auto x, auto) { return gate(t, x[0], x[1]); });
  using kernels::Activation;
  for (const auto& [name, function] : {std::pair{"gelu_tanh", Activation::gelu_tanh},
                                       {"gelu_erf", Activation::gelu_erf},
                                       {"silu", Activation::silu},
                                       {"relu", Activation::relu},
                                       {"squared_relu", Activation::squared_relu},
                                       {"quick_gelu", Activation::quick_gelu}}) {
    for (const bool gated : {false, true}) {
      add_case(cases, std::string("activation ") + name + (gated ? " gated" : ""),
               {{3, gated ? 8 : 4}}, {}, [function = function, gated](Tape& t, auto x, auto) {
                 return activation(t, x[0], function, gated);
               });
    }
  }
}

void add_norm_cases(std::vector<GradientCase>& cases) {
  add_case(cases, "add_rms_norm", {{3, 6}, {3, 6}}, {{6}}, [](Tape& t, auto x, auto w) {
    const AddNorm out = add_rms_norm(t, x[0], x[1], w[0], 0.01f);
    return Result{{out.normed, out.residual}};
  });
  add_case(cases, "add_rms_norm without residual", {{3, 6}}, {{6}}, [](Tape& t, auto x, auto w) {
    return add_rms_norm(t, x[0], Var(), w[0], 0.01f).normed;
  });
  add_case(cases, "add_layer_norm", {{3, 6}, {3, 6}}, {{6}, {6}}, [](Tape& t, auto x, auto w) {
    const AddNorm out = add_layer_norm(t, x[0], x[1], w[0], w[1], 0.01f);
    return Result{{out.normed, out.residual}};
  });
  add_case(cases, "add_rms_norm, 1 + weight", {{3, 6}, {3, 6}}, {{6}}, [](Tape& t, auto x, auto w) {
    return add_rms_norm(t, x[0], x[1], w[0], 0.01f, 1).normed;
  });
  add_case(cases, "add_layer_norm without bias", {{3, 6}, {3, 6}}, {{6}},
           [](Tape& t, auto x, auto w) {
             return add_layer_norm(t, x[0], x[1], w[0], {}, 0.01f, 1).normed;
           });
  using kernels::NormKind;
  const Shape heads = {2, 3, 2, 4};
  add_case(cases, "head_norm", {heads}, {{4}}, [](Tape& t, auto x, auto w) {
    const HeadNorm norm{.weight = w[0], .bias = {}, .weight_offset = 1, .eps = 0.01};
    return head_norm(t, x[0], norm);
  });
  add_case(cases, "head_norm of layers", {heads}, {{4}, {4}}, [](Tape& t, auto x, auto w) {
    const HeadNorm norm{.kind = NormKind::layer, .weight = w[0], .bias = w[1], .eps = 0.01};
    return head_norm(t, x[0], norm);
  });
  add_case(cases, "head_norm without weight", {heads}, {}, [](Tape& t, auto x, auto) {
    return head_norm(t, x[0], {.weight = {}, .bias = {}, .eps = 0.01});
  });
  add_case(cases, "head_norm of all heads", {heads}, {{8}}, [](Tape& t, auto x, auto w) {
    const HeadNorm norm{.weight = w[0], .bias = {}, .eps = 0.01};
    return head_norm(t, x[0], norm, {.width = 8, .add_up = {}});
  });
  add_case(cases, "add_layer_norm, residual only", {{3, 6}, {3, 6}}, {{6}, {6}},
           [](Tape& t, auto x, auto w) {
             return add_layer_norm(t, x[0], x[1], w[0], w[1], 0.01f).residual;
           });
}

// Angles that differ for every position and pair; positions are not in order.
Rotary some_rotary(Tape& tape, DType type, bool interleaved) {
  std::vector<double> cos, sin;
  std::vector<int32_t> positions;
  for (int i = 0; i < 16; ++i) {
    cos.push_back(std::cos(0.3 * i));
    sin.push_back(std::sin(0.3 * i));
  }
  for (int64_t i = 0; i < kBatch * kLength; ++i)
    positions.push_back(static_cast<int32_t>(i * 3 % 8));
  return {numbers(tape, type, {8, 2}, cos), numbers(tape, type, {8, 2}, sin),
          integers(tape, positions), interleaved};
}

// In each sample a document of one token begins at a different position, followed by another
// document.
Tensor some_begins(Tape& tape) {
  std::vector<int32_t> begins;
  for (int64_t b = 0; b < kBatch; ++b) {
    for (int64_t i = 0; i < kLength; ++i)
      begins.push_back(static_cast<int32_t>(i <= b ? 0 : std::min(i, b + 2)));
  }
  return integers(tape, begins).view({kBatch, kLength});
}
// Ends at or after each query.
Tensor some_ends(Tape& tape) {
  std::vector<int32_t> ends;
  for (int64_t b = 0; b < kBatch; ++b) {
    for (int64_t i = 0; i < kLength; ++i)
      ends.push_back(static_cast<int32_t>(std::min(kLength - 1, i + (i + b) % 3)));
  }
  return integers(tape, ends).view({kBatch, kLength});
}

void add_attention_cases(std::vector<GradientCase>& cases) {
  constexpr int64_t kHeads = 4, kKeyHeads = 2, kSize = 4, kRadius = 2;
  const Shape qkv = {kBatch * kLength, (kHeads + 2 * kKeyHeads) * kSize};
  // Works on a copy, since the op may overwrite its input.
  const auto packed = [](Tape& t, const Var& x, bool rotates, bool interleaved) {
    Tensor own = t.empty(x.value.shape(), x.value.dtype(), "gradient_check.qkv");
    t.kernels().copy({.x = x.value, .out = own}, t.stream());
    const DType type = kernels::accumulator(x.value.dtype());
    const Rotary rotary = rotates ? some_rotary(t, type, interleaved) : Rotary{};
    return PackedHeads{Var(own, x.id), kBatch, kHeads, kKeyHeads, rotary};
  };
  const auto split_case = [&](const std::string& name, bool rotates, bool interleaved) {
    add_case(cases, name, {qkv}, {}, [=](Tape& t, auto x, auto) {
      const Heads h = split_heads(t, packed(t, x[0], rotates, interleaved));
      return Result{{h.q, h.k, h.v}};
    });
    add_case(cases, "attention of " + name, {qkv}, {}, [=](Tape& t, auto x, auto) {
      const AttentionOptions options{.scale = 0.5f};
      return attention(t, packed(t, x[0], rotates, interleaved), options);
    });
  };
  split_case("split_heads", false, false);
  split_case("split_heads, rotary", true, false);
  split_case("split_heads, rotary interleaved", true, true);
  for (const bool rotates : {false, true}) {
    add_case(cases, rotates ? "split_heads, gated and rotary" : "split_heads, gated",
             {{kBatch * kLength, (2 * kHeads + 2 * kKeyHeads) * kSize}}, {},
             [=](Tape& t, auto x, auto) {
               PackedHeads gated = packed(t, x[0], rotates, false);
               gated.gated = true;
               const Heads h = split_heads(t, std::move(gated));
               return Result{{h.q, h.k, h.v, h.gate}};
             });
  }
  add_case(cases, "split_columns", {{5, 7}}, {}, [](Tape& t, auto x, auto) {
    const auto parts = split_columns(t, x[0], 4);
    return Result{{parts[0], parts[1]}};
  });
  add_case(cases, "join_columns of vectors", {{5}, {5}}, {},
           [](Tape& t, auto x, auto) { return join_columns(t, x[0], x[1]); });
  add_case(cases, "join_columns", {{5, 4}, {5, 3}}, {},
           [](Tape& t, auto x, auto) { return join_columns(t, x[0], x[1]); });
  for (const bool rotates : {false, true}) {
    const LatentHead head{.plain = 3, .rotated = 4, .value = 5};
    const auto heads_of = [=](Tape& t, auto x) {
      const auto own = [&](const Var& of) {  // the op overwrites its input
        Tensor copy = t.empty(of.value.shape(), of.value.dtype(), "gradient_check.heads");
        t.kernels().copy({.x = of.value, .out = copy}, t.stream());
        return Var(copy, of.id);
      };
      const DType type = kernels::accumulator(x[0].value.dtype());
      return latent_heads(t, own(x[0]), x[1], x[2], kBatch, head,
                          rotates ? some_rotary(t, type, true) : Rotary{});
    };
    const std::vector<Shape> inputs = {{kBatch * kLength, 2 * head.key()},
                                       {kBatch * kLength, 2 * (head.plain + head.value)},
                                       {kBatch * kLength, head.rotated}};
    const std::string name = rotates ? "latent_heads, rotary" : "latent_heads";
    add_case(cases, name, inputs, {}, [=](Tape& t, auto x, auto) {
      const Heads h = heads_of(t, x);
      return Result{{h.q, h.k, h.v}};
    });
    add_case(cases, "attention of " + name, inputs, {},
             [=](Tape& t, auto x, auto) { return attention(t, heads_of(t, x), {.scale = 0.5f}); });
  }
  add_case(cases, "as_heads", {{kBatch * kLength, kHeads * kSize}}, {},
           [=](Tape& t, auto x, auto) { return as_heads(t, x[0], kBatch, kHeads); });
  add_case(cases, "clip of heads", {qkv}, {}, [=](Tape& t, auto x, auto) {
    const Heads h = split_heads(t, packed(t, x[0], false, false));
    return Result{{clip(t, h.q, 0.8), clip(t, h.k, 0.8), clip(t, h.v, 0.8)}};
  });
  const Shape q = {kBatch, kLength, kHeads, kSize}, k = {kBatch, kLength, kKeyHeads, kSize};
  struct Kind {
    bool causal = true, drops = false, confined = false, sinks = false;
    int64_t window = 0, chunk = 0;
    double soft_cap = 0;
    bool biased = false;
  };
  const auto attention_case = [&](const std::string& name, Kind kind) {
    const std::vector<Shape> weights =
        kind.sinks ? std::vector<Shape>{{kHeads}} : std::vector<Shape>{};
    std::vector<Shape> inputs = {q, k, k};
    if (kind.biased) inputs.push_back({2 * kRadius + 1, kHeads});
    add_case(cases, name, inputs, weights, [kind](Tape& t, auto x, auto w) {
      AttentionOptions options{.scale = 0.5f,
                               .causal = kind.causal,
                               .window = kind.window,
                               .chunk = kind.chunk,
                               .soft_cap = kind.soft_cap};
      if (kind.sinks) options.sinks = w[0];
      if (kind.biased) options.bias = x[3];
      if (kind.drops) options.dropout = half_dropped(t);
      if (kind.confined) options.window_start = some_begins(t);
      if (kind.confined && !kind.causal) options.window_end = some_ends(t);
      const Heads heads{x[0], x[1], x[2]};
      return attention(t, heads, options);
    });
  };
  attention_case("attention", {});
  attention_case("attention to all", {.causal = false});
  attention_case("attention with dropout", {.drops = true});
  attention_case("attention confined to documents", {.confined = true});
  attention_case("two-sided attention confined to documents", {.causal = false, .confined = true});
  attention_case("attention in a two-sided window", {.causal = false, .window = 2});
  attention_case("two-sided attention with all of these", {.causal = false,
                                                           .drops = true,
                                                           .confined = true,
                                                           .sinks = true,
                                                           .window = 3,
                                                           .soft_cap = 1.5});
  add_case(cases, "rotate", {q}, {}, [](Tape& t, auto x, auto) {
    Tensor own = t.empty(x[0].value.shape(), x[0].value.dtype(), "gradient_check.q");
    t.kernels().copy({.x = x[0].value, .out = own}, t.stream());
    const DType type = kernels::accumulator(own.dtype());
    return rotate(t, Var(own, x[0].id), some_rotary(t, type, true));
  });
  attention_case("attention in a window", {.window = 2});
  attention_case("attention in chunks", {.chunk = 2});
  attention_case("attention with a soft cap", {.soft_cap = 0.7});
  attention_case("attention with sinks", {.sinks = true});
  attention_case("attention with a bias", {.biased = true});
  attention_case("attention to all with a bias", {.causal = false, .biased = true});
  attention_case(
      "attention with all of these",
      {.confined = true, .sinks = true, .window = 3, .chunk = 4, .soft_cap = 1.5, .biased = true});
  attention_case("two-sided attention with a bias and dropout",
                 {.causal = false, .drops = true, .confined = true, .biased = true});
  add_case(cases, "attention of split_heads, with a bias", {qkv, {2 * kRadius + 1, kHeads}}, {},
           [=](Tape& t, auto x, auto) {
             AttentionOptions options{.scale = 0.5f, .soft_cap = 2};
             options.bias = x[1];
             return attention(t, packed(t, x[0], true, false), options);
           });
  add_case(cases, "attention of split_heads, with sinks", {qkv}, {{kHeads}},
           [=](Tape& t, auto x, auto w) {
             AttentionOptions options{.scale = 0.5f, .window = 3, .soft_cap = 2};
             options.sinks = w[0];
             return attention(t, packed(t, x[0], true, false), options);
           });
}

// A case's tensors, and its objective on a fresh tape. The tensors' values are representable in
// f32, whatever their type.
class Evaluation {
 public:
  Evaluation(const GradientCase& c, DType type, Runtime& runtime, const kernels::Table* table)
      : case_(c), type_(type), runtime_(runtime), table_(table), parameters_(c.weights.size()) {
    for (size_t i = 0; i < c.inputs.size(); ++i)
      inputs_.push_back(drawn(c.inputs[i], fmt::format("{} input {}", c.name, i)));
    for (size_t i = 0; i < c.weights.size(); ++i) {
      parameters_[i].name = fmt::format("weight {}", i);
      parameters_[i].value = drawn(c.weights[i], fmt::format("{} weight {}", c.name, i));
      parameters_[i].uses[0].grad = drawn(c.weights[i], "not read");
    }
  }

  // Returns the gradients of all inputs, then of all weights.
  std::vector<std::vector<double>> backward() {
    Tape tape(runtime_, Tape::Mode::record, table_);
    std::vector<Var> vars;
    for (const Tensor& t : inputs_) vars.push_back(tape.leaf(t));
    for (Parameter& p : parameters_) p.uses[0].started = false;
    const Result result = case_.run(tape, vars, weights());
    for (size_t i = 0; i < result.outputs.size(); ++i) {
      const Var& out = result.outputs[i];
      tape.set_gradient(
          out, numbers(tape, type_, out.value.shape(), coefficients(i, out.value.elements())));
    }
    tape.backward();
    std::vector<std::vector<double>> gradients;
    for (const Var& var : vars) gradients.push_back(to_doubles(tape.gradient(var)));
    for (const Parameter& p : parameters_) gradients.push_back(to_doubles(p.uses[0].grad));
    return gradients;
  }

  double objective() {
    Tape tape(runtime_, Tape::Mode::infer, table_);
    const std::vector<Var> vars(inputs_.begin(), inputs_.end());
    const Result result = case_.run(tape, vars, weights());
    double sum = 0;
    for (size_t i = 0; i < result.outputs.size(); ++i) {
      sum += dot(to_doubles(result.outputs[i].value),
                 coefficients(i, result.outputs[i].value.elements()));
    }
    return result.loss.defined() ? sum + dot(to_doubles(result.loss), to_doubles(result.weights))
                                 : sum;
  }

  size_t tensors() const { return inputs_.size() + parameters_.size(); }
  std::span<double> values(size_t i) {
    return (i < inputs_.size() ? inputs_[i] : parameters_[i - inputs_.size()].value).span<double>();
  }
  std::string name(size_t i) const {
    return i < inputs_.size() ? fmt::format("input {}", i) : parameters_[i - inputs_.size()].name;
  }

 private:
  Tensor drawn(const Shape& shape, const std::string& name) {
    Tensor t =
        Tensor::empty(runtime_.arena(MemoryClass::parameters), shape, type_, "gradient_check");
    copy_from(t, std::span<const double>(single(normals(name, shape.elements()))));
    return t;
  }
  std::vector<Weight> weights() {
    std::vector<Weight> weights;
    for (Parameter& p : parameters_) weights.emplace_back(p);
    return weights;
  }
  static std::vector<double> coefficients(size_t output, int64_t count) {
    return single(normals(fmt::format("coefficients {}", output), count));
  }
  static std::vector<double> single(std::vector<double> values) {
    for (double& v : values) v = static_cast<float>(v);
    return values;
  }
  static double dot(const std::vector<double>& a, const std::vector<double>& b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
    return sum;
  }

  const GradientCase& case_;
  DType type_;
  Runtime& runtime_;
  const kernels::Table* table_;
  std::vector<Tensor> inputs_;
  std::vector<Parameter> parameters_;
};

// Largest difference from `wanted`, relative to the largest of it; NaN stays.
double distance(const std::vector<double>& wanted, const std::vector<double>& gradient) {
  double largest = 1e-3, worst = 0;
  for (size_t j = 0; j < wanted.size(); ++j) {
    largest = std::max(largest, std::abs(wanted[j]));
    const double distance = std::abs(gradient[j] - wanted[j]);
    if (!(distance <= worst) && !std::isnan(worst)) worst = distance;
  }
  return worst / largest;
}

void keep_worse(GradientError& error, double worst, std::string tensor) {
  if (!(worst <= error.worst) && !std::isnan(error.worst)) error = {worst, std::move(tensor)};
}

}  // namespace

std::vector<GradientCase> gradient_cases() {
  std::vector<GradientCase> cases;
  add_linear_cases(cases);
  add_replaced_cases(cases);
  add_elementwise_cases(cases);
  add_norm_cases(cases);
  add_attention_cases(cases);
  add_expert_cases(cases);
  add_state_space_cases(cases);
  return cases;
}

GradientError gradient_error(const GradientCase& gradient_case, Runtime& runtime,
                             const kernels::Table* table) {
  Evaluation evaluation(gradient_case, DType::f64, runtime, table);
  const std::vector<std::vector<double>> gradients = evaluation.backward();
  GradientError error;
  for (size_t i = 0; i < evaluation.tensors(); ++i) {
    std::vector<double> differences;
    for (double& x : evaluation.values(i)) {
      const double value = x;
      x = value + kStep;
      const double above = evaluation.objective();
      x = value - kStep;
      const double below = evaluation.objective();
      x = value;
      differences.push_back((above - below) / (2 * kStep));
    }
    keep_worse(error, distance(differences, gradients[i]), evaluation.name(i));
  }
  return error;
}

GradientError gradient_distance(const GradientCase& gradient_case, DType type, Runtime& runtime) {
  Runtime oracle({DeviceKind::reference}, 1);
  Evaluation exact(gradient_case, DType::f64, oracle, nullptr);
  Evaluation tried(gradient_case, type, runtime, nullptr);
  const std::vector<std::vector<double>> wanted = exact.backward(), gradients = tried.backward();
  GradientError error;
  for (size_t i = 0; i < wanted.size(); ++i)
    keep_worse(error, distance(wanted[i], gradients[i]), exact.name(i));
  return error;
}

}  // namespace megatron::ops
