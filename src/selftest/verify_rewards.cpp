#include "selftest/verify_rewards.h"

#include <fmt/core.h>

#include <cmath>
#include <filesystem>
#include <numeric>

#include "base/error.h"
#include "base/json.h"
#include "base/tolerances.h"
#include "models/stage.h"
#include "post_training/reward.h"
#include "selftest/objective_results.h"
#include "training/whole_model.h"

namespace megatron::selftest {
namespace {

namespace fs = std::filesystem;

std::vector<int32_t> ids_of(const Json& pair, const char* key) {
  std::vector<int32_t> ids;
  for (const Json& id : pair[key].as_array()) ids.push_back(static_cast<int32_t>(id.as_integer()));
  MG_CHECK(!ids.empty(), "pairs.json has a pair whose {} is empty", key);
  return ids;
}

// A row for each pair: both texts as documents, then padding.
corpus::HostBatch batch_of(const Json::Array& pairs, int64_t padding, int64_t multiple) {
  int64_t length = 0;
  for (const Json& pair : pairs)
    length = std::max(length, std::ssize(pair["chosen_ids"].as_array()) +
                                  std::ssize(pair["rejected_ids"].as_array()));
  length = (length + multiple - 1) / multiple * multiple;
  corpus::HostBatch batch{.layout = {.sequences = std::ssize(pairs), .length = length}};
  const auto tokens = static_cast<size_t>(batch.layout.rows());
  batch.tokens.assign(tokens, 0);
  batch.positions.assign(tokens, 0);
  batch.labels.assign(tokens, 0);
  batch.targets.assign(tokens, 0);
  batch.loss_mask.assign(tokens, 0);
  batch.segment_starts.resize(tokens);
  for (size_t i = 0; i < pairs.size(); ++i) {
    const auto row = i * static_cast<size_t>(length);
    std::iota(batch.segment_starts.begin() + static_cast<std::ptrdiff_t>(row),
              batch.segment_starts.begin() + static_cast<std::ptrdiff_t>(row) + length, 0);
    size_t at = row;
    for (const char* key : {"chosen_ids", "rejected_ids"}) {
      const std::vector<int32_t> ids = ids_of(pairs[i], key);
      const size_t begin = at;
      size_t scored = begin;
      for (const int32_t id : ids) {
        if (id != padding) scored = at;
        batch.tokens[at] = id;
        batch.positions[at] = static_cast<int32_t>(at - begin);
        batch.segment_starts[at++] = static_cast<int32_t>(begin - row);
      }
      batch.loss_mask[scored] = 1;
      if (begin == row) batch.targets[scored] = pairs[i]["margin"].as_number();
    }
    batch.sample_ids.push_back(static_cast<int64_t>(i));
  }
  return batch;
}

// Rewards of the chosen texts, then of the rejected ones.
std::vector<double> rewards_of(const corpus::HostBatch& batch, const ObjectiveResults& results) {
  std::vector<double> chosen, rejected;
  for (const auto& [sample, values] : results.values) {
    const size_t begin = static_cast<size_t>(sample) * values.size();
    bool first = true;
    for (size_t t = 0; t < values.size(); ++t) {
      if (batch.loss_mask[begin + t] == 0) continue;
      (first ? chosen : rejected).push_back(values[t]);
      first = false;
    }
  }
  chosen.insert(chosen.end(), rejected.begin(), rejected.end());
  return chosen;
}

void compare_rewards(const std::string& directory, DeviceKind device, const VerifyOptions& options,
                     Report& report) {
  const std::string start = directory + "/../models/reward";
  const models::Model model = models::model_from_directory(start);
  MG_CHECK(model->score_labels() == 1, "the model in {} has {} scores; a reward model has one",
           start, model->score_labels());
  const std::string table = training::whole_model(model, DType::f32).table;
  Expected expected(directory + "/expected.safetensors");
  const Json pairs = Json::read(directory + "/pairs.json"),
             cases = Json::read(directory + "/cases.json");
  const int64_t padding = model->facts().score_padding,
                multiple = std::lcm(options.length_multiple(),
                                    options.sequence_parallel ? options.tensor_parallel : 1);
  const corpus::HostBatch with_margins = batch_of(pairs.as_array(), padding, multiple);
  bool first = true;
  for (const auto& [name, settings] : cases.as_object()) {
    corpus::HostBatch batch = with_margins;
    if (!settings["margin"].as_bool()) std::ranges::fill(batch.targets, 0.0);
    const Json& center = settings["center_rewards_coefficient"];
    const ObjectiveResults results =
        objective_results(start, batch,
                          std::make_shared<const post_training::RewardObjective>(
                              center.is_null() ? 0 : center.as_number()),
                          device, options);
    const double loss = expected.doubles(name + ".loss")[0];
    report.compare("loss", name + ".loss", std::abs(results.loss - loss),
                   tolerance::kGoldenLossRelative * std::abs(loss));
    compare_gradients(expected, name + ".grad.", results.gradients, report, table, padding);
    if (!std::exchange(first, false)) continue;
    report.compare("rewards", "rewards",
                   largest_difference(rewards_of(batch, results), expected.doubles("rewards")),
                   tolerance::kGoldenLogitsAbsolute);
    for (const auto& [own, theirs] : {std::pair{"accuracy", "accuracy"}, {"margin", "mean_margin"}})
      if (expected.contains(theirs))
        report.compare("metrics", theirs,
                       std::abs(results.metrics.at(own) - expected.doubles(theirs)[0]),
                       tolerance::kGoldenLogitsAbsolute);
  }
  for (const char* input : {"input_ids", "attention_mask", "margin"})
    if (expected.contains(input)) expected.doubles(input);
  expected.report_unused(report);
}

}  // namespace

bool has_rewards(const std::string& directory) {
  return fs::exists(directory + "/pairs.json") && fs::exists(directory + "/cases.json") &&
         fs::exists(directory + "/expected.safetensors");
}

std::vector<Report> verify_rewards(const std::string& directory, const VerifyOptions& options) {
  std::vector<Report> reports;
  for (const DeviceKind device : options.devices) {
    Report report(fmt::format("{}: rewards on {} in {}{}", directory, name(device),
                              device == DeviceKind::reference ? "f64" : "f32", options.text()));
    compare_rewards(directory, device, options, report);
    reports.push_back(std::move(report));
  }
  return reports;
}

}  // namespace megatron::selftest
