// `megatron eval --compare DIR`: losses of two models on the same domains, such as before and after
// fine-tuning.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "training/evaluation.h"

namespace megatron::training {

// Losses of one domain, in nats per token.
struct DomainLosses {
  std::string domain;  // the file or pattern
  int64_t documents = 0, tokens = 0;
  double before = 0, after = 0;
  // Standard error of after - before, over documents as a sample, each with both of its losses;
  // NaN for a single document.
  double error = 0;
};

// before, after: the same documents, evaluated by both models.
DomainLosses domain_losses(std::string domain, const EvaluationResult& before,
                           const EvaluationResult& after);

Json comparison_json(const std::vector<DomainLosses>& domains);
std::string comparison_table(const std::vector<DomainLosses>& domains);

}  // namespace megatron::training
