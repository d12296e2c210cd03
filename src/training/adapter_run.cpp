#include "training/adapter_run.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/safetensors.h"
#include "models/adapters/adapter_directory.h"
#include "models/adapters/adapter_rules.h"
#include "models/adapters/expert_modules.h"
#include "models/stage.h"
#include "training/run_plan.h"
#include "training/stored_names.h"

namespace megatron::training {
namespace {

std::unique_ptr<models::Stage> shape_of(const models::Model& model) {
  static Runtime shapes_only({DeviceKind::meta, 0}, 1);
  return model.build(shapes_only, DType::f32, 0, {.layers = model->num_layers()}, {});
}

// Calls f for a module's name and its ends after dots, the shortest first, until it returns true.
template <class F>
void for_each_end(std::string_view module, F&& f) {
  for (size_t dot = module.rfind('.'); dot != module.npos && dot > 0;
       dot = module.rfind('.', dot - 1))
    if (f(module.substr(dot + 1))) return;
  f(module);
}

// The shortest ends of the modules' names with which no other module's name ends.
std::vector<std::string> targets_of(const models::AdaptedModules& modules) {
  std::set<std::string_view> others;
  for (const std::string& module : modules.all)
    if (!modules.adapted.contains(module))
      for_each_end(module, [&](std::string_view end) {
        others.insert(end);
        return false;
      });
  std::set<std::string> targets;
  for (const auto& [module, adapter] : modules.adapted)
    for_each_end(module, [&](std::string_view end) {
      const bool own = !others.contains(end);
      if (own) targets.emplace(end);
      return own;
    });
  return {targets.begin(), targets.end()};
}

// Pattern of the same matrix of all experts of a layer, whose adapters are alike.
std::string of_all_experts(std::string module) {
  if (const auto expert = models::expert_module(module)) {
    const std::string number = "." + std::to_string(expert->number) + ".";
    module.replace(module.rfind(number), number.size(), ".[0-9]+.");
  }
  return module;
}

// Puts experts' modules in the place of the parameters that were targets, with the ranks and alphas
// of these. They are among the targets.
void name_experts(const models::AdaptedModules& modules, models::LoraConfig& config) {
  config.target_parameters = {};
  config.layers_to_transform = {};
  config.layers_pattern = {};
  for (const auto& [module, adapter] : modules.adapted) {
    const auto now = adapter_of(config, module, models::ModuleKind::linear);
    if (!now || *now == adapter) continue;
    const models::NamePattern pattern(of_all_experts(module), models::NamePattern::Use::ending);
    if (now->rank != adapter.rank) config.rank_pattern.emplace_back(pattern, adapter.rank);
    if (now->alpha != adapter.alpha) config.alpha_pattern.emplace_back(pattern, adapter.alpha);
  }
}

// Names of the tensors that are stored [in,out].
std::set<std::string> transposed_tensors(const models::Model& model) {
  std::set<std::string> transposed;
  const auto undivided = shape_of(model);
  for (const parallel::ParameterSpec* spec : undivided->parameters())
    for (const parallel::CanonicalTensor& tensor : spec->placement.tensors)
      if (tensor.transposed) transposed.insert(tensor.name);
  return transposed;
}

// Initial values of a new adapter that come from rows of the model's matrices.
class StoredRows {
 public:
  StoredRows(const models::LoraConfig& config, const checkpoint::ModelDirectory& directory,
             std::set<std::string> transposed)
      : config_(config), directory_(directory), transposed_(std::move(transposed)) {}

  // Norms of the rows of a matrix [rows,in], or of the columns of one that is stored [in,rows].
  std::vector<double> lengths(const std::string& weight, const std::string& stored,
                              int64_t rows) const {
    const int64_t columns = directory_.find(stored)->shape.elements() / rows;
    const std::vector<double> values = read(stored, 0, rows * columns);
    std::vector<double> squares(static_cast<size_t>(rows));
    const bool transposed = transposed_.contains(weight);
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t column = 0; column < columns; ++column) {
        const int64_t at = transposed ? column * rows + row : row * columns + column;
        squares[static_cast<size_t>(row)] +=
            values[static_cast<size_t>(at)] * values[static_cast<size_t>(at)];
      }
    for (double& value : squares) value = std::sqrt(value);
    return squares;
  }

  // The rows [n,H] of a table of tokens in whose place others are trained.
  std::vector<double> token_rows(const std::string& module, const std::string& stored,
                                 const Shape& shape) const {
    std::vector<int64_t> ids = token_rows_of(config_, module, models::ModuleKind::embedding);
    if (ids.empty()) ids = token_rows_of(config_, module, models::ModuleKind::output);
    MG_ASSERT(std::ssize(ids) == shape[0]);
    std::vector<double> values;
    for (const int64_t id : ids) {
      const std::vector<double> row = read(stored, id * shape[1], shape[1]);
      values.insert(values.end(), row.begin(), row.end());
    }
    return values;
  }

 private:
  std::vector<double> read(const std::string& name, int64_t begin, int64_t count) const {
    return checkpoint::SafetensorsFile::doubles_of(directory_.tensors().read(name, begin, count),
                                                   directory_.find(name)->dtype);
  }

  const models::LoraConfig& config_;
  const checkpoint::ModelDirectory& directory_;
  const std::set<std::string> transposed_;
};

std::string text_of(const models::ModuleAdapter& adapter) {
  return fmt::format("rank {} and alpha {} (scale {})", adapter.rank, adapter.alpha, adapter.scale);
}

// Modules and parameters that have an adapter.
std::map<std::string, models::ModuleAdapter> all_adapted(const models::LoraConfig& config,
                                                         const models::Stage& whole) {
  models::AdaptedModules modules = models::adapted_modules(config, whole);
  modules.adapted.merge(modules.parameters);
  return std::move(modules.adapted);
}

// The modules of the head of a model with scores, by the names in its files: the labels' own, and
// before it, if there is one, the one that the labels read (a pooler).
std::vector<std::string> head_modules(const models::Model& model) {
  std::vector<std::string> modules;
  if (model->score_labels() == 0) return modules;
  const auto whole = shape_of(model);
  for (const parallel::ParameterSpec* spec : whole->parameters()) {
    const std::string& name = spec->parameter.name;
    if (name != "score.weight" && name != "score_transform.dense.weight") continue;
    const std::string& stored = spec->placement.tensors.at(0).name;
    modules.insert(name == "score.weight" ? modules.begin() : modules.end(),
                   stored.substr(0, stored.rfind('.')));
  }
  return modules;
}

// As PEFT does for classifiers, the head of a model with scores is trained whole. Parts of a module
// with several (classifier.dense, bert.pooler.dense) are trained with it.
void train_head(const models::Model& model, models::LoraConfig& config) {
  const std::vector<std::string> modules = head_modules(model);
  if (modules.empty() || adapter_of(config, modules[0], models::ModuleKind::output)) return;
  for (const std::string& module : modules) {
    const std::string saved = module.substr(0, module.rfind('.'));
    if (std::ranges::find(config.modules_to_save, saved) == config.modules_to_save.end())
      config.modules_to_save.push_back(saved);
  }
}

std::string task_type(const models::ModelFacts& model) {
  if (model.score_labels == 0) return "CAUSAL_LM";
  switch (model.scored) {
    case models::ScoredTokens::each_token: return "TOKEN_CLS";
    case models::ScoredTokens::span: return "QUESTION_ANS";
    default: return "SEQ_CLS";
  }
}

// The base model's directory when an adapter's directory was written.
std::string stored_base(const checkpoint::ModelDirectory& adapter) {
  const Json* named = adapter.config()[checkpoint::kAdapterConfig].find("base_model_name_or_path");
  return named != nullptr && named->is_string() ? named->as_string() : "";
}

// Checks that a resumed run has the same base model as before. Adapter checkpoints that do not
// store the base model's fingerprint store its path.
std::string fingerprint_of_base(const resume::StartingPoint& start) {
  const std::string& base = start.weights->base_path();
  std::string print = fingerprint_of_model(base);
  if (start.checkpoint == nullptr) return print;
  const std::string named = stored_base(*start.weights);
  std::error_code error;
  MG_CHECK(start.state.base.empty() ? std::filesystem::equivalent(named, base, error)
                                    : start.state.base == print,
           "'{}' is an adapter of the model that was in '{}', but the model in '{}' has another "
           "config.json or other weights: give the former with --model, or start another run",
           start.weights->path(), named, base);
  return print;
}

}  // namespace

void fill_from_model(std::span<const parallel::Shard> shards, const WholeModel& whole,
                     const checkpoint::ModelDirectory& directory) {
  const StoredNames names(whole, directory);
  const StoredRows stored(*whole.model->adapter(), directory, transposed_tensors(whole.model));
  for (const parallel::Shard& shard : shards) {
    const std::string& first = shard.placed->placement.tensors.at(0).name;
    if (!first.starts_with(checkpoint::kAdapterPrefix) || !shard.value.device().has_data())
      continue;
    const models::AdapterPart part = models::parse_stored_name(first).part;
    if (part != models::AdapterPart::magnitude && part != models::AdapterPart::token_rows) continue;
    std::vector<double> values(static_cast<size_t>(shard.size()));
    std::map<std::string, std::vector<double>> wholes;  // by tensor
    parallel::for_each_run(*shard.placed, [&](const parallel::CanonicalTensor& tensor,
                                              int64_t canonical, int64_t local, int64_t size) {
      auto& of_tensor = wholes[tensor.name];
      if (of_tensor.empty()) {
        const std::string module = models::parse_stored_name(tensor.name).module;
        const std::string weight = module + std::string(".weight");
        of_tensor = part == models::AdapterPart::magnitude
                        ? stored.lengths(weight, names.of(weight), tensor.global[0])
                        : stored.token_rows(module, names.of(weight), tensor.global);
      }
      for (int64_t i = 0; i < size; ++i) {
        const int64_t at = local + i - shard.begin;
        if (at >= 0 && at < shard.size())
          values[static_cast<size_t>(at)] = of_tensor[static_cast<size_t>(canonical + i)];
      }
    });
    Tensor value = shard.value;
    copy_from(value, std::span<const double>(values));
  }
}

models::Model with_adapter(const models::Model& model, const settings::AdapterSettings& settings) {
  if (!settings.any()) return model;
  models::LoraConfig given = *settings.config();
  if (!settings.directory) train_head(model, given);
  const auto config = std::make_shared<const models::LoraConfig>(std::move(given));
  models::Model adapted = model->with({.adapter = config});
  if (config->dropout == 0) return adapted;
  for (const auto& [module, adapter] : all_adapted(*config, *shape_of(adapted)))
    MG_CHECK(!models::is_of_experts(module),
             "the adapter has a dropout of {} and adapts {}: adapters of experts have no dropout; "
             "give --lora-dropout 0, or leave out experts (--lora-exclude '.*\\.experts\\..*')",
             config->dropout, module);
  return adapted;
}

Json adapter_config(const models::Model& model, const std::string& base) {
  models::LoraConfig config = *model->adapter();
  const auto whole = shape_of(model);
  config.base_model = std::filesystem::absolute(base).lexically_normal().string();
  if (config.file.is_null()) {
    config.task_type = task_type(model->facts());
    for (const parallel::ParameterSpec* spec : whole->parameters())
      for (const parallel::CanonicalTensor& tensor : spec->placement.tensors)
        config.fan_in_fan_out =
            config.fan_in_fan_out || (tensor.transposed && tensor.global.rank() == 2 &&
                                      !tensor.name.starts_with(checkpoint::kAdapterPrefix));
  }
  const models::AdaptedModules modules = models::adapted_modules(config, *whole);
  const bool splits_experts = !config.target_parameters.empty() && modules.parameters.empty();
  if (config.all_linear || splits_experts) {
    config.all_linear = false;
    config.targets = {.names = targets_of(modules)};
    config.excluded = {};
  }
  if (splits_experts) name_experts(modules, config);
  return models::to_json(config);
}

std::string given_base(const settings::TrainSettings& given) {
  if (!given.adapters.any()) return {};
  if (given.run.model) return resume::resolve_model_directory(*given.run.model, "--model");
  const settings::CheckpointSettings& c = given.checkpoint;
  if (!c.pretrained_checkpoint) return {};
  return resume::resolve_model_directory(*c.pretrained_checkpoint, c.pretrained_flag);
}

std::string check_base(const RunPlan& plan) {
  if (plan.model->adapter() == nullptr) return {};
  MG_CHECK(plan.start.weights != nullptr || !plan.settings.checkpoint.save,
           "--lora-rank trains an adapter of a model, but the run has none to start from, so that "
           "--save could not name it: give --model DIR with --finetune, or use megatron sft");
  MG_CHECK(
      plan.stored_tokens == 0 && !plan.upcycled,
      "an adapter leaves the model as it is: it can neither get more tokens (--vocab-size) nor "
      "experts (--moe-use-upcycling)");
  if (plan.new_head)
    for (const std::string& module : head_modules(plan.model))
      MG_CHECK(saves_module(*plan.model->adapter(), module),
               "--task {} gives the model a new head, '{}', which the adapter must have among its "
               "modules_to_save: leave it out of --lora-target, or give --lora-rank in place of "
               "--adapter",
               plan.settings.data.task, module);
  MG_CHECK(plan.start.weights != nullptr || !plan.model->adapter()->weight_decomposed,
           "--use-dora starts from the norms of the rows of a trained model: give --model DIR with "
           "--finetune");
  MG_CHECK(plan.start.weights != nullptr || plan.model->adapter()->trainable_token_indices.empty(),
           "--lora-token-indices begins with the rows of a trained model: give --model DIR with "
           "--finetune");
  using enum parallel::ScheduleKind;
  const settings::ParallelSettings& p = plan.settings.parallel;
  const parallel::ScheduleKind schedule = p.pipeline(plan.model->num_layers()).kind;
  MG_CHECK(!plan.model->adapter()->weight_decomposed ||
               p.sharding() != parallel::Sharding::parameters ||
               (schedule != zero_bubble_h1 && schedule != zero_bubble_v),
           "--use-dora reads the model's matrices for weight gradients, which --pipeline-schedule "
           "{} computes when --data-parallel-sharding-strategy optim_grads_params has released "
           "them: use another schedule or strategy",
           parallel::name(schedule));
  const bool first = plan.start.weights != nullptr && plan.start.checkpoint == nullptr;
  MG_CHECK(!first || !plan.start.weights->is_adapter() || plan.settings.adapters.rank == 0,
           "'{}' is an adapter with a rank of its own: give --adapter in place of --lora-rank",
           first ? plan.start.weights->path() : "");
  return plan.start.weights == nullptr ? "" : fingerprint_of_base(plan.start);
}

void check_same_adapter(const models::Model& model, const checkpoint::ModelDirectory& directory) {
  const bool has = directory.is_adapter(), trains = model->adapter() != nullptr;
  MG_CHECK(has || !trains,
           "'{}' is a whole model, but the run trains an adapter: leave the --lora "
           "flags out, or start another run from this model",
           directory.path());
  MG_CHECK(trains || !has,
           "'{}' is an adapter, but the run trains the whole model: give the --lora flags of the "
           "run that wrote it",
           directory.path());
  if (!has) return;
  const auto shape = shape_of(model);
  const models::Model stored = models::model_of(directory);
  MG_CHECK(
      stored->adapter()->trainable_token_indices == model->adapter()->trainable_token_indices,
      "the adapter in '{}' trains the rows of other tokens (trainable_token_indices) than the run: "
      "give the same --lora-token-indices",
      directory.path());
  const auto before = all_adapted(*stored->adapter(), *shape_of(stored)),
             now = all_adapted(*model->adapter(), *shape);
  for (const auto& [module, adapter] : before) {
    const auto found = now.find(module);
    MG_CHECK(found != now.end(),
             "the adapter in '{}' has {}, but the adapter of this run does not: give the same "
             "--lora flags",
             directory.path(), module);
    MG_CHECK(found->second == adapter,
             "the adapter in '{}' has {} with {}, but the run's has {}: give the same --lora flags",
             directory.path(), module, text_of(adapter), text_of(found->second));
  }
  for (const auto& [module, adapter] : now)
    MG_CHECK(
        before.contains(module),
        "the adapter in '{}' does not have {}, but the adapter of this run does: give the same "
        "--lora flags",
        directory.path(), module);
}

}  // namespace megatron::training
