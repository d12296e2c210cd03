#include "training/reference_weights.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/file_list.h"
#include "checkpoint/fingerprint.h"
#include "resume/found_checkpoints.h"
#include "training/run_plan.h"

namespace megatron::training {
namespace {

std::shared_ptr<const checkpoint::ModelDirectory> open(const settings::TrainSettings& s,
                                                       const std::string& path,
                                                       std::string_view flag = {}) {
  const std::string directory = resume::resolve_model_directory(path, flag);
  ThreadPool pool(s.runtime.threads_per_rank());
  resume::require_whole_model(directory, pool);
  return std::make_shared<const checkpoint::ModelDirectory>(directory, s.checkpoint.reading);
}

void check_shape(const RunPlan& plan, const models::Model& reference) {
  const std::string different = resume::differences(reference->describe(), plan.model->describe());
  MG_CHECK(different.empty(),
           "--reference-model {} has another shape than the trained model: {}. Give a model of the "
           "same shape, or none, and the reference model has the weights that the run begins with",
           *plan.settings.data.reference_model, different);
}

}  // namespace

std::string fingerprint_of_model(const std::string& directory) {
  constexpr std::string_view kTorchWeights = "pytorch_model";
  std::vector<std::string> files, torch_files;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    const std::filesystem::path& path = entry.path();
    const std::string name = path.filename().string(), end = path.extension().string();
    const bool optimizer = name.starts_with("optimizer");  // of a checkpoint
    if (name == "config.json" || (!optimizer && end == ".safetensors"))
      files.push_back(path.string());
    if (name.starts_with(kTorchWeights) && end == ".bin") torch_files.push_back(path.string());
  }
  // Torch's files are read only where there are no others.
  if (files.size() < 2) files.insert(files.end(), torch_files.begin(), torch_files.end());
  std::ranges::sort(files);
  std::string all;
  for (const std::string& file : files) all += checkpoint::fingerprint(file);
  return checkpoint::hexadecimal(checkpoint::checksum(all));
}

std::optional<ReferenceWeights> find_reference(const RunPlan& plan,
                                               const settings::TrainSettings& given) {
  if (plan.task == nullptr || !plan.task->needs_reference()) return std::nullopt;
  const settings::TrainSettings& s = plan.settings;
  ReferenceWeights reference;
  if (s.data.reference_model) {
    reference.weights = open(s, *s.data.reference_model, "--reference-model");
    check_shape(plan, models::model_from_directory(reference.weights->path()));
  } else if (plan.start.weights != nullptr && plan.model->adapter() != nullptr) {
    // An adapter's reference is the model that it adapts.
    reference.weights = open(s, plan.start.weights->base_path());
  } else if (plan.start.checkpoint == nullptr) {
    reference.weights = plan.start.weights;
  } else if (given.checkpoint.pretrained_checkpoint) {
    reference.weights =
        open(s, *given.checkpoint.pretrained_checkpoint, given.checkpoint.pretrained_flag);
  }
  if (reference.weights == nullptr) {
    reference.fingerprint = fmt::format("initialized with --seed {}", s.runtime.seed);
  } else {
    const int64_t tokens = models::model_from_directory(reference.weights->path())->vocab_size();
    if (tokens < plan.model->vocab_size()) reference.stored_tokens = tokens;
    reference.fingerprint = fingerprint_of_model(reference.weights->path());
  }
  const std::string& before = plan.start.state.reference;
  MG_CHECK(plan.start.checkpoint == nullptr || before.empty() || before == reference.fingerprint,
           "the reference model is {}, but the run that is resumed from {} began with another one: "
           "give its directory with --reference-model, or the flags that the run was started with",
           reference.weights == nullptr ? "a new model, since no flag names its weights"
                                        : "that of '" + reference.weights->path() + "'",
           plan.start.checkpoint == nullptr ? "" : plan.start.checkpoint->path());
  return reference;
}

void load_reference(const ReferenceWeights& reference, const WholeModel& whole,
                    std::span<const parallel::Shard> shards,
                    std::span<nn::ModuleState* const> states, uint64_t seed, Stream& stream,
                    bool logs) {
  if (logs)
    log::info("reference model: {}", reference.weights == nullptr
                                         ? "the new model before its first step"
                                         : "'" + reference.weights->path() + "'");
  if (reference.weights == nullptr) {
    for (const parallel::Shard& shard : shards) parallel::initialize(shard, seed, stream);
    return nn::initialize(states, seed, stream);
  }
  if (reference.stored_tokens > 0) initialize_token_rows(shards, whole, seed, stream);
  std::vector<std::string> absent = absent_states(whole, *reference.weights);
  if (!absent.empty()) nn::initialize(states, seed, stream);
  for (std::string& name : adapter_tensors(whole)) absent.push_back(std::move(name));
  load_weights(*reference.weights, held_weights(shards, states), whole,
               {.absent = absent, .tells = false, .stored_tokens = reference.stored_tokens});
}

}  // namespace megatron::training
