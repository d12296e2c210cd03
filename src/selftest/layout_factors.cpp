#include "selftest/layout_factors.h"

#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "base/divide.h"
#include "base/error.h"
#include "base/setting_note.h"
#include "settings/rules.h"

namespace megatron::selftest {
namespace {

enum Axis : size_t {
  kTensor,
  kSequence,
  kContext,
  kExchange,
  kPipeline,
  kSchedule,
  kData,
  kSharding,
  kInstances,
  kRecompute,
  kOverlap,
  kOffload,
  kModel,
  kExpert,
  kExpertTensor,
  kMicroBatch,
  kPacked,
};

const std::string& value(const Row& row, Axis axis) {
  const auto at = static_cast<size_t>(std::max(row[axis], 0));
  return layout_factors()[axis].values[at];
}

int64_t number(const Row& row, Axis axis) { return std::stoll(value(row, axis)); }

int64_t layers_of_virtual_stage(int64_t virtual_stage, int64_t virtual_stages, int64_t num_layers) {
  return (virtual_stage + 1) * num_layers / virtual_stages -
         virtual_stage * num_layers / virtual_stages;
}

// "Et|t||tL"
std::string layout_text(int64_t virtual_stages, int64_t num_layers) {
  std::string text = "E";
  for (int64_t virtual_stage = 0; virtual_stage < virtual_stages; ++virtual_stage) {
    if (virtual_stage > 0) text += '|';
    text.append(
        static_cast<size_t>(layers_of_virtual_stage(virtual_stage, virtual_stages, num_layers)),
        't');
  }
  return text + 'L';
}

// True if micro-batches can be overlapped, i.e. no other value excludes it.
bool may_overlap_experts(const LayoutSettings& s) {
  return !s.recompute.granularity.value_or("").starts_with("full") && s.offload.num_layers == 0 &&
         !s.parallel.schedule->starts_with("zb") &&
         *s.parallel.sharding_strategy != "optim_grads_params";
}

int64_t chunks_of(const std::string& schedule) {
  return schedule == "interleaved" || schedule == "zb-v" ? 2 : 1;
}

// Checks the settings of a row, as far as its values are chosen.
class LayoutCheck {
 public:
  LayoutCheck(const Row& row, const LayoutLimits& limits)
      : limits_(limits), settings_(layout_settings(row, limits)) {}

  std::string ranks() const {
    if (settings_.ranks() <= limits_.ranks) return {};
    return fmt::format("{} ranks exceed the limit of {}", settings_.ranks(), limits_.ranks);
  }

  std::string parallel() const {
    return said([this](std::vector<SettingNote>& notes) {
      settings_.parallel.check(static_cast<int>(settings_.ranks()), limits_.num_layers, 0,
                               limits_.seq_length, notes);
    });
  }

  std::string sizes() const {
    return said([this](std::vector<SettingNote>&) { settings_.parallel.check_sizes(); });
  }

  std::string micro_batches() const {
    const int64_t at_once = settings_.data_parallel * settings_.micro_batch;
    if (limits_.sequences % at_once != 0) {
      return fmt::format("{} sequences cannot be divided into micro-batches of {} on {} ranks",
                         limits_.sequences, settings_.micro_batch, settings_.data_parallel);
    }
    return said([&](std::vector<SettingNote>& notes) {
      settings_.parallel.check(static_cast<int>(settings_.ranks()), limits_.num_layers,
                               limits_.sequences / at_once, limits_.seq_length, notes);
    });
  }

  std::string recompute() const {
    return said([this](std::vector<SettingNote>& notes) {
      settings_.recompute.check(most_layers(), notes);
      check_rules(settings::RuleScope::memory,
                  {.parallel = settings_.parallel, .recompute = settings_.recompute});
    });
  }

  // Only a model with experts can have expert-parallel ranks.
  std::string experts() const {
    const bool divides = settings_.parallel.expert_parallel > 1 ||
                         settings_.parallel.expert_tensor_parallel.has_value();
    if (settings_.model == 2 || settings_.model == 5 || !divides) return {};
    return "the model has no experts";
  }

  // All exchanges are the same to one rank.
  std::string exchange() const {
    const settings::ParallelSettings& p = settings_.parallel;
    if (p.context_parallel == 1)
      return p.context_exchange[0] == "p2p" ? "" : "one rank exchanges nothing";
    return said([&](std::vector<SettingNote>&) {
      parallel::rank_lists(p.mesh_layout(), static_cast<int>(p.context_parallel),
                           parallel::Axis::cp);
    });
  }

  std::string heads() const {
    const settings::ParallelSettings& p = settings_.parallel;
    const int64_t held = limits_.heads / p.tensor_parallel;
    if (p.context_exchange[0] != "a2a" || held % p.context_parallel == 0) return {};
    return fmt::format("{} heads cannot be divided among {} ranks", held, p.context_parallel);
  }

  std::string expert_ranks() const {
    try {
      parallel::rank_lists(settings_.parallel.mesh_layout(), static_cast<int>(settings_.ranks()),
                           parallel::Axis::ep, true);
    } catch (const Error& error) {
      return error.what();
    }
    return {};
  }

  std::string offload() const {
    return said([this](std::vector<SettingNote>& notes) {
      settings_.offload.check(least_layers(), notes);
      check_rules(settings::RuleScope::memory, {.parallel = settings_.parallel,
                                                .recompute = settings_.recompute,
                                                .offload = settings_.offload});
    });
  }

 private:
  // Returns the text of an error, or of a note that a flag has no effect.
  template <class F>
  static std::string said(F&& check) {
    std::vector<SettingNote> notes;
    try {
      check(notes);
    } catch (const Error& error) {
      return error.what();
    }
    for (const SettingNote& note : notes) {
      if (note.flag == "sequence-parallel")
        return fmt::format("--{} becomes {}: {}", note.flag, note.value, note.cause);
    }
    return {};
  }

  int64_t virtual_stages() const {
    return settings_.parallel.pipeline(limits_.num_layers).virtual_stages();
  }
  int64_t least_layers() const { return limits_.num_layers / virtual_stages(); }
  int64_t most_layers() const { return ceil_div(limits_.num_layers, virtual_stages()); }

  const LayoutLimits& limits_;
  const LayoutSettings settings_;
};

// A check that depends on some factors only, evaluated once for each combination of their values.
// `given`: values used for the other factors.
struct Rule {
  std::vector<Axis> axes;
  std::string (LayoutCheck::*check)() const;
  std::vector<std::pair<Axis, int>> given;
  Axis last;  // of `axes`
  std::vector<std::optional<std::string>> answers;
};

class Rules {
 public:
  explicit Rules(const LayoutLimits& limits) : limits_(limits) {
    using Check = LayoutCheck;
    // Checks of fewer factors come first, since their messages are clearer.
    add({kTensor, kSequence}, &Check::parallel);
    add({kModel, kExpert, kExpertTensor}, &Check::experts);
    add({kContext, kExchange}, &Check::exchange);
    add({kTensor, kContext, kExchange}, &Check::heads);
    add({kTensor, kContext, kPipeline, kData, kInstances, kExpert, kExpertTensor},
        &Check::expert_ranks);
    add({kPipeline, kSchedule}, &Check::parallel);
    add({kSharding, kInstances}, &Check::parallel, {{kData, 1}});
    add({kData, kInstances}, &Check::parallel, {{kSharding, 1}});
    add({kSharding, kOverlap}, &Check::parallel);
    add({kRecompute, kOffload}, &Check::offload);
    add({kPipeline, kOffload}, &Check::offload);
    add({kSchedule, kOffload}, &Check::offload, {{kPipeline, 1}});
    add({kData, kMicroBatch}, &Check::micro_batches);
    add({kTensor, kContext, kPipeline, kData}, &Check::ranks);
    add({kPipeline, kSchedule, kOffload}, &Check::offload);
    add({kPipeline, kSchedule, kRecompute}, &Check::recompute);
    add({kSchedule, kSharding, kRecompute}, &Check::recompute, {{kPipeline, 1}});
    add({kPipeline, kSchedule, kData, kMicroBatch}, &Check::micro_batches);
    add({kTensor, kSequence, kExpert, kExpertTensor}, &Check::sizes);
    add({kTensor, kSequence, kContext, kPipeline, kSchedule, kData, kSharding, kInstances,
         kOverlap},
        &Check::parallel);
  }

  // Most rows begin as the accepted one before, whose rules then need not be asked again.
  std::string operator()(const Row& row) {
    const auto begun = std::ranges::mismatch(row, accepted_).in1;
    const auto known = static_cast<size_t>(begun - row.begin());
    for (Rule& rule : rules_) {
      if (rule.last < known) continue;
      size_t at = 0;
      bool open = false;
      for (const Axis axis : rule.axes) {
        open = row[axis] == kOpen;
        if (open) break;
        at = at * counts_[axis] + static_cast<size_t>(row[axis]);
      }
      if (open) continue;
      auto& answer = rule.answers[at];
      if (!answer) answer = ask(rule, row);
      if (!answer->empty()) return *answer;
    }
    accepted_ = row;
    return {};
  }

 private:
  void add(std::vector<Axis> axes, std::string (LayoutCheck::*check)() const,
           std::vector<std::pair<Axis, int>> given = {}) {
    size_t size = 1;
    for (const Axis axis : axes) size *= counts_[axis];
    const Axis last = std::ranges::max(axes);
    rules_.push_back({std::move(axes), check, std::move(given), last, {}});
    rules_.back().answers.resize(size);
  }

  std::string ask(const Rule& rule, const Row& row) const {
    Row alone(layout_factors().size(), kOpen);
    for (const auto& [axis, place] : rule.given) alone[axis] = place;
    for (const Axis axis : rule.axes) alone[axis] = row[axis];
    return (LayoutCheck(alone, limits_).*rule.check)();
  }

  static std::vector<size_t> counts() {
    std::vector<size_t> counts;
    for (const Factor& factor : layout_factors()) counts.push_back(factor.values.size());
    return counts;
  }

  const LayoutLimits limits_;
  const std::vector<size_t> counts_ = counts();  // of values, by axis
  std::vector<Rule> rules_;
  Row accepted_;  // the last row without an objection
};

}  // namespace

const std::vector<Factor>& layout_factors() {
  static const std::vector<Factor> factors = {
      {"tp", {"1", "2", "4"}},
      {"sequence", {"off", "on"}},
      {"cp", {"1", "2", "4"}},
      {"exchange", {"p2p", "all_gather", "a2a", "a2a+p2p"}},
      {"pp", {"1", "2", "3", "4"}},
      {"schedule", {"1f1b", "interleaved", "zb-h1", "zb-v"}},
      {"dp", {"1", "2", "3", "4"}},
      {"sharding", {"no_shard", "optim", "optim_grads", "optim_grads_params"}},
      {"instances", {"1", "2"}},
      {"recompute", {"none", "selective", "full-uniform", "full-block", "mlp-chunks"}},
      {"overlap", {"off", "on"}},
      {"offload", {"none", "optimizer", "activations"}},
      {"model", {"llama", "gpt2", "experts", "latent", "bert", "hybrid", "t5"}},
      {"ep", {"1", "2", "4"}},
      {"etp", {"tp", "1"}},
      {"micro-batch", {"1", "2"}},
      {"packed", {"off", "on"}},
  };
  return factors;
}

LayoutSettings layout_settings(const Row& row, const LayoutLimits& limits) {
  LayoutSettings result;
  settings::ParallelSettings& parallel = result.parallel;
  parallel.tensor_parallel = number(row, kTensor);
  parallel.sequence_parallel = value(row, kSequence) == "on";
  parallel.context_parallel = number(row, kContext);
  parallel.context_exchange = {value(row, kExchange)};
  if (value(row, kExchange) == "a2a+p2p") parallel.hierarchical_context = {"2", "2"};
  parallel.pipeline_parallel = number(row, kPipeline);
  parallel.schedule = value(row, kSchedule);
  const int64_t chunks = chunks_of(*parallel.schedule);
  const int64_t virtual_stages = parallel.pipeline_parallel * chunks;
  if (limits.num_layers % virtual_stages != 0)
    parallel.layout = layout_text(virtual_stages, limits.num_layers);
  else if (chunks > 1) parallel.virtual_stages = chunks;
  parallel.sharding_strategy = value(row, kSharding);
  parallel.optimizer_instances = number(row, kInstances);
  const bool overlap = value(row, kOverlap) == "on";
  parallel.overlap_p2p = parallel.overlap_grad_reduce = overlap;
  parallel.overlap_param_gather = overlap && *parallel.sharding_strategy != "no_shard";

  parallel.overlap_shared_expert = overlap;
  if (overlap) parallel.token_dispatcher = settings::ParallelSettings::Dispatcher::alltoall;

  const std::string& recompute = value(row, kRecompute);
  if (recompute == "selective") result.recompute.granularity = recompute;
  if (recompute == "full-uniform" || recompute == "full-block") {
    result.recompute.granularity = "full";
    result.recompute.method = recompute.substr(5);
    result.recompute.num_layers = 1;
  }
  if (recompute == "mlp-chunks") result.recompute.mlp_chunks = 3;
  result.offload.optimizer = value(row, kOffload) == "optimizer";
  result.offload.num_layers = value(row, kOffload) == "activations" ? 1 : 0;
  result.data_parallel = number(row, kData);
  result.micro_batch = number(row, kMicroBatch);
  result.packed = value(row, kPacked) == "on";
  const auto& models = layout_factors()[kModel].values;
  result.model =
      static_cast<size_t>(std::ranges::find(models, value(row, kModel)) - models.begin());
  parallel.expert_parallel = number(row, kExpert);
  if (value(row, kExpertTensor) == "1") parallel.expert_tensor_parallel = 1;
  parallel.overlap_experts = overlap && may_overlap_experts(result);
  return result;
}

Refusal layout_refusal(const LayoutLimits& limits) {
  const auto rules = std::make_shared<Rules>(limits);
  return [rules](const Row& row) { return (*rules)(row); };
}

}  // namespace megatron::selftest
