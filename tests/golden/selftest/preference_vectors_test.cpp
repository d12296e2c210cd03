// Losses of preferences from TRL's log-probabilities: loss, gradient and metrics of each case.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <functional>

#include "base/error.h"
#include "base/files.h"
#include "corpus/chat/preference_role.h"
#include "golden/selftest/support.h"
#include "post_training/preference.h"
#include "selftest/expected.h"
#include "selftest/verify_preferences.h"

namespace megatron::post_training {
namespace {

using corpus::PreferenceRole, megatron::testing::TemporaryDirectory, selftest::Expected;

const std::string kFolder = megatron::testing::vectors("post_training/dpo");

// The file's log-probabilities as a batch with a row for each of its pairs or examples.
class FileBatch {
 public:
  // exchanged: chosen texts as rejected ones, and the reverse.
  FileBatch(const Json& settings, const PreferenceObjective& objective, bool exchanged = false)
      : file_(kFolder + "/losses.safetensors"),
        length_(static_cast<size_t>(file_.shape("input_ids")[1])),
        texts_(static_cast<size_t>(file_.shape("input_ids")[0])) {
    const bool prompts = objective.settings().reads_prompts(),
               free =
                   !objective.settings().needs_reference() && !objective.settings().reference_free;
    const bool swapped =
        settings.contains("policy") && settings["policy"].as_string() == "reference";
    const auto read = [&](const std::string& prefix, bool policy) {
      return file_.doubles(prefix + (free     ? "log_probs_all"
                                     : policy ? "log_probs"
                                              : "reference_log_probs"));
    };
    const std::vector<double> log_p = read("", !swapped), reference = read("", swapped);
    const std::vector<int64_t> completion = file_.integers("completion_mask"),
                               attention = file_.integers("attention_mask");
    const std::vector<double> squares = file_.doubles("log_sum_sq_probs");
    if (!objective.settings().unpaired()) {
      batch_.layout = {.sequences = static_cast<int64_t>(texts_ / 2),
                       .length = static_cast<int64_t>(2 * length_)};
      for (size_t row = 0; row < texts_ / 2; ++row)
        for (const bool chosen : {true, false})
          add(chosen != exchanged ? row : row + texts_ / 2, chosen ? 0 : length_,
              chosen ? PreferenceRole::chosen : PreferenceRole::rejected, completion,
              prompts ? attention : completion, log_p, reference);
    } else {
      const std::vector<double> kl_log_p = read("KL_", !swapped),
                                kl_reference = read("KL_", swapped);
      const std::vector<int64_t> kl_completion = file_.integers("KL_completion_mask");
      batch_.layout = {.sequences = static_cast<int64_t>(texts_),
                       .length = static_cast<int64_t>(2 * length_)};
      for (size_t row = 0; row < texts_; ++row) {
        add(row, 0, PreferenceRole::mismatched, kl_completion, kl_completion, kl_log_p,
            kl_reference);
        add(row, length_,
            settings["labels"].as_array()[row].as_bool() != exchanged ? PreferenceRole::chosen
                                                                      : PreferenceRole::rejected,
            completion, completion, log_p, reference);
      }
    }
    if (!objective.settings().use_weighting) return;
    std::vector<double> two;
    for (size_t t = 0; t < values_.size(); ++t) {
      two.push_back(values_[t]);
      two.push_back(from_[t] < 0 ? 0 : squares[static_cast<size_t>(from_[t])]);
    }
    values_ = two;
  }

  const corpus::HostBatch& batch() const { return batch_; }
  const std::vector<double>& values() const { return values_; }
  // Gradients of the file's texts, divided by what counts.
  std::vector<double> file_gradient(const std::vector<double>& gradient, double counted) const {
    std::vector<double> all(texts_ * (length_ - 1));
    const size_t width = gradient.size() / from_.size();
    for (size_t t = 0; t < from_.size(); ++t)
      if (from_[t] >= 0) all[static_cast<size_t>(from_[t])] += gradient[t * width] / counted;
    return all;
  }

 private:
  void add(size_t text, size_t begin, PreferenceRole role, const std::vector<int64_t>& completion,
           const std::vector<int64_t>& mask, const std::vector<double>& log_p,
           const std::vector<double>& reference) {
    for (size_t i = 0; i < length_; ++i) {
      const bool last = i + 1 == length_;
      const size_t next = text * length_ + i + 1, label = text * (length_ - 1) + i;
      const bool counts = !last && mask[next] != 0;
      const bool prompt = counts && completion[next] == 0;
      const PreferenceRole own = !prompt                          ? role
                                 : role == PreferenceRole::chosen ? PreferenceRole::chosen_prompt
                                                                  : PreferenceRole::rejected_prompt;
      batch_.loss_mask.push_back(counts ? 1 : 0);
      batch_.targets.push_back(counts ? static_cast<double>(own) : 0);
      batch_.segment_starts.push_back(static_cast<int32_t>(begin));
      batch_.reference.push_back(counts ? reference[label] : 0);
      values_.push_back(counts ? log_p[label] : 0);
      from_.push_back(counts && role != PreferenceRole::mismatched ? static_cast<int64_t>(label)
                                                                   : -1);
    }
  }

  Expected file_;
  size_t length_, texts_;
  corpus::HostBatch batch_;
  std::vector<double> values_;
  std::vector<int64_t> from_;  // place in the file's log-probabilities, or -1
};

void expect_case(const std::string& name, const Json& settings) {
  SCOPED_TRACE(name);
  const PreferenceObjective objective(selftest::preference_case(settings));
  const FileBatch of(settings, objective);
  Expected expected(kFolder + "/losses.safetensors");
  const double counted = objective.counted(of.batch());
  EXPECT_EQ(counted, objective.settings().unpaired() ? 10 : 5);
  std::vector<double> gradient(of.values().size());
  const training::ObjectiveTerms terms = objective.evaluate(of.batch(), of.values(), gradient);
  const double loss = expected.doubles(name + ".loss")[0];
  EXPECT_NEAR(terms.loss / counted, loss, 1e-10 * std::abs(loss));
  const std::vector<double> wanted = expected.doubles(name + ".grad");
  EXPECT_LE(selftest::difference_norm(of.file_gradient(gradient, counted), wanted),
            1e-10 * selftest::norm(wanted));
  std::map<std::string, double> metrics;
  const std::vector<MetricDefinition> defined = objective.metrics();
  ASSERT_EQ(terms.metrics.size(), defined.size());
  for (size_t i = 0; i < defined.size(); ++i) {
    EXPECT_EQ(terms.metrics[i].name, defined[i].name);
    metrics[defined[i].name] = terms.metrics[i].value;
  }
  if (objective.settings().unpaired())
    metrics["margin"] = metrics["chosen_reward"] - metrics["rejected_reward"];
  if (!settings.contains("metrics")) return;
  for (const auto& [theirs, value] : settings["metrics"].as_object()) {
    const std::string own = selftest::preference_metric(theirs);
    if (own == "kl" && !metrics.contains("kl")) {
      EXPECT_EQ(value.as_number(), 0);
      continue;
    }
    ASSERT_TRUE(metrics.contains(own)) << theirs;
    EXPECT_NEAR(metrics[own], value.as_number(), 1e-10 * (1 + std::abs(value.as_number())))
        << theirs;
  }
}

TEST(PreferenceLossVectors, HaveTheSameLossesGradientsAndMetrics) {
  const Json cases = Json::read(kFolder + "/cases.json");
  EXPECT_EQ(cases.as_object().size(), 35u);
  for (const auto& [name, settings] : cases.as_object()) expect_case(name, settings);
}

TEST(PreferenceLossVectors, ExchangedTextsAreFound) {
  Expected expected(kFolder + "/losses.safetensors");
  const Json cases = Json::read(kFolder + "/cases.json");
  for (const auto& [name, settings] : cases.as_object()) {
    const PreferenceObjective objective(selftest::preference_case(settings));
    const FileBatch of(settings, objective, true);
    std::vector<double> gradient(of.values().size());
    const double loss =
        objective.evaluate(of.batch(), of.values(), gradient).loss / objective.counted(of.batch());
    EXPECT_GT(std::abs(loss - expected.doubles(name + ".loss")[0]), 1e-3) << name;
  }
}

using selftest::Report, selftest::VerifyOptions, selftest::verify_preferences;

TEST(PreferenceVectors, HaveTheSameLossesAndGradients) {
  for (const VerifyOptions& options :
       {VerifyOptions{}, VerifyOptions{.tensor_parallel = 2, .sequence_parallel = true},
        VerifyOptions{.pipeline_parallel = 2, .data_parallel = 2},
        VerifyOptions{.devices = {DeviceKind::reference}, .context_parallel = 2}}) {
    for (const Report& report : verify_preferences(kFolder, options)) {
      EXPECT_TRUE(report.passed()) << report.text();
      EXPECT_EQ(report.compared(), 357);
    }
  }
}

// Copies the vectors, changes them, and returns the report on the copy.
Report with_changed(const std::function<void(const std::string& folder)>& change) {
  const TemporaryDirectory place;
  std::filesystem::copy(megatron::testing::vectors("post_training"), place / "v",
                        std::filesystem::copy_options::recursive);
  change(place / "v");
  return verify_preferences(place / "v/dpo", {.devices = {DeviceKind::cpu}})[0];
}

TEST(PreferenceVectorsDiffer, AnExchangedPairIsFound) {
  const Report report = with_changed([](const std::string& folder) {
    Json pairs = Json::read(folder + "/dpo/pairs.json");
    Json& pair = pairs.as_array()[0];
    const Json chosen = pair["chosen_ids"], rejected = pair["rejected_ids"];
    pair.set("chosen_ids", rejected);
    pair.set("rejected_ids", chosen);
    write_file(folder + "/dpo/pairs.json", pairs.dump());
  });
  EXPECT_NE(report.text().find("FAILED: inputs"), std::string::npos) << report.text();
  EXPECT_NE(report.text().find("FAILED: losses"), std::string::npos) << report.text();
}

TEST(PreferenceVectorsDiffer, AnotherReferenceModelIsFound) {
  const Report report = with_changed([](const std::string& folder) {
    std::filesystem::remove_all(folder + "/models/reference");
    std::filesystem::copy(folder + "/models/policy", folder + "/models/reference");
  });
  EXPECT_NE(report.text().find("reference_log_probs"), std::string::npos) << report.text();
  EXPECT_NE(report.text().find("grad_sigmoid_b0 loss"), std::string::npos) << report.text();
}

TEST(PreferenceVectorsDiffer, AnUnknownSettingIsRefused) {
  EXPECT_THROW(selftest::preference_case(Json::parse(R"({"beta": 1, "gamma": 2})")), Error);
}

}  // namespace
}  // namespace megatron::post_training
