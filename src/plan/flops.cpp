#include "plan/flops.h"

#include "plan/megatron_flops.h"
#include "plan/recorder.h"

namespace megatron::plan {

double executed_flops(const models::Stage& whole, Runtime& meta, const models::TextLength& length) {
  for (parallel::ParameterSpec* placed : whole.parameters()) {
    Parameter& p = placed->parameter;
    for (Parameter::Use& use : p.uses)
      if (p.trainable)
        use = {.grad = Tensor::empty(meta.arena(MemoryClass::gradients), p.value.shape(),
                                     kernels::accumulator(p.value.dtype()), p.name)};
  }
  const auto made = [&](int64_t count, DType type) {
    return Tensor::empty(meta.arena(MemoryClass::activations), {count}, type, "flops.batch");
  };
  nn::Batch batch{.layout = {.sequences = 1, .length = length.tokens}};
  const DType type = kernels::accumulator(whole.parameters()[0]->parameter.value.dtype());
  batch.tokens = batch.labels = batch.positions = made(length.tokens, DType::i32);
  batch.loss_weights = batch.targets = made(length.tokens, type);
  const models::ModelFacts& facts = whole.model()->facts();
  if (facts.token_types > 0) batch.token_types = batch.tokens;
  if (facts.left_out_token >= 0) batch.embedding_factors = batch.loss_weights;
  batch.sample_ids = made(1, DType::i64);
  nn::Batch encoder{.layout = {.sequences = 1, .length = length.encoder}};
  if (facts.encoder_layers > 0) {
    encoder.tokens = encoder.positions = made(length.encoder, DType::i32);
    encoder.sample_ids = batch.sample_ids;
    batch.encoder = &encoder;
  }
  for (int64_t k = 0; k < facts.prediction.depths; ++k)
    batch.predicted.push_back({.tokens = batch.tokens,
                               .labels = batch.labels,
                               .loss_weights = batch.loss_weights,
                               .counts = batch.loss_weights});
  Recorder recorder;
  meta.stream().watch(&recorder);
  Tape tape(meta);
  const Bundle out = models::forward(whole, tape, {}, batch, models::Phase::train);
  models::head_loss(whole, tape, out, batch);
  if (facts.pair_head) {
    const Var pairs = whole.pair_logits(tape, out);
    tape.set_gradient(pairs,
                      Tensor::empty(meta.arena(MemoryClass::activations), pairs.value.shape(),
                                    pairs.value.dtype(), "flops.pairs"));
  }
  tape.backward();
  meta.stream().watch(nullptr);
  double flops = 0;
  for (const WorkItem& item : recorder.take().kernels) {
    const auto calls = static_cast<double>(item.calls);
    if (item.kernel.starts_with("state_scan")) {
      // The products of the recurrence: x b^T and S c; backward has two for each. Chunks have
      // others, which are not counted.
      const Shape &x = item.operands.at(0).shape, &b = item.operands.at(2).shape;
      const auto state = static_cast<double>(x.elements() * b[3]);
      flops += calls * 4 * state * (item.kernel == "state_scan" ? 1 : 2);
      continue;
    }
    const bool forward = item.kernel == "attention";
    if (!forward && item.kernel != "attention_backward") {
      flops += calls * item.cost.flops;
      continue;
    }
    // Causal attention counts half of each token's pair with itself. The scores that backward
    // computes again are not counted.
    const Shape &q = item.operands.at(0).shape, &v = item.operands.at(2).shape;
    const auto key = static_cast<double>(q[3]), value = static_cast<double>(v[3]),
               rows = static_cast<double>(q[0] * q[1] * q[2]),
               halves = kernels::is_causal_form(item.form) ? rows : 0;
    const double executed = forward ? key + value : 3 * key + 2 * value,
                 counted = (forward ? 1 : 2) * (key + value);
    flops += calls * (item.cost.flops * counted / executed - halves * counted);
  }
  return flops;
}

std::vector<FlopCount> step_flops(const models::Model& model, double of_sequence,
                                  int64_t padded_vocabulary, int64_t sequences, int64_t length) {
  const FlopCount own{std::string(kModelFlops), static_cast<double>(sequences) * of_sequence};
  // Megatron-LM's formulas know one stack of layers, of one block after another.
  const models::ModelFacts& facts = model->facts();
  if (facts.encoder_layers > 0 || (facts.state_space && facts.hybrid_pattern.empty())) return {own};
  const MegatronShape shape = megatron_shape(facts, padded_vocabulary);
  const Tokens tokens = Tokens::alike(sequences, length);
  const auto megatron = [&](Attention attention) {
    return megatron_flops(shape, attention).total(tokens);
  };
  return {own,
          {std::string(kMegatronFlops), megatron(Attention::causal)},
          {std::string(kMegatronFullAttentionFlops), megatron(Attention::full)}};
}

}  // namespace megatron::plan
