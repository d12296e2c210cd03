// What a step minimizes, if it is not the mean loss of the next tokens.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "autograd/metrics.h"
#include "comm/group.h"
#include "corpus/batch.h"
#include "device/stream.h"
#include "parallel/ranks.h"

namespace megatron::training {

// What a micro-batch adds to a step.
struct ObjectiveTerms {
  double loss = 0;  // sum over what counts
  struct Metric {
    std::string_view name;
    double value = 0, weight = 0;  // a mean of `weight` items; the step's is over all of them
  };
  std::vector<Metric> metrics;  // in the order of Objective::metrics()
};

// A function of the values that the whole forward pass of a micro-batch gave its tokens. It is
// computed on the host in fp64, so that every layout and back-end has the same. The loss of a step
// is the sum of its terms divided by the sum of counted(), both over all micro-batches and ranks;
// so are the gradients. Batches have whole sequences, also where context-parallel ranks divide
// them.
class Objective {
 public:
  virtual ~Objective() = default;
  // True if it needs, for each label, also the logarithm of the sum of squared probabilities of the
  // next token.
  virtual bool reads_squares() const { return false; }
  // How many items of a micro-batch count: sequences, pairs; default: tokens.
  virtual double counted(const corpus::HostBatch& batch) const { return batch.counted(); }
  // values [B*S, W]: with W = 1 the log-probability of each token's label, 0 where batch.loss_mask
  // is 0, with reads_squares() W = 2; or, of a model that scores texts, the W scores of each token,
  // or, of one without a head, its hidden state. Writes the gradient of `loss` with respect to them
  // to `gradient` [B*S, W], which is zero before; log-probabilities' is not read where the mask is
  // 0. Called for the micro-batches of a step in any order, and for single sequences in evaluation.
  virtual ObjectiveTerms evaluate(const corpus::HostBatch& batch, std::span<const double> values,
                                  std::span<double> gradient) const = 0;
  // Definitions of the metrics that evaluate() reports; all are means.
  virtual std::vector<MetricDefinition> metrics() const { return {}; }
};

// The values of whole sequences [B*S, W] on the host, from those of the tokens that this rank holds
// [T] or [T, W]. context: the ranks that hold the others; null: none do. Collective over them.
// Without data: empty.
std::vector<double> values_of_sequences(const Tensor& values, const corpus::HostBatch& batch,
                                        comm::Group* context, Runtime& runtime);
// True on the first of the ranks that hold parts of the same sequences, which counts them.
bool leads_context(const parallel::Ranks& ranks);
// Gradients of the tokens that this rank holds, of those of whole sequences.
std::vector<double> held_gradients(std::span<const double> gradients,
                                   const corpus::HostBatch& batch);

}  // namespace megatron::training
