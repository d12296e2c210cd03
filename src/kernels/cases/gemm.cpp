#include <fmt/core.h>

#include <array>
#include <cmath>
#include <tuple>

#include "kernels/cases/inputs.h"

namespace megatron::kernels {
namespace {

struct Product {
  struct {
    int64_t m = 1, k = 1, n = 1;
  } sizes;
  bool transpose_a = false, transpose_b = false;
  float beta = 0;
  bool bias = false;
  bool wide = false;                              // out in f32 (f64)
  int64_t groups = 0;                             // 0: 2-D
  bool broadcast_a = false, broadcast_b = false;  // one matrix for all groups
  bool heads = false;                             // [M,G,K] viewed as [G,M,K]
  bool windows = false;                           // each row of a begins one element later
  Epilogue epilogue = Epilogue::none;
  bool aux = false;
  enum class Sums { none, written, added } bias_gradient = Sums::none;
  bool double_sums = false;
  bool scaled = false;  // operands have been multiplied by factors
  Layout layout;
  bool real = false, large = false;
  DType type = DType::f32;

  DType out() const { return wide ? accumulator(type) : type; }
  std::string str() const {
    std::string text = groups > 0 ? fmt::format("g={} ", groups) : "";
    text += fmt::format("m={} k={} n={} {}{} {}", sizes.m, sizes.k, sizes.n,
                        transpose_a ? "T" : "N", transpose_b ? "T" : "N", describe(type, layout));
    if (type != out()) text += fmt::format(" to {}", name(out()));
    for (const auto& [set, word] : {std::pair{beta != 0, " accumulated"},
                                    {bias, " bias"},
                                    {broadcast_a, " one a"},
                                    {broadcast_b, " one b"},
                                    {heads, " heads"},
                                    {windows, " windows"},
                                    {epilogue == Epilogue::gelu, " gelu"},
                                    {epilogue == Epilogue::gelu_gradient, " gelu gradient"},
                                    {epilogue == Epilogue::gelu && aux, " aux"},
                                    {double_sums, " double sums"},
                                    {scaled, " scaled"},
                                    {bias_gradient != Sums::none, " bias gradient"},
                                    {bias_gradient == Sums::added, " added"}}) {
      if (set) text += word;
    }
    return text;
  }
};
using Sums = Product::Sums;

Tensor matrices(Inputs& inputs, const char* name, const Product& p, int64_t rows, int64_t columns,
                bool one) {
  if (p.groups == 0) return inputs.normal(name, {rows, columns}, p.type, 1, p.layout);
  if (one) {
    const Tensor matrix = inputs.normal(name, {rows, columns}, p.type, 1, p.layout);
    const std::array<int64_t, 3> strides{0, matrix.stride(0), matrix.stride(1)};
    return matrix.as_strided({p.groups, rows, columns}, strides);
  }
  if (p.heads)
    return inputs.normal(name, {rows, p.groups, columns}, p.type, 1, p.layout).transpose(0, 1);
  return inputs.normal(name, {p.groups, rows, columns}, p.type, 1, p.layout);
}

GemmArgs gemm_args(Inputs& inputs, const Product& p) {
  const auto& [m, k, n] = p.sizes;
  const Layout row{.offset = p.layout.offset};
  GemmArgs args{.transpose_a = p.transpose_a,
                .transpose_b = p.transpose_b,
                .beta = p.beta,
                .epilogue = p.epilogue,
                .double_sums = p.double_sums};
  args.a = p.transpose_a ? matrices(inputs, "a", p, k, m, p.broadcast_a)
                         : matrices(inputs, "a", p, m, k, p.broadcast_a);
  if (p.windows) {
    const Tensor values = inputs.normal("a", {args.a.size(0) + args.a.size(1)}, p.type);
    args.a = values.as_strided(args.a.shape(), std::array<int64_t, 2>{1, 1});
  }
  args.b = p.transpose_b ? matrices(inputs, "b", p, n, k, p.broadcast_b)
                         : matrices(inputs, "b", p, k, n, p.broadcast_b);
  if (p.scaled) {
    const double factors[] = {0.3, 2.7};
    args.a_scale = inputs.values("a_scale", {}, DType::f32, std::span(factors, 1));
    args.b_scale = inputs.values("b_scale", {}, DType::f32, std::span(factors + 1, 1));
  }
  if (p.bias) args.bias = inputs.normal("bias", {n}, p.type, 1, row);
  const Shape shape = p.groups == 0 ? Shape{m, n} : Shape{p.groups, m, n};
  args.out = inputs.sum("out", shape, p.out(), p.beta, p.layout).out;
  if (p.epilogue == Epilogue::gelu && p.aux) args.aux = inputs.output("aux", shape, p.out(), row);
  if (p.epilogue == Epilogue::gelu_gradient)
    args.aux = inputs.normal("aux", shape, p.out(), 1, row);
  if (p.bias_gradient != Sums::none)
    args.bias_gradient = inputs.sum("bias_gradient", {m}, accumulator(p.type),
                                    p.bias_gradient == Sums::added ? 1 : 0, row);
  return args;
}

// The rounding errors of a sum of K normal products grow to 0.4 sqrt(K) u of its rms sqrt(K). An
// epilogue adds a function within 8 u (cases/activation.cpp), applied to sums that may have been
// rounded. f64 sums of other types are rounded once, except those of a bias gradient.
double bound(const Product& p) {
  if (p.double_sums && p.type != DType::f64 && p.bias_gradient == Sums::none)
    return tolerance(p.out(), 1);
  const double walk = 1 + 0.4 * std::sqrt(static_cast<double>(p.sizes.k));
  return p.epilogue == Epilogue::none ? tolerance(p.out(), walk) : 2 * tolerance(p.out(), walk + 8);
}

// y = x w^T [+ bias], dx = dy w, dw += dy^T x; w [out, in].
void add_layer(std::vector<Product>& list, int64_t tokens, int64_t out, int64_t in, bool bias,
               bool wide) {
  list.push_back({.sizes = {tokens, in, out}, .transpose_b = true, .bias = bias, .wide = wide});
  list.push_back({.sizes = {tokens, out, in}});
  list.push_back({.sizes = {out, tokens, in}, .transpose_a = true, .beta = 1, .wide = true});
}

// The feed-forward block of a Llama of 8 billion parameters, 4096 tokens.
std::vector<Product> large_products() {
  std::vector<Product> list;
  for (const auto& [out, in] : {std::pair{28672, 4096}, {4096, 14336}})
    add_layer(list, 4096, out, in, false, false);
  for (Product& p : list) p.large = true;
  return list;
}

// GPT-2 124M and a Llama of 160M parameters, 4 x 1024 tokens: qkv, attention's output, feed-forward
// up and down, and the logits of a chunk of tokens; attention's scores where it is composed.
std::vector<Product> model_products() {
  std::vector<Product> list = {
      {.sizes = {1024, 64, 1024}, .transpose_b = true, .groups = 12, .heads = true}};
  for (const auto& [out, in] : {std::pair{2304, 768}, {768, 768}, {3072, 768}, {768, 3072}})
    add_layer(list, 4096, out, in, true, false);
  add_layer(list, 640, 50257, 768, false, true);
  for (const auto& [out, in] : {std::pair{1280, 768}, {6144, 768}})
    add_layer(list, 4096, out, in, false, false);
  add_layer(list, 1024, 32000, 768, false, true);
  return list;
}

// Products of a router with 64 experts: logits and, in f32, the gradients of input, weight and
// bias, which are computed from copies in that type.
std::vector<Product> router_products(DType type, int64_t tokens, int64_t width) {
  std::vector<Product> list = {
      {.sizes = {tokens, width, 64}, .transpose_b = true, .bias = true},
      {.sizes = {tokens, 64, width}},
      {.sizes = {64, tokens, width}, .transpose_a = true, .beta = 1, .bias_gradient = Sums::added},
  };
  if (type != DType::f32) list.resize(1);
  for (Product& p : list) p.wide = p.double_sums = true;
  return list;
}

// Products of a GPT's feed-forward block: up-projection with GELU, the gradient that returns
// through it, and the gradients of weights and biases; sizes that are multiples of 8, and sizes
// that are not.
std::vector<Product> epilogues(int64_t tokens, int64_t width, int64_t inner) {
  return {{.sizes = {tokens, width, inner},
           .transpose_b = true,
           .bias = true,
           .epilogue = Epilogue::gelu,
           .aux = true},
          {.sizes = {tokens, width, inner}, .epilogue = Epilogue::gelu_gradient},
          {.sizes = {inner, tokens, width},
           .transpose_a = true,
           .beta = 1,
           .wide = true,
           .bias_gradient = Sums::added}};
}

void add_small_epilogues(std::vector<Product>& list) {
  for (const auto& [tokens, width, inner] : {std::tuple{7, 13, 33}, {40, 24, 72}, {0, 4, 8}}) {
    for (Product p : epilogues(tokens, width, inner)) {
      list.push_back(p);
      if (p.sizes.m == 7 || p.bias_gradient != Sums::none) {
        p.layout = {.offset = 3};
        list.push_back(p);
      }
      if (p.epilogue == Epilogue::gelu) {
        for (const auto& [aux, bias] : {std::pair{false, false}, {true, false}, {false, true}}) {
          p.aux = aux;
          p.bias = bias;
          list.push_back(p);
        }
      }
      if (p.bias_gradient != Sums::none) {
        p.layout = {};
        p.bias_gradient = Sums::written;
        list.push_back(p);
      }
    }
  }
}

// Sizes are {m, k, n}.
std::vector<Product> small_products() {
  std::vector<Product> list = {
      {},
      {.sizes = {1, 257, 2}},
      {.sizes = {2, 1, 33}, .bias = true},
      {.sizes = {7, 33, 5}, .beta = 1, .bias = true, .layout = kMisaligned},
      {.sizes = {3, 0, 5}, .bias = true},
      {.sizes = {3, 0, 5}, .beta = 1},
      {.sizes = {0, 4, 5}},
      {.sizes = {4, 4, 0}},
      {.sizes = {7, 16, 9}, .groups = 3},
      {.sizes = {17, 33, 17}, .transpose_b = true, .groups = 5, .heads = true},
      {.sizes = {7, 8, 5}, .beta = 1, .groups = 2, .broadcast_b = true},
      {.sizes = {7, 8, 5}, .transpose_a = true, .groups = 4, .broadcast_a = true},
      {.sizes = {128, 192, 256}, .transpose_b = true, .bias = true},
      {.sizes = {9, 33, 7}, .windows = true},
      {.sizes = {9, 33, 7}, .transpose_a = true, .windows = true},
      {.sizes = {3, 0, 5}, .bias = true, .wide = true, .double_sums = true},
      {.sizes = {0, 4, 5}, .wide = true, .double_sums = true},
      {.sizes = {17, 24, 40}, .transpose_b = true, .bias = true, .scaled = true},
      {.sizes = {24, 17, 40}, .transpose_a = true, .beta = 1, .wide = true, .scaled = true},
      // Only the bias's gradient is computed.
      {.sizes = {5, 9, 0}, .transpose_a = true, .wide = true, .bias_gradient = Sums::added},
  };
  for (const auto& [a, b] : {std::pair{false, false}, {false, true}, {true, false}, {true, true}}) {
    Product p{.sizes = {7, 13, 33}, .transpose_a = a, .transpose_b = b};
    list.push_back(p);
    p.wide = p.double_sums = true;
    list.push_back(p);
    p.sizes = {70, 530, 33};
    p.beta = 1;
    p.bias = true;
    p.layout = kMisaligned;
    list.push_back(p);
    list.push_back({.sizes = {65, 130, 97}, .transpose_a = a, .transpose_b = b, .layout = kPadded});
  }
  add_small_epilogues(list);
  return list;
}

// Gradients of weights, and logits, in f32.
std::vector<Product> widened_products() {
  return {
      {.sizes = {7, 40, 24}, .transpose_b = true, .bias = true, .wide = true},
      {.sizes = {33, 70, 17}, .transpose_a = true, .wide = true},
      {.sizes = {33, 70, 17}, .transpose_a = true, .beta = 1, .wide = true},
      {.sizes = {64, 128, 96}, .transpose_a = true, .wide = true, .layout = kPadded},
      {.sizes = {64, 128, 96}, .transpose_a = true, .beta = 1, .wide = true, .layout = kPadded},
  };
}

}  // namespace

void add_gemm_cases(std::vector<Case>& cases) {
  const auto add = [&](const std::vector<Product>& products, std::initializer_list<DType> types,
                       bool real = false) {
    for (Product p : in_types(products, types)) {
      p.real = real;
      cases.push_back(case_of(&Table::gemm, p, bound(p), gemm_args));
    }
  };
  add(small_products(), kFloats);
  add(widened_products(), {DType::bf16, DType::f16});
  for (const DType type : {DType::f32, DType::bf16}) {
    add(router_products(type, 40, 72), {type});
    add(router_products(type, 4096, 2048), {type}, true);
  }
  add(model_products(), {DType::f32, DType::bf16, DType::f16}, true);
  add(large_products(), {DType::bf16}, true);
  add(epilogues(4096, 768, 3072), {DType::f32, DType::bf16, DType::f16}, true);
}

}  // namespace megatron::kernels
