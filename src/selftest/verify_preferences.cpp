#include "selftest/verify_preferences.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <optional>

#include "base/divide.h"
#include "base/error.h"
#include "base/tolerances.h"
#include "corpus/chat/preference_role.h"
#include "post_training/preference.h"
#include "selftest/objective_results.h"

namespace megatron::selftest {
namespace {

namespace fs = std::filesystem;
using corpus::PreferenceRole;

// Numbers [2B,T-1] of the labels of texts, and of the texts with another one's completion.
struct Numbers {
  explicit Numbers(size_t size) : own(size), mismatched(size) {}
  std::vector<double> own, mismatched;
  std::vector<double>& of(bool is_mismatched) { return is_mismatched ? mismatched : own; }
  const std::vector<double>& of(bool is_mismatched) const {
    return is_mismatched ? mismatched : own;
  }
};

struct Text {
  std::vector<int32_t> ids;
  size_t prompt = 0;  // tokens before the completion
  size_t row = 0;     // in the file
  bool mismatched = false;
};

// The texts of pairs.json, in the order of losses.safetensors.
class Texts {
 public:
  explicit Texts(const std::string& directory) {
    const Json json = Json::read(directory + "/pairs.json");
    const Json::Array& pairs = json.as_array();
    pairs_ = pairs.size();
    const size_t count = 2 * pairs_;
    const auto key = [&](size_t row) { return row < pairs_ ? "chosen_ids" : "rejected_ids"; };
    for (size_t row = 0; row < count; ++row) {
      const size_t before = (row + count - 1) % count;
      const Json& pair = pairs[row % pairs_];
      own_.push_back(text_of(pair, pair[key(row)], row));
      mismatched_.push_back(text_of(pair, pairs[before % pairs_][key(before)], row));
      mismatched_.back().mismatched = true;
    }
  }

  size_t pairs() const { return pairs_; }
  const std::vector<Text>& of(bool mismatched) const { return mismatched ? mismatched_ : own_; }

 private:
  static Text text_of(const Json& pair, const Json& completion, size_t row) {
    Text text;
    text.row = row;
    for (const Json& id : pair["prompt_ids"].as_array())
      text.ids.push_back(static_cast<int32_t>(id.as_integer()));
    text.prompt = text.ids.size();
    for (const Json& id : completion.as_array())
      text.ids.push_back(static_cast<int32_t>(id.as_integer()));
    const int64_t limit = pair["max_length"].as_integer();
    if (std::ssize(text.ids) > limit) text.ids.resize(static_cast<size_t>(limit));
    MG_CHECK(text.prompt > 0 && text.ids.size() > text.prompt,
             "pairs.json: text {} has {} tokens before its completion, of {} that are kept; it "
             "needs one before it and one of it",
             row, text.prompt, text.ids.size());
    return text;
  }

  size_t pairs_ = 0;
  std::vector<Text> own_, mismatched_;
};

// Texts packed into rows as those of a run, groups of them (pairs, or examples) next to each other.
class Rows {
 public:
  struct Member {
    const Text* text;
    PreferenceRole role;
  };
  using Group = std::vector<Member>;

  // At least two groups to a row. multiple: of each row's length; ranks: data-parallel ranks, among
  // which the rows are divided, or, if `together`, of which the first has all.
  Rows(const std::vector<Group>& groups, bool prompts, int64_t multiple, int ranks, bool together) {
    size_t longest = 0;
    for (const Group& group : groups) longest = std::max(longest, length_of(group));
    const auto length =
        static_cast<size_t>(ceil_div(static_cast<int64_t>(2 * longest), multiple) * multiple);
    batch_.layout.length = static_cast<int64_t>(length);
    size_t used = length;
    for (const Group& group : groups) {
      if (used + length_of(group) > length) {
        add_row(length);
        used = 0;
      }
      for (const Member& member : group) {
        write(member, (rows_ - 1) * length, used, prompts);
        used += member.text->ids.size();
      }
    }
    const auto divisor = static_cast<size_t>(ranks),
               all = together ? rows_ * divisor : ceil_div(rows_, divisor) * divisor;
    while (rows_ < all) add_row(length);
    batch_.layout.sequences = static_cast<int64_t>(rows_);
  }

  corpus::HostBatch& batch() { return batch_; }
  // Moves numbers of the batch's tokens to those of the file, and back.
  void take(std::span<const double> values, size_t width, Numbers& numbers) const {
    for (const Place& place : places_)
      numbers.of(place.mismatched)[place.text * (width - 1) + place.label] = values[place.token];
  }
  std::vector<double> give(const Numbers& numbers, size_t width) const {
    std::vector<double> values(batch_.tokens.size());
    for (const Place& place : places_)
      values[place.token] = numbers.of(place.mismatched)[place.text * (width - 1) + place.label];
    return values;
  }

 private:
  struct Place {
    size_t token;  // in the batch
    size_t text, label;
    bool mismatched;
  };

  static size_t length_of(const Group& group) {
    size_t length = 0;
    for (const Member& member : group) length += member.text->ids.size();
    return length;
  }

  void add_row(size_t length) {
    const size_t end = ++rows_ * length;
    for (auto* values : {&batch_.tokens, &batch_.positions, &batch_.labels, &batch_.segment_starts})
      values->resize(end);
    batch_.targets.resize(end);
    batch_.loss_mask.resize(end);
    batch_.sample_ids.push_back(static_cast<int64_t>(rows_) - 1);
  }

  void write(const Member& member, size_t row, size_t begin, bool prompts) {
    const Text& text = *member.text;
    for (size_t i = 0; i < text.ids.size(); ++i) {
      const size_t t = row + begin + i;
      batch_.tokens[t] = text.ids[i];
      batch_.positions[t] = static_cast<int32_t>(i);
      batch_.segment_starts[t] = static_cast<int32_t>(begin);
      if (i + 1 == text.ids.size()) break;
      batch_.labels[t] = text.ids[i + 1];
      const bool prompt = i + 1 < text.prompt;
      if (prompt && !prompts) continue;
      batch_.loss_mask[t] = 1;
      batch_.targets[t] = static_cast<double>(prompt ? role_of_prompt(member.role) : member.role);
      places_.push_back({t, text.row, i, text.mismatched});
    }
  }

  static PreferenceRole role_of_prompt(PreferenceRole role) {
    return role == PreferenceRole::chosen ? PreferenceRole::chosen_prompt
                                          : PreferenceRole::rejected_prompt;
  }

  corpus::HostBatch batch_;
  size_t rows_ = 0;
  std::vector<Place> places_;
};

// Requests the log-probabilities of all labels and the sums of squared probabilities.
class Reading final : public training::Objective {
 public:
  bool reads_squares() const override { return true; }
  training::ObjectiveTerms evaluate(const corpus::HostBatch&, std::span<const double>,
                                    std::span<double>) const override {
    return {};
  }
};

class PreferenceCheck {
 public:
  PreferenceCheck(const std::string& directory, DeviceKind device, const VerifyOptions& options,
                  Report& report)
      : directory_(directory),
        device_(device),
        options_(options),
        report_(report),
        texts_(directory),
        expected_(directory + "/losses.safetensors"),
        width_(static_cast<size_t>(expected_.shape("input_ids")[1])),
        policy_(2 * texts_.pairs() * (width_ - 1)),
        reference_(policy_),
        squares_(policy_) {}

  void run() {
    compare_inputs();
    read_log_probabilities(kPolicy, policy_, &squares_);
    read_log_probabilities(kReference, reference_);
    compare_log_probabilities();
    const Json cases = Json::read(directory_ + "/cases.json");
    for (const auto& [name, settings] : cases.as_object()) {
      const post_training::PreferenceObjective objective(preference_case(settings));
      compare_case(name, settings, objective);
      if (fs::exists(gradients_of(name))) compare_model(name, settings, objective);
    }
    expected_.report_unused(report_);
  }

 private:
  static constexpr const char *kPolicy = "policy", *kReference = "reference";

  std::string gradients_of(const std::string& name) const {
    return fmt::format("{}/grad_{}.safetensors", directory_, name);
  }
  std::string model(const char* name) const { return directory_ + "/../models/" + name; }

  // Rows that are divided among the layout's data-parallel ranks, unless the loss needs all.
  Rows rows_of(const std::vector<Rows::Group>& groups, bool prompts, bool together) const {
    return Rows(groups, prompts,
                std::lcm(options_.length_multiple(),
                         options_.sequence_parallel ? options_.tensor_parallel : 1),
                options_.data_parallel, together);
  }

  Rows rows_of_case(const Json& settings,
                    const post_training::PreferenceObjective& objective) const {
    const settings::PreferenceSettings& loss = objective.settings();
    std::vector<Rows::Group> groups;
    const std::vector<Text>& own = texts_.of(false);
    if (loss.unpaired()) {
      for (const Text& text : own) {
        Rows::Group& group = groups.emplace_back();
        if (loss.reads_mismatched())
          group.push_back({&texts_.of(true)[text.row], PreferenceRole::mismatched});
        group.push_back({&text, settings["labels"].as_array().at(text.row).as_bool()
                                    ? PreferenceRole::chosen
                                    : PreferenceRole::rejected});
      }
    } else {
      for (size_t i = 0; i < texts_.pairs(); ++i)
        groups.push_back({{&own[i], PreferenceRole::chosen},
                          {&own[i + texts_.pairs()], PreferenceRole::rejected}});
    }
    return rows_of(groups, loss.reads_prompts(), loss.couples());
  }

  void read_log_probabilities(const char* name, Numbers& numbers,
                              Numbers* squares = nullptr) const {
    std::vector<Rows::Group> groups;
    for (const bool mismatched : {false, true})
      for (const Text& text : texts_.of(mismatched))
        groups.push_back({{&text, PreferenceRole::chosen}});
    Rows rows = rows_of(groups, true, false);
    const ObjectiveResults results = objective_results(
        model(name), rows.batch(), std::make_shared<const Reading>(), device_, options_);
    std::vector<double> values, of_squares;
    for (const auto& [sample, of_sample] : results.values)
      for (size_t i = 0; i < of_sample.size(); i += 2) {
        values.push_back(of_sample[i]);
        of_squares.push_back(of_sample[i + 1]);
      }
    rows.take(values, width_, numbers);
    if (squares != nullptr) rows.take(of_squares, width_, *squares);
  }

  void compare_inputs() {
    for (const bool mismatched : {false, true}) {
      const std::string prefix = mismatched ? "KL_" : "";
      std::vector<double> ids(2 * texts_.pairs() * width_), completion(ids), attention(ids);
      for (const Text& text : texts_.of(mismatched)) {
        MG_CHECK(text.ids.size() <= width_,
                 "{}: a text of pairs.json has {} tokens, but input_ids in losses.safetensors has "
                 "{}",
                 directory_, text.ids.size(), width_);
        for (size_t i = 0; i < text.ids.size(); ++i) {
          const size_t at = text.row * width_ + i;
          ids[at] = text.ids[i];
          attention[at] = 1;
          completion[at] = i >= text.prompt ? 1 : 0;
        }
      }
      const auto compare = [&](const std::string& name, const std::vector<double>& own) {
        const std::vector<int64_t> theirs = expected_.integers(name);
        report_.compare("inputs", name,
                        largest_difference(own, std::vector<double>(theirs.begin(), theirs.end())),
                        0);
      };
      compare(prefix + "input_ids", ids);
      compare(prefix + "completion_mask", completion);
      if (!mismatched) compare("attention_mask", attention);
    }
  }

  // Only the labels of completions; the file has 0 elsewhere.
  std::vector<double> of_completions(const Numbers& numbers, bool mismatched) const {
    std::vector<double> values(numbers.own.size());
    for (const Text& text : texts_.of(mismatched))
      for (size_t i = text.prompt; i < text.ids.size(); ++i) {
        const size_t at = text.row * (width_ - 1) + i - 1;
        values[at] = numbers.of(mismatched)[at];
      }
    return values;
  }

  void compare_log_probabilities() {
    const auto compare = [&](const std::string& name, const std::vector<double>& own) {
      report_.compare("log-probabilities", name, largest_difference(own, expected_.doubles(name)),
                      tolerance::kGoldenLogitsAbsolute);
    };
    const std::vector<double> policy = of_completions(policy_, false),
                              reference = of_completions(reference_, false);
    compare("log_probs", policy);
    compare("reference_log_probs", reference);
    compare("KL_log_probs", of_completions(policy_, true));
    compare("log_sum_sq_probs", of_completions(squares_, false));
    compare("KL_reference_log_probs", of_completions(reference_, true));
    compare("log_probs_all", policy_.own);
    for (const bool chosen : {true, false}) {
      std::vector<double> sums, ratios;
      for (size_t i = 0; i < texts_.pairs(); ++i) {
        const auto begin = static_cast<int64_t>((chosen ? i : i + texts_.pairs()) * (width_ - 1)),
                   end = begin + static_cast<int64_t>(width_) - 1;
        sums.push_back(std::accumulate(policy.begin() + begin, policy.begin() + end, 0.0));
        ratios.push_back(sums.back() -
                         std::accumulate(reference.begin() + begin, reference.begin() + end, 0.0));
      }
      compare(chosen ? "chosen_log_probs" : "rejected_log_probs", sums);
      compare(chosen ? "chosen_log_ratio" : "rejected_log_ratio", ratios);
    }
  }

  // Loss, gradient and metrics from this model's log-probabilities.
  void compare_case(const std::string& name, const Json& settings,
                    const post_training::PreferenceObjective& objective) {
    const bool swapped = settings.contains("policy") && settings["policy"].as_string() != kPolicy;
    Rows rows = rows_of_case(settings, objective);
    rows.batch().reference = rows.give(swapped ? policy_ : reference_, width_);
    std::vector<double> values = rows.give(swapped ? reference_ : policy_, width_);
    const size_t each = objective.settings().use_weighting ? 2 : 1;
    if (each == 2) {
      const std::vector<double> second = rows.give(squares_, width_), first = values;
      values.clear();
      for (size_t t = 0; t < first.size(); ++t) values.insert(values.end(), {first[t], second[t]});
    }
    std::vector<double> gradient(values.size());
    const training::ObjectiveTerms terms = objective.evaluate(rows.batch(), values, gradient);
    const double counted = objective.counted(rows.batch()),
                 loss = expected_.doubles(name + ".loss")[0];
    report_.compare("losses", name + ".loss", std::abs(terms.loss / counted - loss),
                    tolerance::kGoldenLossRelative * std::max(std::abs(loss), 1.0));
    std::vector<double> of_tokens;
    for (size_t t = 0; t < gradient.size(); t += each) of_tokens.push_back(gradient[t] / counted);
    Numbers gradients(policy_.own.size());
    rows.take(of_tokens, width_, gradients);
    const std::vector<double> wanted = expected_.doubles(name + ".grad");
    report_.compare(
        "gradients of log-probabilities", name + ".grad", difference_norm(gradients.own, wanted),
        tolerance::kGoldenGradientRelative * norm(wanted) + tolerance::kGoldenGradientAbsolute);
    compare_metrics(name, settings, terms);
  }

  void compare_metrics(const std::string& name, const Json& settings,
                       const training::ObjectiveTerms& terms) {
    if (!settings.contains("metrics")) return;
    std::map<std::string_view, double> own;
    for (const auto& metric : terms.metrics) own[metric.name] = metric.value;
    if (!own.contains("margin")) own["margin"] = own["chosen_reward"] - own["rejected_reward"];
    if (!own.contains("kl")) own["kl"] = 0;
    for (const auto& [theirs, value] : settings["metrics"].as_object()) {
      const auto found = own.find(preference_metric(theirs));
      if (found == own.end()) {
        report_.fail(fmt::format("{}: there is no metric {}", name, theirs));
        continue;
      }
      const double size = std::max(std::abs(value.as_number()), 1.0);
      report_.compare("metrics", name + " " + theirs,
                      std::abs(found->second - value.as_number()) / size,
                      tolerance::kGoldenLossRelative);
    }
  }

  // Loss and gradients of a step.
  void compare_model(const std::string& name, const Json& settings,
                     const post_training::PreferenceObjective& objective) {
    Rows rows = rows_of_case(settings, objective);
    if (objective.settings().couples() && options_.data_parallel > 1)
      report_.note(name +
                   ": its loss is one of a micro-batch, so the first data-parallel rank has "
                   "all texts");
    if (objective.settings().needs_reference())
      rows.batch().reference = rows.give(reference_, width_);
    const ObjectiveResults results = objective_results(
        model(kPolicy), rows.batch(),
        std::make_shared<const post_training::PreferenceObjective>(objective.settings()), device_,
        options_);
    Expected expected(gradients_of(name));
    const double loss = expected.doubles("loss")[0];
    report_.compare("losses", "grad_" + name + " loss", std::abs(results.loss - loss),
                    tolerance::kGoldenLossRelative * std::max(std::abs(loss), 1.0));
    compare_gradients(expected, "grad.", results.gradients, report_);
    expected.report_unused(report_);
  }

  std::string directory_;
  DeviceKind device_;
  const VerifyOptions& options_;
  Report& report_;
  Texts texts_;
  Expected expected_;
  size_t width_;                          // T
  Numbers policy_, reference_, squares_;  // squares_: logarithms, of the policy
};

}  // namespace

settings::PreferenceSettings preference_case(const Json& settings) {
  using settings::Divergence;
  settings::PreferenceSettings result;
  const bool cpo = settings.contains("cpo_alpha");
  result.loss = {"orpo"};
  for (const auto& [key, value] : settings.as_object()) {
    if (key == "loss_type") {
      result.loss.clear();
      for (const Json& kind : value.is_string() ? Json::Array{value} : value.as_array()) {
        const std::string& name = kind.as_string();
        result.loss.push_back(!cpo || name == "simpo" ? name
                              : name == "sigmoid"     ? "cpo"
                                                      : "cpo_" + name);
      }
    } else if (key == "loss_weights") {
      for (const Json& weight : value.as_array())
        result.weights.push_back(fmt::format("{}", weight.as_number()));
    } else if (key == "weights") {
      result.desirable_weight = value.as_array().at(0).as_number();
      result.undesirable_weight = value.as_array().at(1).as_number();
    } else if (key == "f_divergence_type") {
      const std::string& name = value.as_string();
      MG_CHECK(name == "forward_kl" || name == "js_divergence" || name == "alpha_divergence",
               "cases.json: f_divergence_type {} is none of forward_kl, js_divergence and "
               "alpha_divergence",
               name);
      result.divergence = name == "forward_kl"      ? Divergence::forward_kl
                          : name == "js_divergence" ? Divergence::js
                                                    : Divergence::alpha;
    } else if (key == "use_weighting" || key == "reference_free") {
      (key == "use_weighting" ? result.use_weighting : result.reference_free) = value.as_bool();
    } else if (key == "ld_alpha") {
      result.ld_alpha = value.as_number();
    } else if (key == "cpo_alpha") {
      result.cpo_alpha = value.as_number();
    } else if (key != "source" && key != "metrics" && key != "labels" && key != "policy") {
      const std::map<std::string, double*> numbers = {
          {"beta", &result.beta},
          {"label_smoothing", &result.label_smoothing},
          {"discopop_tau", &result.discopop_tau},
          {"f_alpha_divergence_coef", &result.alpha_divergence},
          {"simpo_gamma", &result.simpo_gamma},
          {"alpha", &result.alphapo_alpha}};
      const auto found = numbers.find(key);
      MG_CHECK(found != numbers.end(), "cases.json: {} is no setting of a loss", key);
      *found->second = value.as_number();
    }
  }
  return result;
}

std::string preference_metric(std::string_view theirs) {
  static constexpr std::array<std::array<std::string_view, 2>, 7> kNames = {
      {{"rewards/chosen", "chosen_reward"},
       {"rewards/rejected", "rejected_reward"},
       {"rewards/accuracies", "accuracy"},
       {"rewards/margins", "margin"},
       {"logps/chosen", "chosen_log_probability"},
       {"logps/rejected", "rejected_log_probability"},
       {"kl", "kl"}}};
  for (const auto& [name, own] : kNames)
    if (name == theirs) return std::string(own);
  return {};
}

bool has_preferences(const std::string& directory) {
  return fs::exists(directory + "/pairs.json") && fs::exists(directory + "/cases.json") &&
         fs::exists(directory + "/losses.safetensors");
}

std::vector<Report> verify_preferences(const std::string& directory, const VerifyOptions& options) {
  std::vector<Report> reports;
  for (const DeviceKind device : options.devices) {
    Report report(fmt::format("{}: losses of preferences on {} in {}{}", directory, name(device),
                              device == DeviceKind::reference ? "f64" : "f32", options.text()));
    PreferenceCheck(directory, device, options, report).run();
    reports.push_back(std::move(report));
  }
  return reports;
}

}  // namespace megatron::selftest
