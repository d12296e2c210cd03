#include "training/model_comparison.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/columns.h"
#include "base/error.h"

namespace megatron::training {

DomainLosses domain_losses(std::string domain, const EvaluationResult& before,
                           const EvaluationResult& after) {
  MG_ASSERT(before.documents.size() == after.documents.size());
  MG_CHECK(before.loss.tokens == after.loss.tokens,
           "{} has {} tokens for the model of --compare and {} for that of --load: the models have "
           "different tokenizers, so that their losses cannot be compared",
           domain, before.loss.tokens, after.loss.tokens);
  DomainLosses losses{.domain = std::move(domain),
                      .documents = std::ssize(after.documents),
                      .tokens = static_cast<int64_t>(after.loss.tokens),
                      .before = before.loss.mean(),
                      .after = after.loss.mean()};
  // The difference is a ratio of sums over documents; its error by linearization (Cochran 1977,
  // section 2.11).
  const double mean = losses.after - losses.before, count = static_cast<double>(losses.documents);
  double squares = 0;
  for (size_t d = 0; d < after.documents.size(); ++d) {
    const LossSum &old = before.documents[d].loss, &now = after.documents[d].loss;
    const double residual = now.sum - old.sum - mean * now.tokens;
    squares += residual * residual;
  }
  losses.error = count < 2 ? NAN : std::sqrt(squares * count / (count - 1)) / after.loss.tokens;
  return losses;
}

Json comparison_json(const std::vector<DomainLosses>& domains) {
  Json::Array all;
  for (const DomainLosses& d : domains)
    all.emplace_back(
        Json::Object{{"domain", d.domain},
                     {"documents", d.documents},
                     {"tokens", d.tokens},
                     {"before", d.before},
                     {"after", d.after},
                     {"difference", d.after - d.before},
                     {"standard_error", std::isfinite(d.error) ? Json(d.error) : Json()}});
  return Json::Object{{"domains", std::move(all)}};
}

std::string comparison_table(const std::vector<DomainLosses>& domains) {
  std::vector<std::vector<std::string>> rows = {
      {"domain", "tokens", "before", "after", "difference"}};
  for (const DomainLosses& d : domains)
    rows.push_back({d.domain, std::to_string(d.tokens), fmt::format("{:.4f}", d.before),
                    fmt::format("{:.4f}", d.after),
                    fmt::format("{:+.4f}{}", d.after - d.before,
                                std::isfinite(d.error) ? fmt::format(" +- {:.4f}", d.error) : "")});
  return aligned_columns(rows, {false, true, true, true, true}) +
         "loss in nats per token; +- one standard error over documents\n";
}

}  // namespace megatron::training
