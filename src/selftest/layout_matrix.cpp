#include "selftest/layout_matrix.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "base/error.h"
#include "base/tolerances.h"
#include "models/adapters/lora_config.h"
#include "post_training/masked_text.h"
#include "post_training/reward.h"
#include "selftest/layout_factors.h"
#include "selftest/preferences.h"
#include "selftest/toy_objective.h"

namespace megatron::selftest {
namespace {

constexpr LayoutLimits kLimits;
// The order that this seed, out of 30, gives the possible rows leads to the fewest ranks of all
// rows of pairs together.
constexpr uint64_t kOrderOfRows = 11;
// Indices in matrix_models().
constexpr size_t kGpt2 = 1, kExperts = 2, kLatent = 3, kBert = 4, kHybrid = 5, kT5 = 6,
                 kDroppingExperts = 7, kPredicting = 8, kPredictingExperts = 9,
                 kPredictingLatent = 10;

Layout layout_of(const LayoutSettings& s) {
  return {.tp = static_cast<int>(s.parallel.tensor_parallel),
          .cp = static_cast<int>(s.parallel.context_parallel),
          .dp = static_cast<int>(s.data_parallel),
          .ep = static_cast<int>(s.parallel.expert_parallel),
          .etp = static_cast<int>(s.parallel.expert_tensor_parallel.value_or(0)),
          .sequence = s.parallel.sequence_parallel,
          .pipeline = s.parallel.pipeline(kLimits.num_layers),
          .layers = s.parallel.placement(),
          .sharding = s.parallel.sharding(),
          .instances = static_cast<int>(s.parallel.optimizer_instances),
          .recompute = s.recompute.options(),
          .mlp_chunks = s.recompute.mlp_chunks,
          .overlap = s.parallel.overlap_grad_reduce,
          .dispatcher = s.parallel.ranks_options(kLimits.num_layers).dispatcher,
          .exchange = s.parallel.context_exchanges().at(0),
          .context_levels = s.parallel.context_levels(),
          .offload = s.offload.options(),
          .optimizer_offload = s.offload.fraction(),
          .micro_batch = s.micro_batch};
}

// One dense layer, then experts; losses that depend neither on micro-batches nor on ranks.
models::ModelFlags with_experts(models::ModelFlags flags) {
  flags.moe.num_experts = 4;
  flags.moe.ffn_hidden_size = 24;
  flags.moe.latent_size = 20;
  flags.moe.layer_freq = "[0,1,1,1]";
  flags.moe.score = kernels::RouterScore::sigmoid;
  flags.moe.enable_expert_bias = true;
  flags.moe.shared_ffn = 16;
  flags.moe.load_balancing_type = {"seq_aux_loss"};
  flags.moe.aux_loss_coeff = {"0.1"};
  flags.moe.z_loss_coeff = 0.01;
  flags.moe.bias_update_rate = 0.05;
  return flags;
}

// Four layers: a state space, attention, experts, a state space.
models::ModelFlags with_hybrid_experts(models::ModelFlags flags) {
  flags = with_experts(std::move(flags));
  flags.moe.layer_freq = models::MoeFlags{}.layer_freq;
  flags.hybrid_layer_pattern = "M*EM";
  return flags;
}

models::ModelFlags with_latents(models::ModelFlags flags) {
  flags.multi_latent_attention = true;
  flags.q_lora_rank = 20;
  flags.kv_lora_rank = 12;
  flags.qk_head_dim = 4;
  flags.qk_pos_emb_head_dim = 2;
  flags.v_head_dim = 3;
  flags.group_query_attention = false;
  flags.num_query_groups = 1;
  flags.latent_yarn = false;
  flags.kv_channels.reset();
  return flags;
}

models::ModelFlags with_capacity(models::ModelFlags flags) {
  flags.moe.capacity_factor = 0.75;
  return flags;
}

models::ModelFlags with_prediction(models::ModelFlags flags, int64_t depths) {
  flags.mtp_num_layers = depths;
  flags.mtp_loss_scaling_factor = 0.5;
  return flags;
}

// Two layers of an encoder and two of a decoder.
TinyModel matrix_t5() {
  TinyModel t5 = tiny_t5();
  Json config = Json::parse(t5.config);
  config.set("num_heads", kLimits.heads);
  config.set("d_kv", 4);
  config.set("initializer_factor", 4.0);
  t5.config = config.dump();
  return t5;
}

// Number of ranks that share a layer's experts.
int expert_ranks(const Layout& layout) {
  return layout.ep * (layout.etp == 0 ? layout.tp : layout.etp);
}

// Four layers, so that four stages have one each; eight heads in four groups for four
// tensor-parallel ranks, with two context-parallel ranks each.
std::vector<TinyModel> matrix_models() {
  std::vector<TinyModel> all = tiny_models();
  all.resize(2);
  std::swap(all[0], all[1]);
  all.push_back({"experts", with_experts(all[0].flags)});
  all.push_back({"latent", all[0].flags});
  all.push_back(tiny_encoders()[0]);
  all.push_back(tiny_hybrid());
  all.back().flags = with_hybrid_experts(std::move(all.back().flags));
  all.push_back(matrix_t5());
  all.push_back({"experts of a capacity", with_capacity(all[kExperts].flags)});
  all.push_back({"llama, predicting", with_prediction(all[0].flags, 2)});
  all.push_back({"experts, predicting", with_prediction(all[kExperts].flags, 1)});
  all.push_back({"latent, predicting", with_prediction(all[0].flags, 1)});
  for (TinyModel& m : all) {
    if (!m.config.empty()) continue;
    if (!m.flags.hybrid_layer_pattern) m.flags.num_layers = kLimits.num_layers;
    m.flags.num_attention_heads = kLimits.heads;
    m.flags.kv_channels = 4;
    if (m.flags.group_query_attention) m.flags.num_query_groups = 4;
  }
  for (const size_t latent : {kLatent, kPredictingLatent})
    all[latent].flags = with_latents(all[latent].flags);
  return all;
}

// An expert may be on several ranks when a dense parameter is not.
bool keeps_bits(const MatrixRow& row) {
  const Layout& layout = row.layout;
  const bool replicated =
      layout.dp * layout.cp > 1 || (row.has_experts() && layout.tp > expert_ranks(layout));
  const bool reduces_each = layout.sharding >= parallel::Sharding::gradients && replicated;
  const bool several = kLimits.sequences / layout.dp > layout.micro_batch;
  return layout.instances == 1 && !(reduces_each && several);
}

// A combination that no covering of pairs or triples contains: tensor-parallel ranks with different
// numbers of the 61 tokens, each of which would alone choose other bucket boundaries, and gradients
// that are summed over these ranks by bucket.
MatrixRow uneven_buckets() {
  return {.model = 0,
          .layout = {.tp = 4,
                     .dp = 3,
                     .sequence = true,
                     .sharding = parallel::Sharding::optimizer,
                     .overlap = true,
                     .micro_batch = 2,
                     .bucket_elements = 500}};
}

// A model with dropout that one stage holds.
MatrixRow preferences_of_one_stage() {
  return {.model = kGpt2,
          .packed = true,
          .task = MatrixTask::preferences,
          .layout = {.tp = 2, .dp = 2, .sequence = true, .micro_batch = 2}};
}

// Without an objective of its own, an encoder learns masked tokens and pairs of texts.
std::shared_ptr<const training::Objective> objective_of(MatrixTask task, bool encoder) {
  switch (task) {
    case MatrixTask::next_tokens:
    case MatrixTask::predictions:
    case MatrixTask::adapters:
      return encoder ? std::make_shared<const post_training::MaskedTextObjective>(true) : nullptr;
    case MatrixTask::objective:
      if (encoder) return std::make_shared<const post_training::MaskedTextObjective>(true, 2.5);
      return std::make_shared<const SquaredSequenceLoss>();
    case MatrixTask::rewards: return std::make_shared<const post_training::RewardObjective>(0.02);
    case MatrixTask::preferences: return std::make_shared<const ComparedPreferences>();
  }
  MG_ASSERT(false);
}

// Adapters of all matrices but the head, of two ranks and two scales, with dropout where there are
// no experts. Without preferences, whose reference is the model itself, the biases and a table of
// tokens or the output layer are trained, too.
models::LoraConfig matrix_adapters(const MatrixRow& row) {
  using models::NamePattern;
  // Models of no published family: modules have the names of the model's description.
  const bool own_names = row.model == kExperts || row.model == kLatent;
  models::LoraConfig config{
      .rank = 4, .alpha = 6, .dropout = row.has_experts() ? 0 : 0.25, .all_linear = true};
  if (row.task == MatrixTask::adapters) {
    config.bias = models::LoraBias::all;
    config.modules_to_save = {row.model == kGpt2 ? "wte" : own_names ? "embedding" : "lm_head"};
  }
  const auto rank = [&](const char* name) {
    config.rank_pattern.emplace_back(NamePattern(name, NamePattern::Use::ending), 3);
  };
  const auto alpha = [&](const char* name) {
    config.alpha_pattern.emplace_back(NamePattern(name, NamePattern::Use::ending), 2);
  };
  if (row.model == kGpt2) {
    rank("c_fc");
  } else if (own_names) {
    rank("down");
    alpha("up");
  } else {
    for (const char* name : {"k_proj", "up_proj"}) rank(name);
    for (const char* name : {"v_proj", "up_proj"}) alpha(name);
  }
  return config;
}

}  // namespace

Layout plain_layout(const Layout& layout, DeviceKind device) {
  return {.tp = layout.tp,
          .cp = layout.cp,
          .dp = layout.dp,
          .ep = layout.ep,
          .etp = layout.etp,
          .sequence = layout.sequence,
          .mlp_chunks = device == DeviceKind::cuda ? layout.mlp_chunks : 1,
          .exchange = layout.exchange,
          .context_levels = layout.context_levels,
          .micro_batch = layout.micro_batch};
}

std::string MatrixRow::str() const {
  constexpr const char* kNames[] = {"llama", "gpt2", "experts", "latent", "bert", "hybrid", "t5"};
  constexpr const char* kTasks[] = {"",           "objective, ",   "rewards, ",
                                    "adapters, ", "preferences, ", "predictions, "};
  return fmt::format("{}{}, {}{}{}", kNames[model], drops_tokens ? " of a capacity" : "",
                     kTasks[static_cast<size_t>(task)], packed ? "packed, " : "", layout.str());
}

LayoutMatrix::LayoutMatrix(int strength)
    : strength_(strength),
      covering_(cover(layout_factors(), layout_refusal(kLimits), strength, kOrderOfRows)) {
  int experts = 0;  // number of rows with experts so far
  for (const Row& row : covering_.rows) {
    const int number = static_cast<int>(rows_.size());
    const LayoutSettings settings = layout_settings(row, kLimits);
    rows_.push_back({.number = number,
                     .model = settings.model,
                     .drops_tokens = settings.model == kExperts && experts++ % 2 == 0,
                     .packed = settings.packed,
                     .layout = layout_of(settings)});
  }
  if (strength == 2) {
    const auto add_rows = [this](std::vector<MatrixTask> tasks,
                                 const std::function<bool(const Row&)>& may) {
      for (size_t next = 0; const size_t i : rows_with_every_value(covering_, may)) {
        const MatrixTask task = tasks[next++ % tasks.size()];
        rows_.push_back(rows_[i]);
        rows_.back().task = task;
        // Documents may begin with the same token (pack() in tiny_models.cpp).
        if (task == MatrixTask::preferences || task == MatrixTask::predictions)
          rows_.back().drops_tokens = false;
        rows_.back().number = static_cast<int>(rows_.size()) - 1;
      }
    };
    add_rows({MatrixTask::objective, MatrixTask::rewards}, may_reward);
    add_rows({MatrixTask::adapters}, may_adapt);
    add_rows({MatrixTask::preferences}, may_prefer);
    rows_.push_back(preferences_of_one_stage());
    rows_.back().number = static_cast<int>(rows_.size()) - 1;
    add_rows({MatrixTask::predictions}, may_predict);
  }
  rows_.push_back(uneven_buckets());
  rows_.back().number = static_cast<int>(rows_.size()) - 1;
}

std::vector<const MatrixRow*> LayoutMatrix::part(int number, int parts) const {
  std::vector<const MatrixRow*> sorted;
  for (const MatrixRow& row : rows_) sorted.push_back(&row);
  std::ranges::stable_sort(sorted, {}, [](const MatrixRow* row) {
    return std::tuple(row->model, row->task, row->drops_tokens, row->packed);
  });
  const auto begin_of = [&](int part) {
    return sorted.begin() + static_cast<ptrdiff_t>(sorted.size()) * part / parts;
  };
  return {begin_of(number), begin_of(number + 1)};
}

bool LayoutMatrix::may_reward(const Row& row) { return layout_settings(row, kLimits).model != kT5; }

bool LayoutMatrix::may_adapt(const Row& row) {
  const LayoutSettings settings = layout_settings(row, kLimits);
  return settings.recompute.mlp_chunks == 1 && settings.model != kBert &&
         settings.model != kHybrid && settings.model != kT5;
}

bool LayoutMatrix::may_predict(const Row& row) {
  const size_t model = layout_settings(row, kLimits).model;
  return model != kGpt2 && model != kBert && model != kHybrid && model != kT5;
}

bool LayoutMatrix::may_prefer(const Row& row) {
  return may_adapt(row) && layout_settings(row, kLimits).packed;
}

std::vector<size_t> LayoutMatrix::rows_with_every_value(
    const Covering& covering, const std::function<bool(const Row&)>& may) {
  std::vector<size_t> rows;
  for (size_t i = 0; i < covering.rows.size(); ++i)
    if (!may || may(covering.rows[i])) rows.push_back(i);
  using Value = std::pair<size_t, int>;  // factor and value
  const auto values_of = [](const Row& row) {
    std::set<Value> values;
    for (size_t factor = 0; factor < row.size(); ++factor)
      values.emplace(factor, std::max(row[factor], 0));
    return values;
  };
  std::set<Value> open;
  for (const size_t i : rows) open.merge(values_of(covering.rows[i]));
  std::vector<size_t> chosen;
  while (!open.empty()) {
    const auto gain = [&](size_t i) {
      return std::ranges::count_if(values_of(covering.rows[i]),
                                   [&](const Value& value) { return open.contains(value); });
    };
    const size_t best = *std::ranges::max_element(rows, {}, gain);
    for (const Value& value : values_of(covering.rows[best])) open.erase(value);
    chosen.push_back(best);
  }
  return chosen;
}

std::vector<std::string> LayoutMatrix::excluded() const {
  std::vector<std::string> lines;
  for (const ExcludedPair& pair : covering_.excluded)
    lines.push_back(describe(layout_factors(), pair));
  return lines;
}

std::string LayoutMatrix::summary() const {
  return fmt::format(
      "{} layouts cover all {} {} of values of {} flags that occur among the {} possible layouts; "
      "{} pairs are impossible; {} additional layouts have an uneven vocabulary in small buckets, "
      "or "
      "another task",
      covering_.rows.size(), covering_.tuples, strength_ == 2 ? "pairs" : "triples",
      layout_factors().size(), covering_.possible, covering_.excluded.size(),
      rows_.size() - covering_.rows.size());
}

struct MatrixRun::State {
  const Environment& environment;
  Precisions precisions = Precisions::all;
  DeviceKind device = DeviceKind::cpu;  // device for fp32
  std::vector<models::Model> models;
  std::map<std::string, Outcome> known = {};  // by type and row

  // Without the dropout of activations and adapters, if the row has preferences.
  const Outcome& outcome(const MatrixRow& row, DeviceKind device, bool dropout = true);
};

const Outcome& MatrixRun::State::outcome(const MatrixRow& row, DeviceKind device, bool dropout) {
  const std::string key = fmt::format("{} {} {}", name(device), row.str(), dropout);
  const auto found = known.find(key);
  if (found != known.end()) return found->second;
  const DType type = device == DeviceKind::reference ? DType::f64 : DType::f32;
  const size_t predicting = row.model == kExperts  ? kPredictingExperts
                            : row.model == kLatent ? kPredictingLatent
                                                   : kPredicting;
  models::Model model = models[row.task == MatrixTask::predictions ? predicting
                               : row.drops_tokens                  ? kDroppingExperts
                                                                   : row.model];
  if (row.task == MatrixTask::rewards)
    model = model->with({.score_head = models::ScoreHead{.label_names = {"reward"},
                                                         .padding = model->facts().score_padding}});
  const bool prefers = row.task == MatrixTask::preferences;
  if (prefers || row.task == MatrixTask::adapters) {
    models::LoraConfig config = matrix_adapters(row);
    if (!dropout) {
      config.dropout = 0;
      model = model->with({.hidden_dropout = 0, .attention_dropout = 0});
    }
    model = model->with({.adapter = std::make_shared<const models::LoraConfig>(std::move(config))});
  }
  const Experiment experiment(model, device, type, type, settings::LossScope::token,
                              kLimits.sequences, kLimits.seq_length, environment,
                              objective_of(row.task, row.is_encoder()), row.packed, prefers);
  std::vector<optim::Method> methods = {optim::Method::sgd};
  if (row.task == MatrixTask::next_tokens) methods.push_back(optim::Method::adam);
  return known.emplace(key, experiment.run(row.layout, methods)).first->second;
}

MatrixRun::MatrixRun(const Environment& environment, Precisions precisions, DeviceKind device,
                     std::function<models::Model(const models::Model&)> composed)
    : state_(std::make_unique<State>(State{environment, precisions, device, {}})) {
  for (const TinyModel& tiny : matrix_models())
    state_->models.push_back(composed ? composed(tiny.model()) : tiny.model());
}
MatrixRun::~MatrixRun() = default;

Report MatrixRun::run(const MatrixRow& row) {
  const auto compare_reference = [this](const MatrixRow& row, const MatrixRow& one,
                                        Report& report) {
    const auto values = [this](const MatrixRow& of, bool dropout) {
      return state_->outcome(of, DeviceKind::reference, dropout)
          .metrics.at(std::string(ComparedPreferences::kReference));
    };
    const std::vector<double> found = values(row, true), expected = values(one, false);
    for (size_t i = 0; i < expected.size(); ++i)
      report.compare("reference log-probability", fmt::format("step {}, without dropout", i),
                     relative_error(found.at(i), expected[i]), tolerance::kLayoutFp64);
  };
  Report report(fmt::format("row {}: {}", row.number, row.str()));
  MatrixRow one = row;
  one.layout = {.micro_batch = 2};
  const auto against = [&](const MatrixRow& other, DeviceKind device, double bound,
                           const std::string& what) {
    const Outcome& expected = state_->outcome(other, device);
    compare_outcomes(what, state_->outcome(row, device), expected, bound, report);
  };
  MatrixRow same = row;
  same.layout = plain_layout(row.layout, state_->device);
  const bool bits = keeps_bits(row) && same.str() != row.str();
  // A rounding difference in scores can change which experts a token chooses, and the gradients of
  // an encoder's key biases are rounding alone: they are 0 in exact arithmetic. So in fp32 results
  // are compared bit for bit or not at all.
  const bool by_bits = row.has_experts() || row.is_encoder();
  const bool other_task = row.task != MatrixTask::next_tokens;
  if (state_->precisions != Precisions::fp32 || (by_bits && !bits) || other_task)
    against(one, DeviceKind::reference, tolerance::kLayoutFp64, "fp64");
  if (row.task == MatrixTask::preferences) compare_reference(row, one, report);
  if (state_->precisions == Precisions::fp64 || other_task) return report;
  if (!by_bits) against(one, state_->device, tolerance::kLayoutFp32, "fp32");
  if (bits) against(same, state_->device, 0, "fp32, bit for bit");
  return report;
}

}  // namespace megatron::selftest
