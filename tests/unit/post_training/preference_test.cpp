// Losses of preferences without vectors of another system: gradients by differences, values by
// hand, and the shapes of batches.
#include "post_training/preference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <string>
#include <utility>

#include "base/error.h"
#include "corpus/chat/preference_role.h"

namespace megatron::post_training {
namespace {

using corpus::PreferenceRole, settings::PreferenceSettings, training::ObjectiveTerms;

struct Part {
  PreferenceRole role;
  int tokens;
};

// A document of parts in a row, with a token that has no label at its end.
struct Documents {
  corpus::HostBatch batch;
  std::vector<double> values;

  explicit Documents(int64_t sequences, int64_t length) {
    batch.layout = {.sequences = sequences, .length = length};
    const auto tokens = static_cast<size_t>(sequences * length);
    batch.loss_mask.resize(tokens);
    batch.targets.resize(tokens);
    batch.segment_starts.resize(tokens);
    batch.reference.resize(tokens);
    values.resize(tokens);
    for (size_t t = 0; t < tokens; ++t) {
      const auto x = static_cast<double>(t);
      values[t] = -1.2 + std::sin(1.7 * x + 0.3);
      batch.reference[t] = -1.3 + std::sin(2.3 * x);
    }
  }

  void add(size_t row, const std::vector<Part>& parts) {
    if (row != row_) begin_ = 0;
    row_ = row;
    const auto base = row * static_cast<size_t>(batch.layout.length);
    size_t at = begin_;
    for (const Part& part : parts)
      for (int i = 0; i < part.tokens; ++i, ++at) {
        batch.loss_mask[base + at] = 1;
        batch.targets[base + at] = static_cast<double>(part.role);
        batch.segment_starts[base + at] = static_cast<int32_t>(begin_);
      }
    batch.segment_starts[base + at] = static_cast<int32_t>(begin_);
    begin_ = at + 1;
  }

 private:
  size_t row_ = 0, begin_ = 0;
};

constexpr Part kChosenPrompt{PreferenceRole::chosen_prompt, 2},
    kRejectedPrompt{PreferenceRole::rejected_prompt, 2};
Part chosen(int tokens) { return {PreferenceRole::chosen, tokens}; }
Part rejected(int tokens) { return {PreferenceRole::rejected, tokens}; }
Part mismatched(int tokens) { return {PreferenceRole::mismatched, tokens}; }

// Three pairs in two rows, with prompts.
Documents pairs() {
  Documents documents(2, 32);
  documents.add(0, {kChosenPrompt, chosen(3)});
  documents.add(0, {kRejectedPrompt, rejected(5)});
  documents.add(0, {kChosenPrompt, chosen(4)});
  documents.add(0, {kRejectedPrompt, rejected(1)});
  documents.add(1, {kChosenPrompt, chosen(2)});
  documents.add(1, {kRejectedPrompt, rejected(2)});
  return documents;
}

// Four examples without prompts, next to each other.
Documents examples() {
  Documents documents(2, 32);
  documents.add(0, {mismatched(3)});
  documents.add(0, {chosen(2)});
  documents.add(0, {mismatched(2)});
  documents.add(0, {chosen(4)});
  documents.add(1, {mismatched(1)});
  documents.add(1, {rejected(3)});
  documents.add(1, {mismatched(2)});
  documents.add(1, {chosen(1)});
  return documents;
}

ObjectiveTerms evaluate(const PreferenceSettings& settings, const Documents& of,
                        std::vector<double>* gradient = nullptr) {
  std::vector<double> unused(of.values.size());
  return PreferenceObjective(settings).evaluate(of.batch, of.values,
                                                gradient == nullptr ? unused : *gradient);
}

double metric(const ObjectiveTerms& terms, std::string_view name) {
  for (const auto& one : terms.metrics)
    if (one.name == name) return one.value;
  ADD_FAILURE() << name;
  return NAN;
}

// Mismatched completions give a constant.
void expect_gradient_of_loss(const PreferenceSettings& settings, Documents of) {
  std::vector<double> gradient(of.values.size());
  evaluate(settings, of, &gradient);
  double size = 0;
  for (size_t t = 0; t < of.values.size(); ++t) {
    size = std::max(size, std::abs(gradient[t]));
    if (of.batch.targets[t] == static_cast<double>(PreferenceRole::mismatched)) {
      EXPECT_EQ(gradient[t], 0);
      continue;
    }
    constexpr double kStep = 1e-5;
    Documents above = of, below = of;
    above.values[t] += kStep;
    below.values[t] -= kStep;
    EXPECT_NEAR(gradient[t],
                (evaluate(settings, above).loss - evaluate(settings, below).loss) / (2 * kStep),
                3e-9 * (1 + std::abs(gradient[t])))
        << settings.loss[0] << " " << t;
  }
  EXPECT_GT(size, 0.01);
}

TEST(PreferenceObjective, TheGradientIsThatOfTheLoss) {
  for (const settings::PreferenceKindRow& row : settings::preference_kinds()) {
    const bool unpaired = row.family == settings::PreferenceKindRow::Family::unpaired;
    PreferenceSettings settings;
    settings.loss = {std::string(row.name)};
    settings.beta = 0.6;
    settings.label_smoothing = 0.1;
    settings.discopop_tau = 0.4;
    settings.desirable_weight = 1.2;
    settings.undesirable_weight = 0.7;
    settings.cpo_alpha = 0.3;
    const Documents of = unpaired ? examples() : pairs();
    expect_gradient_of_loss(settings, of);
    settings.alphapo_alpha = -0.2;
    settings.ld_alpha = 0.3;
    settings.weights = {"0.25"};
    for (const auto divergence : {settings::Divergence::forward_kl, settings::Divergence::js,
                                  settings::Divergence::alpha}) {
      settings.divergence = divergence;
      expect_gradient_of_loss(settings, of);
      if (!row.divergence) break;
    }
  }
}

TEST(PreferenceObjective, KindsAreAddedUpWithTheirWeights) {
  PreferenceSettings all, one;
  all.loss = {"ipo_sum", "aot", "orpo", "simpo", "sft"};
  all.weights = {"0.5", "2", "0.25", "1e-1", "0"};
  double sum = 0;
  for (size_t i = 0; i < all.loss.size(); ++i) {
    one.loss = {all.loss[i]};
    sum += std::stod(all.weights[i]) * evaluate(one, pairs()).loss;
  }
  EXPECT_NEAR(evaluate(all, pairs()).loss, sum, 1e-12);
  expect_gradient_of_loss(all, pairs());
  PreferenceSettings unpaired;
  unpaired.loss = {"kto", "apo_zero_unpaired"};
  expect_gradient_of_loss(unpaired, examples());
}

TEST(PreferenceObjective, IpoOfSumsIsThatOfThePaper) {
  PreferenceSettings settings;
  settings.loss = {"ipo_sum"};
  settings.beta = 0.25;
  const Documents of = pairs();
  double ratios[2] = {};  // of the second row's pair
  for (size_t t = 32; t < 64; ++t) {
    const auto role = static_cast<PreferenceRole>(static_cast<int>(of.batch.targets[t]));
    if (role == PreferenceRole::chosen) ratios[0] += of.values[t] - of.batch.reference[t];
    if (role == PreferenceRole::rejected) ratios[1] += of.values[t] - of.batch.reference[t];
  }
  const corpus::HostBatch row = corpus::sequence_of(of.batch, 1);
  std::vector<double> gradient(32);
  const PreferenceObjective objective(settings);
  const ObjectiveTerms terms = objective.evaluate(row, std::span(of.values).subspan(32), gradient);
  EXPECT_EQ(objective.counted(row), 1);
  EXPECT_EQ(objective.counted(of.batch), 3);
  EXPECT_NEAR(terms.loss, std::pow(ratios[0] - ratios[1] - 2, 2), 1e-12);
  EXPECT_NEAR(metric(terms, "margin"), 0.25 * (ratios[0] - ratios[1]), 1e-13);
  EXPECT_EQ(metric(terms, "accuracy"), ratios[0] > ratios[1] ? 1 : 0);
}

// WPO: the loss and the gradient of each pair times the geometric means, over the tokens of both
// completions, of p / sum p^2; the sums of squares have no gradient.
TEST(PreferenceObjective, WeightingScalesEachPair) {
  Documents of = pairs();
  const std::vector<double> log_p = of.values;
  std::vector<double> squares(log_p.size());
  of.values.clear();
  for (size_t t = 0; t < log_p.size(); ++t) {
    squares[t] = -1.1 + 0.4 * std::cos(0.9 * static_cast<double>(t));
    of.values.insert(of.values.end(), {log_p[t], squares[t]});
  }
  for (const char* kind : {"sigmoid", "ipo", "nca_pair"}) {
    PreferenceSettings settings{.loss = {kind}, .beta = 0.4, .ld_alpha = 0.5};
    double loss = 0;
    std::vector<double> wanted(of.values.size()), gradient(of.values.size());
    for (size_t pair = 0; pair < 3; ++pair) {
      Documents one = pairs();  // with this pair alone
      double means = 0, sum[2] = {}, tokens[2] = {};
      size_t documents = 0;
      for (size_t t = 0, begin = SIZE_MAX; t < log_p.size(); ++t) {
        if (one.batch.loss_mask[t] == 0) continue;
        const size_t first = t / 32 * 32 + static_cast<size_t>(one.batch.segment_starts[t]);
        if (std::exchange(begin, first) != first) ++documents;
        if ((documents - 1) / 2 != pair) {
          one.batch.loss_mask[t] = 0;
          continue;
        }
        const auto role = static_cast<PreferenceRole>(static_cast<int>(one.batch.targets[t]));
        if (role != PreferenceRole::chosen && role != PreferenceRole::rejected) continue;
        const size_t at = role == PreferenceRole::rejected ? 1 : 0;
        sum[at] += log_p[t] - squares[t];
        tokens[at] += 1;
      }
      for (const size_t at : {0, 1}) means += sum[at] / tokens[at];
      std::vector<double> of_pair(log_p.size());
      const double weight = std::exp(means), unweighted = evaluate(settings, one, &of_pair).loss;
      loss += weight * unweighted;
      for (size_t t = 0; t < log_p.size(); ++t) wanted[2 * t] += weight * of_pair[t];
    }
    settings.use_weighting = true;
    EXPECT_TRUE(PreferenceObjective(settings).reads_squares());
    EXPECT_NEAR(evaluate(settings, of, &gradient).loss, loss, 1e-13 * std::abs(loss)) << kind;
    for (size_t i = 0; i < wanted.size(); ++i)
      EXPECT_NEAR(gradient[i], wanted[i], 1e-14 * (1 + std::abs(wanted[i]))) << kind << " " << i;
  }
}

TEST(PreferenceObjective, ModelsThatAreEqualHaveALossOfLog2) {
  Documents of = pairs();
  of.batch.reference = of.values;
  const ObjectiveTerms terms = evaluate({}, of);
  EXPECT_NEAR(terms.loss, 3 * std::log(2), 1e-14);
  EXPECT_EQ(metric(terms, "chosen_reward"), 0);
  EXPECT_EQ(terms.metrics[0].weight, 3);
}

// Loss and gradient of large log-ratios are finite.
TEST(PreferenceObjective, LargeRatiosStayFinite) {
  for (const settings::PreferenceKindRow& row : settings::preference_kinds()) {
    PreferenceSettings settings;
    settings.loss = {std::string(row.name)};
    settings.label_smoothing = 0.1;
    settings.cpo_alpha = 1;
    for (const double factor : {-2000.0, 2000.0, 0.0}) {
      Documents of =
          row.family == settings::PreferenceKindRow::Family::unpaired ? examples() : pairs();
      for (size_t t = 0; t < of.values.size(); ++t) {
        const bool better = of.batch.targets[t] == static_cast<double>(PreferenceRole::chosen);
        of.values[t] = better == (factor > 0) || factor == 0 ? 0 : -std::abs(factor);
        of.batch.reference[t] = -1;
      }
      std::vector<double> gradient(of.values.size());
      EXPECT_TRUE(std::isfinite(evaluate(settings, of, &gradient).loss)) << row.name << factor;
      for (const double g : gradient) EXPECT_TRUE(std::isfinite(g)) << row.name << factor;
    }
  }
}

TEST(PreferenceObjective, ABatchWithoutPairsIsZero) {
  for (const char* kind : {"sigmoid", "sft", "aot", "orpo", "kto"}) {
    PreferenceSettings settings;
    settings.loss = {kind};
    const Documents empty(1, 8);
    std::vector<double> gradient(8);
    EXPECT_EQ(evaluate(settings, empty, &gradient).loss, 0);
    EXPECT_EQ(gradient, std::vector<double>(8));
    EXPECT_EQ(PreferenceObjective(settings).counted(empty.batch), 0);
  }
}

// A micro-batch's KL estimate is never negative.
TEST(PreferenceObjective, KtoEstimatesItsKlFromMismatchedCompletions) {
  PreferenceSettings settings;
  settings.loss = {"kto"};
  Documents of = examples();
  double sum = 0;
  for (size_t t = 0; t < of.values.size(); ++t)
    if (of.batch.targets[t] == static_cast<double>(PreferenceRole::mismatched))
      sum += of.values[t] - of.batch.reference[t];
  const bool positive = sum > 0;
  EXPECT_NEAR(metric(evaluate(settings, of), "kl"), positive ? sum / 4 : 0, 1e-13);
  std::swap(of.values, of.batch.reference);
  EXPECT_NEAR(metric(evaluate(settings, of), "kl"), positive ? 0 : -sum / 4, 1e-13);
  EXPECT_EQ(PreferenceObjective(settings).counted(of.batch), 4);
}

TEST(PreferenceObjective, PromptsAreReadOnlyByOrpo) {
  for (const settings::PreferenceKindRow& row : settings::preference_kinds()) {
    if (row.family == settings::PreferenceKindRow::Family::unpaired) continue;
    PreferenceSettings settings;
    settings.loss = {std::string(row.name)};
    settings.label_smoothing = 0.1;
    const Documents of = pairs();
    std::vector<double> gradient(of.values.size());
    evaluate(settings, of, &gradient);
    EXPECT_EQ(gradient[0] != 0, settings.reads_prompts()) << row.name;
    EXPECT_EQ(settings.reads_prompts(), row.name == "orpo");
  }
}

void expect_refused(const PreferenceSettings& settings, const std::string& text) {
  try {
    settings.check();
    ADD_FAILURE() << "not refused: " << text;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
  }
}

TEST(PreferenceSettings, BadOnesAreRefused) {
  expect_refused({.loss = {}}, "--preference-loss names no kind");
  expect_refused({.loss = {"sigmoit"}}, "is it sigmoid?");
  expect_refused({.loss = {"kto", "sft"}}, "without sft");
  expect_refused({.weights = {"1", "2"}}, "--preference-loss-weights has 2 numbers for the 1");
  expect_refused({.weights = {"-1"}}, "--preference-loss-weights has -1");
  expect_refused({.weights = {"one"}}, "--preference-loss-weights has one");
  expect_refused({.beta = 0}, "--beta is 0");
  expect_refused({.beta = NAN}, "--beta is nan");
  expect_refused({.label_smoothing = 0.5}, "--label-smoothing is 0.5");
  expect_refused({.loss = {"exo_pair"}}, "--label-smoothing is 0");
  expect_refused({.ld_alpha = 1.5}, "--ld-alpha is 1.5");
  expect_refused({.alpha_divergence = 1}, "--f-alpha-divergence-coef is 1");
  expect_refused({.discopop_tau = 0}, "--discopop-tau is 0");
  expect_refused({.desirable_weight = -1}, "--desirable-weight is -1");
  expect_refused({.undesirable_weight = INFINITY}, "--undesirable-weight is inf");
  expect_refused({.simpo_gamma = NAN}, "--simpo-gamma is nan");
  expect_refused({.cpo_alpha = -0.5}, "--cpo-alpha is -0.5");
  expect_refused({.alphapo_alpha = INFINITY}, "--alphapo-alpha is inf");
  expect_refused({.loss = {"sigmoid", "aot"}, .use_weighting = true}, "aot is no sum over pairs");
  expect_refused({.loss = {"kto"}, .use_weighting = true}, "kto is of single completions");
  expect_refused({.loss = {"simpo"}, .use_weighting = true}, "simpo is without a reference model");
  EXPECT_THROW(PreferenceObjective({.beta = -1}), Error);
}

TEST(PreferenceSettings, SayWhatTheLossReads) {
  const auto with = [](std::vector<std::string> loss, bool free = false) {
    return PreferenceSettings{.loss = std::move(loss), .reference_free = free};
  };
  EXPECT_TRUE(with({"sigmoid"}).needs_reference());
  EXPECT_FALSE(with({"sigmoid"}, true).needs_reference());
  EXPECT_TRUE(with({"kto"}, true).needs_reference());
  EXPECT_FALSE(with({"orpo", "simpo"}).needs_reference());
  EXPECT_TRUE(with({"orpo", "hinge"}).needs_reference());
  EXPECT_TRUE(with({"kto"}).reads_mismatched());
  EXPECT_FALSE(with({"apo_zero_unpaired"}).reads_mismatched());
  EXPECT_TRUE(with({"apo_zero_unpaired"}).unpaired());
  EXPECT_FALSE(with({"simpo"}).couples());
  EXPECT_TRUE(with({"cpo"}).couples());
}

TEST(PreferenceSettings, FlagsThatTheLossDoesNotReadAreIdle) {
  PreferenceSettings settings;
  Fields fields;
  settings.fields(fields);
  EXPECT_EQ(fields.find("simpo-gamma")->idle(), "--preference-loss is sigmoid");
  fields.find("preference-loss")->assign({"simpo", "robust"});
  for (const Field& field : fields.all()) {
    if (!field.idle) continue;
    EXPECT_EQ(field.idle().empty(), field.name != "f-alpha-divergence-coef" &&
                                        field.name != "discopop-tau" &&
                                        !field.name.ends_with("desirable-weight"))
        << field.name;
  }
}

}  // namespace
}  // namespace megatron::post_training
