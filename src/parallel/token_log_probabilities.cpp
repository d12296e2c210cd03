// T tokens, R of them with a label; C of these in a chunk; hidden size H; V logits of this rank.
#include "parallel/token_log_probabilities.h"

#include <algorithm>
#include <utility>

#include "ops/columns.h"
#include "ops/linear_cross_entropy.h"
#include "parallel/chunk_losses.h"
#include "parallel/collectives.h"
#include "parallel/vocabulary.h"

namespace megatron::parallel {
namespace {

struct OutputLayer {
  int64_t first = 0;  // index in the vocabulary of this rank's first row
  double soft_cap = 0;
  TensorParallel tp;
  ops::LowRank adapter;
  Weight bias;  // of this rank's rows; or none
};

// The output layer over chunks of the labelled tokens. Scratch memory for one chunk is allocated
// once.
class ChunkedHead {
 public:
  enum class Computes { values, gradients, entropies };

  ChunkedHead(Tape& tape, const Weight& weight, const LabelledTokens& tokens,
              const OutputLayer& layer, const Tensor& x_TH, Computes computes)
      : tape_(tape),
        weight_(weight),
        tokens_(tokens),
        layer_(layer),
        products_(weight, layer.bias, tape),
        x_TH_(x_TH),
        sums_(kernels::accumulator(x_TH.dtype())),
        dense_(layer.soft_cap > 0 || layer.bias || computes == Computes::entropies ||
               tokens.squares) {
    const int64_t columns = weight.value().size(0), labelled = tokens.rows.elements();
    const int64_t share =
        std::max<int64_t>(1, largest_vocabulary_share(layer.first, columns, layer.tp.rank()));
    rows_ = std::min(ops::loss_chunk_rows(share, tape.stream().target()),
                     std::max<int64_t>(labelled, 1));
    x_CH_ = scratch({rows_, x_TH.size(1)}, x_TH.dtype(), "head.x");
    adapted_TH_ = ops::low_rank_input(layer.adapter, tape, x_TH);
    adapted_CH_ = drops() ? scratch(x_CH_.shape(), x_TH.dtype(), "head.adapter's x") : x_CH_;
    values_C_ = scratch({rows_}, sums_, "head.values");
    weights_C_ = scratch({rows_}, sums_, "head.weights");
    logits_CV_ = chunk_of_logits(sums_, "head.logits");
    if (computes == Computes::values) return;
    const DType type = computes == Computes::entropies ? sums_ : x_TH.dtype();
    dlogits_CV_ = type != sums_ || dense_ ? chunk_of_logits(type, "head.dlogits") : logits_CV_;
    exponentials_CV_ = dense_ ? chunk_of_logits(sums_, "head.exponentials") : logits_CV_;
    if (computes == Computes::entropies) return;
    dx_CH_ = scratch({rows_, x_TH.size(1)}, x_TH.dtype(), "head.dx");
    adapted_dx_CH_ = drops() ? scratch(x_CH_.shape(), x_TH.dtype(), "head.adapter's dx") : dx_CH_;
  }

  // Log-probabilities [T], and with tokens.squares the logarithms of the sums of squares [T].
  void forward(const Tensor& out_T, const Tensor& squares_T) {
    const kernels::Table& table = tape_.kernels();
    table.fill({.out = out_T, .value = 0}, tape_.stream());
    if (tokens_.squares) table.fill({.out = squares_T, .value = 0}, tape_.stream());
    table.fill({.out = weights_C_, .value = 1}, tape_.stream());
    const Tensor squares_C = tokens_.squares ? scratch({rows_}, sums_, "head.squares") : Tensor();
    for_each_chunk([&](int64_t begin, int64_t count) {
      const Tensor logits = logits_of(begin, count),
                   loss = losses_of(begin, logits, {}, layer_.soft_cap);
      table.scale({.factor = -1, .x = loss, .out = loss}, tape_.stream());
      put(loss.view({count, 1}), begin, out_T.view({out_T.size(0), 1}));
      if (!tokens_.squares) return;
      const Tensor squares = squares_C.slice(0, 0, count);
      table.scale({.factor = 2, .x = loss, .out = squares}, tape_.stream());
      add_doubled_losses(begin, logits, squares);
      put(squares.view({count, 1}), begin, squares_T.view({squares_T.size(0), 1}));
    });
  }

  // Entropies [R]. That of a token is its loss less the sum of the loss's gradient with respect to
  // the logits times these.
  void entropies(const Tensor& out_R) {
    const kernels::Table& table = tape_.kernels();
    const Tensor sums_C = scratch({rows_}, sums_, "head.sums");
    table.fill({.out = weights_C_, .value = 1}, tape_.stream());
    for_each_chunk([&](int64_t begin, int64_t count) {
      const Tensor logits = logits_of(begin, count), dlogits = dlogits_CV_.slice(0, 0, count),
                   sums = sums_C.slice(0, 0, count);
      if (layer_.soft_cap > 0)
        table.soft_cap({.cap = layer_.soft_cap, .x = logits, .out = logits}, tape_.stream());
      const Tensor loss = losses_of(begin, logits, dlogits, 0);
      table.scale_rows_backward({.x = logits,
                                 .factors = weights_C_.slice(0, 0, count),
                                 .dout = dlogits,
                                 .dx = dlogits,
                                 .dfactors = sums},
                                tape_.stream());
      if (!alone(layer_.tp.group)) sum_in_place(tape_, sums, *layer_.tp.group, "entropies");
      table.scale({.factor = -1, .x = sums, .out = sums}, tape_.stream());
      table.add({.a = loss, .b = sums, .out = out_R.slice(0, begin, count)}, tape_.stream());
    });
  }

  // Adds the weight's gradient to its slot, and writes that of x: dx_TH, unless undefined.
  void backward(const Tensor& dout_T, const Tensor& dx_TH) {
    const kernels::Table& table = tape_.kernels();
    if (dx_TH.defined()) table.fill({.out = dx_TH, .value = 0}, tape_.stream());
    ops::LowRankInputGradient adapted_dx(layer_.adapter, tape_, dx_TH);
    for_each_chunk([&](int64_t begin, int64_t count) {
      const Tensor weights = weights_C_.slice(0, 0, count),
                   dlogits = dlogits_CV_.slice(0, 0, count);
      take(dout_T.view({dout_T.size(0), 1}), begin, weights.view({count, 1}));
      table.scale({.factor = -1, .x = weights, .out = weights}, tape_.stream());
      losses_of(begin, logits_of(begin, count), dlogits, layer_.soft_cap);
      const Tensor dx = dx_TH.defined() ? dx_CH_.slice(0, 0, count) : Tensor();
      if (dx.defined()) products_.input_gradient(dlogits, dx);
      add_adapter_gradients(count, dlogits, dx);
      if (dx.defined()) put(dx, begin, dx_TH);
      if (dx.defined() && drops()) put(adapted_dx_CH_.slice(0, 0, count), begin, adapted_dx.sum());
      products_.weight_gradients(dlogits, x_CH_.slice(0, 0, count));
    });
    adapted_dx.finish();
  }

 private:
  // Adds the losses of twice the logits, which are overwritten. With z the logits, that of a label
  // is log sum e^(2z) - 2 z_label; less twice its loss: log sum e^(2z) - 2 log sum e^z.
  void add_doubled_losses(int64_t begin, const Tensor& logits, const Tensor& sum) {
    tape_.kernels().scale({.factor = 2, .x = logits, .out = logits}, tape_.stream());
    tape_.kernels().add({.a = losses_of(begin, logits, {}, 0), .b = sum, .out = sum},
                        tape_.stream());
  }

  bool drops() const { return ops::drops(layer_.adapter, tape_); }

  // Adds the gradient of the adapter's input to dx, or writes it to adapted_dx_CH_.
  void add_adapter_gradients(int64_t count, const Tensor& dlogits, const Tensor& dx) {
    const Tensor own = dx.defined() ? adapted_dx_CH_.slice(0, 0, count) : Tensor();
    if (own.defined() && drops()) tape_.kernels().fill({.out = own, .value = 0}, tape_.stream());
    ops::add_low_rank_gradients(layer_.adapter, tape_, inner_, dlogits,
                                adapted_CH_.slice(0, 0, count), own);
  }

  template <class F>
  void for_each_chunk(F&& f) {
    const int64_t labelled = tokens_.rows.elements();
    for (int64_t begin = 0; begin < labelled; begin += rows_)
      f(begin, std::min(rows_, labelled - begin));
  }

  Tensor scratch(const Shape& shape, DType type, const char* label) {
    return Tensor::empty(tape_.stream().scratch(), shape, type, label);
  }
  Tensor chunk_of_logits(DType type, const char* label) {
    return ops::loss_chunk(tape_.stream(), rows_, weight_.value().size(0), type, dense_, label);
  }

  // Copies the rows of labelled tokens [begin, begin + count) from x [T,N] to out [count,N]; empty
  // rows are zeros.
  void take(const Tensor& x, int64_t begin, const Tensor& out) {
    tape_.kernels().take_rows(
        {.x = x, .index = tokens_.rows.slice(0, begin, out.size(0)), .out = out}, tape_.stream());
  }
  // The inverse: from x [count,N] to their rows of out [T,N].
  void put(const Tensor& x, int64_t begin, const Tensor& out) {
    tape_.kernels().put_rows({.x = x.view({x.size(0), 1, x.size(1)}),
                              .rows = tokens_.rows.slice(0, begin, x.size(0)),
                              .out = out.view({1, out.size(0), 1, out.size(1)})},
                             tape_.stream());
  }

  // Logits of labelled tokens [begin, begin + count), not capped.
  Tensor logits_of(int64_t begin, int64_t count) {
    Tensor x = x_CH_.slice(0, 0, count), logits = logits_CV_.slice(0, 0, count);
    take(x_TH_, begin, x);
    products_.logits(x, logits);
    const Tensor adapted = adapted_CH_.slice(0, 0, count);
    if (drops()) take(adapted_TH_, begin, adapted);
    inner_ = ops::add_low_rank(tape_, layer_.adapter, adapted, logits);
    return logits;
  }

  // Cross entropy of the labelled tokens from `begin` on that have these logits, and if `dlogits`
  // is defined, the gradient of its sum weighted with weights_C_.
  Tensor losses_of(int64_t begin, const Tensor& logits, const Tensor& dlogits, double soft_cap) {
    const int64_t count = logits.size(0);
    LogitChunk chunk{.logits = logits,
                     .labels = tokens_.labels.slice(0, begin, count),
                     .weights = weights_C_.slice(0, 0, count),
                     .loss = values_C_.slice(0, 0, count),
                     .dlogits = dlogits};
    if (dlogits.defined()) chunk.exponentials = exponentials_CV_.slice(0, 0, count);
    chunk_losses(tape_, chunk, layer_.first, soft_cap, layer_.tp, "log_probabilities, stats");
    return chunk.loss;
  }

  Tape& tape_;
  const Weight& weight_;
  const LabelledTokens& tokens_;
  const OutputLayer& layer_;
  ops::OutputProducts products_;
  const Tensor& x_TH_;
  DType sums_;
  bool dense_;    // chunks of logits have no padding between rows
  int64_t rows_;  // of a chunk
  Tensor x_CH_, values_C_, weights_C_, logits_CV_;
  Tensor adapted_TH_, adapted_CH_;  // what the adapter multiplies, and a chunk of it
  Tensor dlogits_CV_, exponentials_CV_, dx_CH_, adapted_dx_CH_;  // for backward
  std::vector<Tensor> inner_;  // of the adapter, for the last chunk
};

// The rows of all tokens, from those between the matrix products.
Tensor all_rows(Tape& tape, const Tensor& x, const TensorParallel& tp) {
  if (!tp.divides_tokens()) return x;
  return gathered_rows(tape, x, *tp.group, "log_probabilities, x", MemoryClass::communication);
}

void log_probabilities_dgrad(Backward& backward) {
  const auto& layer = backward.attributes<OutputLayer>();
  Tape& tape = backward.tape();
  const Tensor x_TH = all_rows(tape, backward.saved(0), layer.tp);
  Tensor dx_TH;
  if (backward.needs(0))
    dx_TH = Tensor::empty(tape.runtime().arena(partial_memory(layer.tp)), x_TH.shape(),
                          x_TH.dtype(), "log_probabilities.dx");
  const LabelledTokens tokens{backward.saved(1), backward.saved(2)};
  ChunkedHead(tape, backward.weight(0), tokens, layer, x_TH, ChunkedHead::Computes::gradients)
      .backward(backward.gradient(0), dx_TH);
  if (!dx_TH.defined()) return;
  if (!alone(layer.tp.group)) {
    PendingSum sum;
    sum.begin(tape, dx_TH, layer.tp, "log_probabilities, gradient");
    sum.wait(tape.stream());
    dx_TH = sum.result;
  }
  backward.set(0, dx_TH);
}

}  // namespace

Var token_log_probabilities(Tape& tape, const Var& x, const Weight& weight, int64_t first,
                            const LabelledTokens& tokens, const TensorParallel& tp, double soft_cap,
                            const ops::LowRank& adapter, const Weight& bias) {
  const OutputLayer layer{first, soft_cap, tp, adapter, bias};
  const Tensor x_TH = all_rows(tape, x.value, tp);
  const Tensor out_T =
      tape.empty({x_TH.size(0)}, kernels::accumulator(x_TH.dtype()), "log_probabilities");
  Tensor squares_T;
  if (tokens.squares) squares_T = tape.empty(out_T.shape(), out_T.dtype(), "log_squares");
  ChunkedHead(tape, weight, tokens, layer, x_TH, ChunkedHead::Computes::values)
      .forward(out_T, squares_T);
  Node node{.name = "token_log_probabilities",
            .inputs = {x.id},
            .saved = {x.value, tokens.rows, tokens.labels},
            .weights = {weight},
            .dgrad = log_probabilities_dgrad};
  if (bias) node.weights.push_back(bias);
  ops::for_each_weight(adapter, [&](const Weight& w) { node.weights.push_back(w); });
  node.attributes = layer;
  const Var values = tape.record_one(std::move(node), out_T);
  return tokens.squares ? ops::join_columns(tape, values, Var(squares_T)) : values;
}

Tensor token_entropies(Tape& tape, const Tensor& x, const Weight& weight, int64_t first,
                       const LabelledTokens& tokens, const TensorParallel& tp, double soft_cap,
                       const ops::LowRank& adapter, const Weight& bias) {
  const OutputLayer layer{first, soft_cap, tp, adapter, bias};
  const Tensor x_TH = all_rows(tape, x, tp);
  Tensor out_R =
      tape.empty({tokens.rows.elements()}, kernels::accumulator(x_TH.dtype()), "entropies");
  ChunkedHead(tape, weight, tokens, layer, x_TH, ChunkedHead::Computes::entropies).entropies(out_R);
  return out_R;
}

}  // namespace megatron::parallel
