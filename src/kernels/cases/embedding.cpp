#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "kernels/cases/inputs.h"

namespace megatron::kernels {
namespace {

struct Lookup {
  int64_t tokens = 1, vocabulary = 1, width = 1;
  DType type = DType::f32;
  float beta = 0;
  Layout layout;
  bool real = false;
  // Rows of a table, with `first` rows before this part and as many after it.
  int64_t first = 0;
  bool part = false;

  double elements() const { return static_cast<double>(tokens * width); }
  std::string str() const {
    return fmt::format("t={} v={} h={} {}{}", tokens, vocabulary, width, describe(type, layout),
                       part ? fmt::format(" part from {}", first) : "");
  }
  Tensor ids(Inputs& inputs) const {
    const int64_t all = std::max<int64_t>(1, vocabulary + 2 * first);
    return inputs.integers("ids", {tokens}, DType::i32, 0, part ? all : vocabulary);
  }
};

Case forward(const Lookup& l) {
  return {.kernel = "embedding",
          .name = l.str(),
          .dtype = l.type,
          .tolerance = tolerance(DType::f64, 1),  // a copy
          .real = l.real,
          .make = [l](Runtime& runtime) {
            Inputs inputs(runtime);
            const EmbeddingArgs args{
                l.ids(inputs), inputs.normal("table", {l.vocabulary, l.width}, l.type, 1, l.layout),
                inputs.output("out", {l.tokens, l.width}, l.type, l.layout), l.first, l.part};
            return inputs.call(
                [args](Stream& stream, const Table& table) { table.embedding(args, stream); });
          }};
}

Case backward(const Lookup& l) {
  const DType wide = accumulator(l.type);
  return {.kernel = "embedding_backward",
          .name = l.str() + (l.beta != 0 ? " accumulated" : ""),
          .dtype = l.type,
          // A row sums T / V gradients on average; in a sparse table, rows that occur exceed the
          // rms.
          .tolerance = tolerance(wide, 2 + std::sqrt(l.tokens)),
          .real = l.real,
          .make = [l, wide](Runtime& runtime) {
            Inputs inputs(runtime);
            const Shape shape{l.vocabulary, l.width};
            const EmbeddingBackwardArgs args{
                l.ids(inputs),
                inputs.normal("dout", {l.tokens, l.width}, l.type, 1, l.layout),
                {l.beta == 0
                     ? inputs.output("dtable", shape, wide, l.layout)
                     : inputs.updated("dtable", inputs.normal("dtable", shape, wide, 1, l.layout)),
                 l.beta},
                l.first,
                l.part};
            return inputs.call([args](Stream& stream, const Table& table) {
              table.embedding_backward(args, stream);
            });
          }};
}

std::vector<Lookup> embedding_shapes() {
  std::vector<Lookup> list;
  for (const DType type : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    list.push_back({.type = type});
    list.push_back(
        {.tokens = 7, .vocabulary = 5, .width = 33, .type = type, .layout = kMisaligned});
    list.push_back({.tokens = 7,
                    .vocabulary = 50,
                    .width = 33,
                    .type = type,
                    .beta = 1,
                    .layout = kMisaligned});
    list.push_back({.tokens = 0, .vocabulary = 5, .width = 4, .type = type});
    list.push_back({.tokens = 0, .vocabulary = 6, .width = 4, .type = type, .beta = 1});
    list.push_back({.tokens = 300, .vocabulary = 17, .width = 64, .type = type, .beta = 1});
    list.push_back({.tokens = 40,
                    .vocabulary = 7,
                    .width = 33,
                    .type = type,
                    .layout = kMisaligned,
                    .first = 5,
                    .part = true});
    list.push_back({.tokens = 40,
                    .vocabulary = 7,
                    .width = 16,
                    .type = type,
                    .beta = 1,
                    .first = 9,
                    .part = true});
    list.push_back({.tokens = 700, .vocabulary = 3, .width = 133, .type = type});
    list.push_back(
        {.tokens = 6, .vocabulary = 0, .width = 8, .type = type, .first = 9, .part = true});
    if (!trained(type)) continue;
    for (const int64_t vocabulary : {50257, 32000}) {
      list.push_back({.tokens = 4096,
                      .vocabulary = vocabulary,
                      .width = 768,
                      .type = type,
                      .beta = 1,
                      .real = true});
    }
  }
  return list;
}

}  // namespace

void add_embedding_cases(std::vector<Case>& cases) {
  for (const Lookup& l : embedding_shapes()) cases.push_back(forward(l));
  for (const Lookup& l : embedding_shapes()) cases.push_back(backward(l));
}

}  // namespace megatron::kernels
