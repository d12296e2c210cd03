#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "kernels/cases/inputs.h"

namespace megatron::kernels {
namespace {

struct Lookup {
  int64_t tokens = 1, vocabulary = 1, width = 1;
  float beta = 0;  // backward
  // Rows of a table, with `first` rows before this part and as many after it.
  int64_t first = 0;
  bool part = false, keeps = false;
  Layout layout;
  bool real = false;
  DType type = DType::f32;

  std::string str() const {
    return fmt::format("t={} v={} h={} {}{}", tokens, vocabulary, width, describe(type, layout),
                       part ? fmt::format(" part from {}{}", first, keeps ? " kept" : "") : "");
  }
  Tensor ids(Inputs& inputs) const {
    const int64_t all = std::max<int64_t>(1, vocabulary + 2 * first);
    return inputs.integers("ids", {tokens}, DType::i32, 0, part ? all : vocabulary);
  }
};

EmbeddingArgs embedding_args(Inputs& inputs, const Lookup& l) {
  const Shape out = {l.tokens, l.width};
  return {.ids = l.ids(inputs),
          .table = inputs.normal("table", {l.vocabulary, l.width}, l.type, 1, l.layout),
          .out = l.keeps ? inputs.updated("out", inputs.normal("out", out, l.type, 1, l.layout))
                         : inputs.output("out", out, l.type, l.layout),
          .first = l.first,
          .part = l.part,
          .keeps = l.keeps};
}

EmbeddingBackwardArgs embedding_backward_args(Inputs& inputs, const Lookup& l) {
  const Shape table = {l.vocabulary, l.width};
  return {l.ids(inputs), inputs.normal("dout", {l.tokens, l.width}, l.type, 1, l.layout),
          inputs.sum("dtable", table, accumulator(l.type), l.beta, l.layout), l.first, l.part};
}

// A row adds up T / V gradients on average; in a sparse table, the rows that occur have larger
// elements than the rms.
Case embedding_backward_case(const Lookup& l) {
  Case made =
      case_of(&Table::embedding_backward, l,
              tolerance(accumulator(l.type), 2 + std::sqrt(l.tokens)), embedding_backward_args);
  if (l.beta != 0) made.name += " accumulated";
  return made;
}

std::vector<Lookup> embedding_shapes() {
  return in_types<Lookup>({
      {},
      {.tokens = 7, .vocabulary = 5, .width = 33, .layout = kMisaligned},
      {.tokens = 7, .vocabulary = 50, .width = 33, .beta = 1, .layout = kMisaligned},
      {.tokens = 0, .vocabulary = 5, .width = 4},
      {.tokens = 0, .vocabulary = 6, .width = 4, .beta = 1},
      {.tokens = 300, .vocabulary = 17, .width = 64, .beta = 1},
      {.tokens = 40, .vocabulary = 7, .width = 33, .first = 5, .part = true, .layout = kMisaligned},
      {.tokens = 40, .vocabulary = 7, .width = 16, .beta = 1, .first = 9, .part = true},
      {.tokens = 700, .vocabulary = 3, .width = 133},
      {.tokens = 6, .vocabulary = 0, .width = 8, .first = 9, .part = true},
      {.tokens = 4096, .vocabulary = 50257, .width = 768, .beta = 1, .real = true},
      {.tokens = 4096, .vocabulary = 32000, .width = 768, .beta = 1, .real = true},
  });
}

std::vector<Lookup> kept_shapes() {
  return in_types<Lookup>(
      {{.tokens = 40,
        .vocabulary = 7,
        .width = 33,
        .first = 5,
        .part = true,
        .keeps = true,
        .layout = kMisaligned},
       {.tokens = 40, .vocabulary = 2, .width = 64, .first = 6, .part = true, .keeps = true}});
}

}  // namespace

void add_embedding_cases(std::vector<Case>& cases) {
  for (const Lookup& l : kept_shapes())  // a copy
    cases.push_back(case_of(&Table::embedding, l, tolerance(DType::f64, 1), embedding_args));
  for (const Lookup& l : embedding_shapes())  // a copy
    cases.push_back(case_of(&Table::embedding, l, tolerance(DType::f64, 1), embedding_args));
  for (const Lookup& l : embedding_shapes()) cases.push_back(embedding_backward_case(l));
}

}  // namespace megatron::kernels
