#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/cases/inputs.h"

namespace megatron::kernels {
namespace {

struct Product {
  int64_t m = 1, k = 1, n = 1;
  bool transpose_a = false, transpose_b = false;
  float beta = 0;
  bool bias = false;
  DType in = DType::f32, out = DType::f32;
  int64_t groups = 0;                             // 0: 2-D
  bool broadcast_a = false, broadcast_b = false;  // one matrix for all groups
  bool heads = false;                             // [M,G,K] viewed as [G,M,K]
  bool windows = false;                           // each row of a begins one element later
  Epilogue epilogue = Epilogue::none;
  bool aux = false;
  enum class Sums { none, written, added } bias_gradient = Sums::none;
  bool double_sums = false;
  Layout layout;
  bool real = false, large = false;

  std::string str() const {
    std::string text = groups > 0 ? fmt::format("g={} ", groups) : "";
    text += fmt::format("m={} k={} n={} {}{} {}", m, k, n, transpose_a ? "T" : "N",
                        transpose_b ? "T" : "N", describe(in, layout));
    if (in != out) text += fmt::format(" to {}", name(out));
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
                                    {bias_gradient != Sums::none, " bias gradient"},
                                    {bias_gradient == Sums::added, " added"}}) {
      if (set) text += word;
    }
    return text;
  }
};

Tensor matrices(Inputs& inputs, const char* name, const Product& p, int64_t rows, int64_t columns,
                bool one) {
  if (p.groups == 0) return inputs.normal(name, {rows, columns}, p.in, 1, p.layout);
  if (one) {
    const Tensor matrix = inputs.normal(name, {rows, columns}, p.in, 1, p.layout);
    const std::array<int64_t, 3> strides{0, matrix.stride(0), matrix.stride(1)};
    return matrix.as_strided({p.groups, rows, columns}, strides);
  }
  if (p.heads)
    return inputs.normal(name, {rows, p.groups, columns}, p.in, 1, p.layout).transpose(0, 1);
  return inputs.normal(name, {p.groups, rows, columns}, p.in, 1, p.layout);
}

void add_epilogue(const Product& p, Inputs& inputs, GemmArgs& args) {
  const Layout layout{.offset = p.layout.offset};
  args.epilogue = p.epilogue;
  if (p.epilogue == Epilogue::gelu && p.aux)
    args.aux = inputs.output("aux", args.out.shape(), p.out, layout);
  if (p.epilogue == Epilogue::gelu_gradient)
    args.aux = inputs.normal("aux", args.out.shape(), p.out, 1, layout);
  if (p.bias_gradient == Product::Sums::none) return;
  const DType type = accumulator(p.in);
  if (p.bias_gradient == Product::Sums::written) {
    args.bias_gradient.out = inputs.output("bias_gradient", {p.m}, type, layout);
  } else {
    args.bias_gradient = {
        inputs.updated("bias_gradient", inputs.normal("bias_gradient", {p.m}, type, 1, layout)), 1};
  }
}

Case::Call make(const Product& p, Runtime& runtime) {
  Inputs inputs(runtime);
  GemmArgs args{.transpose_a = p.transpose_a,
                .transpose_b = p.transpose_b,
                .beta = p.beta,
                .double_sums = p.double_sums};
  args.a = p.transpose_a ? matrices(inputs, "a", p, p.k, p.m, p.broadcast_a)
                         : matrices(inputs, "a", p, p.m, p.k, p.broadcast_a);
  if (p.windows) {
    const Tensor values = inputs.normal("a", {args.a.size(0) + args.a.size(1)}, p.in);
    args.a = values.as_strided(args.a.shape(), std::array<int64_t, 2>{1, 1});
  }
  args.b = p.transpose_b ? matrices(inputs, "b", p, p.n, p.k, p.broadcast_b)
                         : matrices(inputs, "b", p, p.k, p.n, p.broadcast_b);
  if (p.bias) args.bias = inputs.normal("bias", {p.n}, p.in, 1, {.offset = p.layout.offset});
  const Shape shape = p.groups == 0 ? Shape{p.m, p.n} : Shape{p.groups, p.m, p.n};
  args.out = p.beta == 0 ? inputs.output("out", shape, p.out, p.layout)
                         : inputs.updated("out", inputs.normal("out", shape, p.out, 1, p.layout));
  add_epilogue(p, inputs, args);
  return inputs.call([args](Stream& stream, const Table& table) { table.gemm(args, stream); });
}

// The rounding errors of a sum of K normal products grow to 0.4 sqrt(K) u of its rms sqrt(K). An
// epilogue adds a function within 8 u (cases/activation.cpp), applied to sums that may have been
// rounded. f64 sums of other types are rounded once, except those of a bias gradient.
double bound(const Product& p) {
  if (p.double_sums && p.in != DType::f64 && p.bias_gradient == Product::Sums::none)
    return tolerance(p.out, 1);
  const double walk = 1 + 0.4 * std::sqrt(static_cast<double>(p.k));
  return p.epilogue == Epilogue::none ? tolerance(p.out, walk) : 2 * tolerance(p.out, walk + 8);
}

Case gemm_case(const Product& p) {
  return {.kernel = "gemm",
          .name = p.str(),
          .dtype = p.in,
          .tolerance = bound(p),
          .real = p.real,
          .large = p.large,
          .make = [p](Runtime& runtime) { return make(p, runtime); }};
}

// y = x w^T [+ bias], dx = dy w, dw += dy^T x; w [out, in].
void add_layer(std::vector<Product>& list, DType type, int64_t tokens, int64_t out, int64_t in,
               bool bias, DType y) {
  list.push_back({.m = tokens,
                  .k = in,
                  .n = out,
                  .transpose_b = true,
                  .bias = bias,
                  .in = type,
                  .out = y,
                  .real = true});
  list.push_back({.m = tokens, .k = out, .n = in, .in = type, .out = type, .real = true});
  list.push_back(
      {.m = out, .k = tokens, .n = in, .transpose_a = true, .beta = 1, .in = type, .real = true});
}

// The feed-forward block of a Llama of 8 billion parameters, 4096 tokens.
std::vector<Product> large_products() {
  std::vector<Product> list;
  for (const auto& [out, in] : {std::pair{28672, 4096}, {4096, 14336}})
    add_layer(list, DType::bf16, 4096, out, in, false, DType::bf16);
  for (Product& p : list) p.large = true;
  return list;
}

// GPT-2 124M and a Llama of 160M parameters, 4 x 1024 tokens: qkv, attention's output, feed-forward
// up and down, and the logits of a chunk of tokens; also the scores of composed attention.
std::vector<Product> real_products(DType type) {
  std::vector<Product> list;
  for (const auto& [out, in] : {std::pair{2304, 768}, {768, 768}, {3072, 768}, {768, 3072}})
    add_layer(list, type, 4096, out, in, true, type);
  add_layer(list, type, 640, 50257, 768, false, DType::f32);
  for (const auto& [out, in] : {std::pair{1280, 768}, {6144, 768}})
    add_layer(list, type, 4096, out, in, false, type);
  add_layer(list, type, 1024, 32000, 768, false, DType::f32);
  list.push_back({.m = 1024,
                  .k = 64,
                  .n = 1024,
                  .transpose_b = true,
                  .in = type,
                  .out = type,
                  .groups = 12,
                  .heads = true,
                  .real = true});
  return list;
}

// Products of a router with 64 experts: logits and, in f32, the gradients of input, weight and
// bias, which are computed from copies in that type.
std::vector<Product> router_products(DType type, int64_t tokens, int64_t width) {
  constexpr int64_t kExperts = 64;
  std::vector<Product> list = {{.m = tokens,
                                .k = width,
                                .n = kExperts,
                                .transpose_b = true,
                                .bias = true,
                                .in = type,
                                .double_sums = true}};
  if (type != DType::f32) return list;
  list.push_back({.m = tokens, .k = kExperts, .n = width, .double_sums = true});
  list.push_back({.m = kExperts,
                  .k = tokens,
                  .n = width,
                  .transpose_a = true,
                  .beta = 1,
                  .bias_gradient = Product::Sums::added,
                  .double_sums = true});
  return list;
}

void add_double_sums(std::vector<Product>& list, DType type) {
  const DType out = accumulator(type);
  for (const auto& [a, b] : {std::pair{false, false}, {false, true}, {true, false}, {true, true}}) {
    const Product p{.m = 7,
                    .k = 13,
                    .n = 33,
                    .transpose_a = a,
                    .transpose_b = b,
                    .in = type,
                    .out = out,
                    .double_sums = true};
    list.push_back(p);
    list.push_back(p);
    list.back().m = 70;
    list.back().k = 530;
    list.back().beta = 1;
    list.back().bias = true;
    list.back().layout = kMisaligned;
  }
  list.push_back(
      {.m = 3, .k = 0, .n = 5, .bias = true, .in = type, .out = out, .double_sums = true});
  list.push_back({.m = 0, .k = 4, .n = 5, .in = type, .out = out, .double_sums = true});
}

// Products of a GPT's feed-forward block: up-projection with GELU, the gradient that returns
// through it, and the gradients of weights and biases; sizes that are multiples of 8, and sizes
// that are not.
std::vector<Product> epilogues(DType type, int64_t tokens, int64_t width, int64_t inner) {
  std::vector<Product> list;
  const Product up{.m = tokens,
                   .k = width,
                   .n = inner,
                   .transpose_b = true,
                   .bias = true,
                   .in = type,
                   .out = type,
                   .epilogue = Epilogue::gelu,
                   .aux = true};
  list.push_back(up);
  list.push_back({.m = tokens,
                  .k = width,
                  .n = inner,
                  .in = type,
                  .out = type,
                  .epilogue = Epilogue::gelu_gradient});
  list.push_back({.m = inner,
                  .k = tokens,
                  .n = width,
                  .transpose_a = true,
                  .beta = 1,
                  .in = type,
                  .out = accumulator(type),
                  .bias_gradient = Product::Sums::added});
  return list;
}

void add_small_epilogues(std::vector<Product>& list, DType type) {
  for (const auto& [tokens, width, inner] : {std::tuple{7, 13, 33}, {40, 24, 72}, {0, 4, 8}}) {
    for (Product p : epilogues(type, tokens, width, inner)) {
      list.push_back(p);
      if (p.m == 7 || p.bias_gradient != Product::Sums::none) {
        p.layout = {.offset = 3};
        list.push_back(p);
      }
      if (p.epilogue == Epilogue::gelu) {
        p.aux = p.bias = false;
        list.push_back(p);
        p.aux = true;
        list.push_back(p);
        p.aux = false;
        p.bias = true;
        list.push_back(p);
      }
      if (p.bias_gradient != Product::Sums::none) {
        p.layout = {};
        p.bias_gradient = Product::Sums::written;
        list.push_back(p);
      }
    }
  }
  // Computes only the bias gradient.
  list.push_back({.m = 5,
                  .k = 9,
                  .n = 0,
                  .transpose_a = true,
                  .in = type,
                  .out = accumulator(type),
                  .bias_gradient = Product::Sums::added});
}

}  // namespace

void add_gemm_cases(std::vector<Case>& cases) {
  const auto add = [&](const Product& p) { cases.push_back(gemm_case(p)); };
  for (const DType type : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    for (const auto& [a, b] :
         {std::pair{false, false}, {false, true}, {true, false}, {true, true}}) {
      add({.m = 7, .k = 13, .n = 33, .transpose_a = a, .transpose_b = b, .in = type, .out = type});
      add({.m = 65,
           .k = 130,
           .n = 97,
           .transpose_a = a,
           .transpose_b = b,
           .in = type,
           .out = type,
           .layout = kPadded});
    }
    add({.in = type, .out = type});
    add({.m = 1, .k = 257, .n = 2, .in = type, .out = type});
    add({.m = 2, .k = 1, .n = 33, .bias = true, .in = type, .out = type});
    add({.m = 7,
         .k = 33,
         .n = 5,
         .beta = 1,
         .bias = true,
         .in = type,
         .out = type,
         .layout = kMisaligned});
    add({.m = 3, .k = 0, .n = 5, .bias = true, .in = type, .out = type});
    add({.m = 3, .k = 0, .n = 5, .beta = 1, .in = type, .out = type});
    add({.m = 0, .k = 4, .n = 5, .in = type, .out = type});
    add({.m = 4, .k = 4, .n = 0, .in = type, .out = type});
    add({.m = 7, .k = 16, .n = 9, .in = type, .out = type, .groups = 3});
    add({.m = 17,
         .k = 33,
         .n = 17,
         .transpose_b = true,
         .in = type,
         .out = type,
         .groups = 5,
         .heads = true});
    add({.m = 7,
         .k = 8,
         .n = 5,
         .beta = 1,
         .in = type,
         .out = type,
         .groups = 2,
         .broadcast_b = true});
    add({.m = 7,
         .k = 8,
         .n = 5,
         .transpose_a = true,
         .in = type,
         .out = type,
         .groups = 4,
         .broadcast_a = true});
    add({.m = 128, .k = 192, .n = 256, .transpose_b = true, .bias = true, .in = type, .out = type});
    add({.m = 9, .k = 33, .n = 7, .in = type, .out = type, .windows = true});
    add({.m = 9, .k = 33, .n = 7, .transpose_a = true, .in = type, .out = type, .windows = true});
    std::vector<Product> more;
    add_small_epilogues(more, type);
    add_double_sums(more, type);
    for (const Product& p : more) add(p);
  }
  for (const DType type : {DType::bf16, DType::f16}) {
    add({.m = 7, .k = 40, .n = 24, .transpose_b = true, .bias = true, .in = type});
    for (const float beta : {0.0f, 1.0f}) {
      add({.m = 33, .k = 70, .n = 17, .transpose_a = true, .beta = beta, .in = type});
      add({.m = 64,
           .k = 128,
           .n = 96,
           .transpose_a = true,
           .beta = beta,
           .in = type,
           .layout = kPadded});
    }
  }
  for (const DType type : {DType::f32, DType::bf16}) {
    for (Product p : router_products(type, 40, 72)) add(p);
    for (Product p : router_products(type, 4096, 2048)) {
      p.real = true;
      add(p);
    }
  }
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    for (const Product& p : real_products(type)) add(p);
    if (type == DType::bf16)
      for (const Product& p : large_products()) add(p);
    for (Product p : epilogues(type, 4096, 768, 3072)) {
      p.real = true;
      add(p);
    }
  }
}

}  // namespace megatron::kernels
