// What a step minimizes, if it is not the mean loss of the next tokens.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "autograd/metrics.h"
#include "corpus/batch.h"

namespace megatron::training {

// What a micro-batch adds to a step.
struct ObjectiveTerms {
  double loss = 0;  // sum over what counts
  struct Metric {
    std::string_view name;
    double value = 0, weight = 0;  // a mean of `weight` items; the step's is over all of them
  };
  std::vector<Metric> metrics;
};

// A function of the values that the whole forward pass of a micro-batch gave its tokens. It is
// computed on the host in fp64, so that every layout and back-end has the same. The loss of a step
// is the sum of its terms divided by the sum of counted(), both over all micro-batches and ranks;
// so are the gradients.
class Objective {
 public:
  virtual ~Objective() = default;
  // How many items of a micro-batch count: sequences, pairs; default: tokens.
  virtual double counted(const corpus::HostBatch& batch) const { return batch.counted(); }
  // values [B*S]: log-probability of each token's label, 0 where batch.loss_mask is 0. Writes the
  // gradient of `loss` with respect to them to `gradient` [B*S], which is zero before; it is not
  // read where the mask is 0. Called for the micro-batches of a step in any order.
  virtual ObjectiveTerms evaluate(const corpus::HostBatch& batch, std::span<const double> values,
                                  std::span<double> gradient) const = 0;
  // Definitions of the metrics that evaluate() reports; all are means.
  virtual std::vector<MetricDefinition> metrics() const { return {}; }
};

}  // namespace megatron::training
