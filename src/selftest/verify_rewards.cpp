#include "selftest/verify_rewards.h"

#include <fmt/core.h>

#include <cmath>
#include <filesystem>
#include <numeric>

#include "base/divide.h"
#include "base/error.h"
#include "base/json.h"
#include "base/tolerances.h"
#include "corpus/chat/scored_dataset.h"
#include "corpus/corpus.h"
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

// The pairs as samples of a run: packed into rows of at least two of them, or one in each row.
struct PairRows {
  PairRows(const Json::Array& pairs, bool margins, int64_t padding, bool packed, int64_t multiple)
      : count(pairs.size()),
        set(store_of(pairs, margins, padding), all(pairs), packing(packed),
            length_of(pairs, packed, multiple), 0, 0, std::nullopt) {
    std::vector<int64_t> indices(static_cast<size_t>(set.size()));
    std::iota(indices.begin(), indices.end(), int64_t{0});
    corpus::BatchReader(set, {.length = length_of(pairs, packed, multiple)}).read(indices, batch);
  }

  // Rewards of the chosen texts, then of the rejected ones, in the order of the pairs.
  std::vector<double> rewards(const ObjectiveResults& results) const {
    std::vector<double> all(2 * count);
    for (const auto& [sample, values] : results.values) {
      const size_t begin = static_cast<size_t>(sample) * values.size();
      const corpus::PackedRow& row = set.rows().of_sample(sample);
      size_t text = 0;  // in its row
      for (size_t t = 0; t < values.size(); ++t) {
        if (batch.loss_mask[begin + t] == 0) continue;
        all[static_cast<size_t>(row.at(text / 2).document) + text % 2 * count] = values[t];
        ++text;
      }
    }
    return all;
  }

  size_t count;
  corpus::ScoredDataset set;
  corpus::HostBatch batch;

 private:
  static std::optional<corpus::Packing> packing(bool packed) {
    return packed ? std::optional(corpus::Packing::bfd) : std::nullopt;
  }
  static std::vector<int64_t> all(const Json::Array& pairs) {
    std::vector<int64_t> examples(pairs.size());
    std::iota(examples.begin(), examples.end(), int64_t{0});
    return examples;
  }
  static int64_t length_of(const Json::Array& pairs, bool packed, int64_t multiple) {
    int64_t longest = 0;
    for (const Json& pair : pairs)
      longest = std::max(longest, std::ssize(pair["chosen_ids"].as_array()) +
                                      std::ssize(pair["rejected_ids"].as_array()));
    return ceil_div(packed ? 2 * longest : longest, multiple) * multiple;
  }
  static std::shared_ptr<const corpus::ScoredStore> store_of(const Json::Array& pairs, bool margins,
                                                             int64_t padding) {
    auto store = std::make_shared<corpus::ScoredStore>();
    store->texts_per_example = 2;
    for (const Json& pair : pairs) {
      for (const char* key : {"chosen_ids", "rejected_ids"}) {
        const std::vector<int32_t> ids = ids_of(pair, key);
        store->scored.push_back(std::ssize(store->ids) + corpus::scored_token(ids, padding));
        store->ids.insert(store->ids.end(), ids.begin(), ids.end());
        store->ends.push_back(std::ssize(store->ids));
      }
      store->margins.push_back(margins ? pair["margin"].as_number() : 0);
      store->sources.add("pairs");
    }
    return store;
  }
};

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
  bool first = true;
  for (const auto& [name, settings] : cases.as_object()) {
    const PairRows rows(pairs.as_array(), settings["margin"].as_bool(), padding,
                        options.data_parallel == 1, multiple);
    const Json& center = settings["center_rewards_coefficient"];
    const ObjectiveResults results =
        objective_results(start, rows.batch,
                          std::make_shared<const post_training::RewardObjective>(
                              center.is_null() ? 0 : center.as_number()),
                          device, options);
    const double loss = expected.doubles(name + ".loss")[0];
    report.compare("loss", name + ".loss", std::abs(results.loss - loss),
                   tolerance::kGoldenLossRelative * std::abs(loss));
    compare_gradients(expected, name + ".grad.", results.gradients, report, table, padding);
    if (!std::exchange(first, false)) continue;
    report.compare("rewards", "rewards",
                   largest_difference(rows.rewards(results), expected.doubles("rewards")),
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
