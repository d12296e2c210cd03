#include "training/engine_comparison.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/progress.h"
#include "corpus/batch.h"
#include "inference/generate.h"

namespace megatron::training {
namespace {

// The log-probability of each token but the first.
std::vector<double> of_training(const models::Stage& stage, Runtime& runtime, DType type,
                                const std::vector<int32_t>& ids) {
  const auto length = std::ssize(ids);
  corpus::HostBatch host{.layout = {.sequences = 1, .length = length}};
  host.tokens = ids;
  host.labels.assign(ids.begin() + 1, ids.end());
  host.labels.push_back(0);
  host.loss_mask.assign(ids.size(), 1);
  host.loss_mask.back() = 0;
  host.sample_ids = {0};
  for (int64_t t = 0; t < length; ++t) host.positions.push_back(static_cast<int32_t>(t));
  corpus::DeviceBatch device(runtime, type);
  const nn::Batch& batch = device.fill(host, stage.model(), settings::LossScope::token);
  device.list_labelled(host);
  Tape tape(runtime, Tape::Mode::infer);
  const Bundle out = models::forward(stage, tape, {}, batch, models::Phase::evaluate);
  const Tensor values = models::head_objective_values(stage, tape, out, batch).value;
  runtime.stream().synchronize();
  std::vector<double> all = to_doubles(values);
  all.pop_back();
  return all;
}

std::vector<std::vector<double>> of_engine(const models::Stage& stage, Runtime& runtime,
                                           const std::vector<std::vector<int32_t>>& texts,
                                           const inference::EngineOptions& options) {
  std::vector<inference::Request> requests;
  for (const std::vector<int32_t>& ids : texts)
    requests.push_back({.number = requests.size(), .prompt = ids, .max_tokens = 0, .logprobs = 0});
  std::vector<std::vector<double>> all;
  for (inference::Generation& one : inference::generate(stage, runtime, requests, options))
    all.push_back(std::move(one.prompt_log_probabilities));
  return all;
}

void compare(const std::vector<double>& training, const std::vector<double>& engine,
             EngineComparison::Way& way) {
  MG_ASSERT(training.size() == engine.size());
  for (size_t t = 0; t < training.size(); ++t) {
    if (training[t] == engine[t]) continue;
    ++way.different;
    const double difference = std::abs(training[t] - engine[t]);
    // A NaN counts as infinite.
    way.largest = std::max(way.largest, std::isnan(difference) ? INFINITY : difference);
  }
}

}  // namespace

Json EngineComparison::json() const {
  const auto of = [](const Way& way) {
    return Json(Json::Object{{"different", way.different},
                             {"largest", std::isfinite(way.largest) ? Json(way.largest) : Json()}});
  };
  return Json::Object{
      {"texts", texts}, {"tokens", tokens}, {"at_once", of(at_once)}, {"by_token", of(by_token)}};
}

std::string EngineComparison::text() const {
  std::string text =
      fmt::format("log-probabilities of {} tokens of {} texts, in training and in the engine:\n",
                  tokens, texts);
  for (const auto& [name, way] :
       {std::pair{"prompts at once", at_once}, std::pair{"token by token", by_token}})
    text += way.different == 0 ? fmt::format("  {}: equal in every bit, difference 0\n", name)
                               : fmt::format("  {}: {} differ, by at most {:.3g}\n", name,
                                             way.different, way.largest);
  return text;
}

EngineComparison compare_with_engine(const models::Stage& stage, Runtime& runtime,
                                     const corpus::Documents& documents,
                                     const inference::EngineOptions& options) {
  constexpr int64_t kTogether = 16;
  const int64_t longest = options.longest_text(stage.model());
  const DType type = stage.parameters()[0]->parameter.value.dtype();
  inference::EngineOptions by_token = options;
  by_token.max_tokens = by_token.max_requests = 1;
  EngineComparison result;
  Progress progress("comparing", documents.size(), "texts");
  for (int64_t first = 0; first < documents.size(); first += kTogether) {
    std::vector<std::vector<int32_t>> texts;
    for (int64_t d = first; d < std::min(first + kTogether, documents.size()); ++d) {
      std::vector<int64_t> ids(static_cast<size_t>(std::min(documents.tokens(d), longest)));
      documents.read(d, 0, ids);
      if (ids.size() > 1) texts.emplace_back(ids.begin(), ids.end());
    }
    const auto at_once = of_engine(stage, runtime, texts, options),
               one_by_one = of_engine(stage, runtime, texts, by_token);
    for (size_t i = 0; i < texts.size(); ++i) {
      const std::vector<double> training = of_training(stage, runtime, type, texts[i]);
      compare(training, at_once[i], result.at_once);
      compare(training, one_by_one[i], result.by_token);
      ++result.texts;
      result.tokens += std::ssize(training);
    }
    progress.update(std::min(first + kTogether, documents.size()));
  }
  MG_CHECK(result.texts > 0, "no text has two tokens, so that there is nothing to compare");
  return result;
}

}  // namespace megatron::training
