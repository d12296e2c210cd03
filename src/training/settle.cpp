#include "training/settle.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "corpus/corpus.h"
#include "data/requested_samples.h"
#include "models/hybrid_pattern.h"
#include "parallel/layer_layout.h"
#include "settings/recipes.h"
#include "settings/rules.h"
#include "tokenizers/tokenizer_file.h"
#include "training/frozen_parameters.h"
#include "training/model_source.h"

namespace megatron::training {
namespace {

void check_order(const settings::RunSettings& run) {
  MG_CHECK(run.dataloader_type != "external",
           "--dataloader-type external takes batches from another program; this program only "
           "reads its own: use single or cyclic");
  MG_CHECK(run.dataloader_type == "single" || run.dataloader_type == "cyclic",
           "--dataloader-type is '{}'; single and cyclic are supported", run.dataloader_type);
}

void check_run(const settings::TrainSettings& s) {
  const settings::RunSettings& run = s.run;
  MG_CHECK(run.eval_iters >= 0, "--eval-iters is {}; it cannot be negative", run.eval_iters);
  run.check(s.batch, s.data_parallel());
  MG_CHECK(run.sample_tokens > 0, "--sample-tokens is {}; it must be positive", run.sample_tokens);
  s.log.check();
  s.checkpoint.check();
  s.profile.check(s.runtime.rank_count());
  check_order(run);
  corpus::check_data(s.data, samples_of_run(s, s.batch.total_samples()).asked,
                     run.multiple_validation_sets, run.validation_set_names);
}

// Checks that each batch size of the run fills the groups of an interleaved pipeline.
void check_groups(const settings::TrainSettings& s, const parallel::PipelineShape& shape) {
  if (shape.kind != parallel::ScheduleKind::interleaved) return;
  const int64_t group = shape.group == 0 ? shape.stages : shape.group;
  const data::BatchSchedule& schedule = s.batch.schedule;
  for (const data::BatchSchedule::Stage& stage : schedule.stages()) {
    const int64_t count = schedule.micro_batches(stage.begin), rest = count % group;
    if (stage.begin >= s.batch.total_samples()) return;
    if (count >= group && (rest == 0 || rest >= shape.stages)) continue;
    try {
      shape.schedule(0, static_cast<int>(count));  // throws
    } catch (const Error& e) {
      fail(
          "{}. This would happen from sample {} on: change --rampup-batch-size or "
          "--step-batch-size-schedule",
          e.what(), stage.begin);
    }
  }
}

std::array<std::optional<int64_t>, 3> samples_of(const settings::TrainSettings& s,
                                                 int64_t iterations, int64_t train_samples) {
  const settings::RunSettings& run = s.run;
  data::SampleBudget budget;
  budget.train_iterations = iterations;
  budget.train_samples = train_samples;
  budget.global_batch_size = *s.batch.global_batch_size;
  budget.eval_global_batch_size = s.eval_batch();
  budget.start_eval_at_iteration = run.start_eval_at_iter;
  budget.skip_train = run.skip_train;
  budget.eval_interval = run.eval_interval.value_or(iterations + 1);
  budget.eval_iterations = run.eval_interval || run.skip_train ? run.eval_iters : 0;
  budget.full_validation = run.full_validation;
  auto samples = data::requested_samples(budget);
  if (!run.evaluates_test_set()) samples[static_cast<size_t>(data::Split::test)] = 0;
  return samples;
}

}  // namespace

RunSamples samples_of_run(const settings::TrainSettings& s, int64_t last_sample) {
  const settings::BatchSettings& b = s.batch;
  if (!b.extend_to_iters)
    return {.asked = samples_of(s, b.base_iters, std::max(b.base_samples(), last_sample))};
  RunSamples samples{.asked = samples_of(s, b.base_iters, b.base_samples())};
  const auto all = samples_of(s, *b.train_iters, std::max(b.total_samples(), last_sample));
  for (size_t i = 0; i < all.size(); ++i) samples.extended[i] = all[i].value_or(0);
  // A cyclic order has no end, so it needs no extension.
  if (s.run.dataloader_type == "cyclic") samples.extended[0] = 0;
  return samples;
}

Settled take_dense_model(settings::TrainSettings s) {
  settings::CheckpointSettings& c = s.checkpoint;
  if (!c.upcycle || s.run.model || s.run.model_config) return {std::move(s)};
  const std::string_view flag = c.pretrained_checkpoint ? "pretrained-checkpoint" : "load";
  std::optional<std::string>& dense = c.pretrained_checkpoint ? c.pretrained_checkpoint : c.load;
  s.run.model = std::exchange(dense, std::nullopt);
  if (!c.load) {
    c.exit_on_missing_checkpoint = c.use_checkpoint_args = false;
    c.load_optimizer = c.load_rng = true;
  }
  const std::string model = s.run.model.value_or("");
  return {std::move(s), {{"model", model, fmt::format("--moe-use-upcycling with --{}", flag)}}};
}

Settled leave_out_evaluation(settings::TrainSettings s) {
  if (s.run.eval_iters != 0 || s.run.full_validation) return {std::move(s)};
  s.run.start_eval_at_iter.reset();
  const bool given = std::exchange(s.run.eval_interval, std::nullopt).has_value();
  if (!given) return {std::move(s)};
  return {std::move(s), {{"eval-interval", "none", "--eval-iters 0: no evaluation"}}};
}

Settled allocate_layers(settings::TrainSettings s) {
  models::ModelFlags& f = s.shape;
  const std::optional<std::string> pattern = f.layer_pattern();
  if (pattern == f.hybrid_layer_pattern) return {std::move(s)};
  f.hybrid_layer_pattern = pattern;
  SettingNote note{"hybrid-layer-pattern", *pattern,
                   fmt::format("{} layers, --hybrid-attention-ratio {}, --hybrid-mlp-ratio {}",
                               *f.num_layers, f.hybrid_attention_ratio, f.hybrid_mlp_ratio)};
  return {std::move(s), {std::move(note)}};
}

Settled place_by_pattern(settings::TrainSettings s) {
  const std::string pattern = s.shape.hybrid_layer_pattern.value_or("");
  const std::string layout = models::hybrid_layout(pattern);
  if (layout.empty() || s.parallel.layout == layout) return {std::move(s)};
  MG_CHECK(s.parallel.layout.empty(),
           "--hybrid-layer-pattern '{}' places the layers on pipeline stages by its bars, and "
           "--pipeline-model-parallel-layout '{}' does so, too: leave out one of them",
           pattern, s.parallel.layout);
  MG_CHECK(s.parallel.pipeline_parallel > 1,
           "--hybrid-layer-pattern '{}' divides the layers among pipeline stages by its bars, but "
           "--pipeline-model-parallel-size is {}; raise it, or leave the bars out",
           pattern, s.parallel.pipeline_parallel);
  const int parts = parallel::virtual_stages_of_layout(layout);
  MG_CHECK(parts % s.parallel.pipeline_parallel == 0,
           "--hybrid-layer-pattern '{}' has {} parts between its bars, which cannot be divided by "
           "--pipeline-model-parallel-size {}: change the bars or the size",
           pattern, parts, s.parallel.pipeline_parallel);
  s.parallel.layout = layout;
  return {std::move(s),
          {{"pipeline-model-parallel-layout", layout, "the bars of --hybrid-layer-pattern"}}};
}

Settled count_ranks(settings::TrainSettings s) {
  const bool given = s.runtime.ranks.has_value();
  s.settle_ranks();
  if (s.runtime.planned) s.runtime.plan_for_usual_hosts();
  s.runtime.check();
  const int64_t model_ranks = s.parallel.model_ranks();
  MG_CHECK(model_ranks > 0 && s.runtime.rank_count() % model_ranks == 0,
           "{} ranks cannot be divided into tensor parallel {} x pipeline parallel {} x context "
           "parallel {}: change --ranks (or the number of processes) or one of these sizes",
           s.runtime.rank_count(), s.parallel.tensor_parallel, s.parallel.pipeline_parallel,
           s.parallel.context_parallel);
  const int ranks = s.runtime.rank_count();
  const std::string& launched = s.runtime.launched_by;
  std::vector<SettingNote> notes;
  if (!launched.empty() || (!given && ranks > 1))
    notes.push_back({"ranks", fmt::format("{}", ranks),
                     launched.empty() ? "the minimum for the parallel sizes" : launched});
  return {std::move(s), std::move(notes)};
}

Settled count_batches(settings::TrainSettings s) {
  settings::BatchSettings& b = s.batch;
  const bool global_given = b.global_batch_size.has_value();
  const int ranks = s.data_parallel();
  b.finalize(ranks);
  b.schedule_extended = s.checkpoint.override_scheduler;
  const std::string rounded = fmt::format("micro-batch size {} x {} rank{}", *b.micro_batch_size,
                                          ranks, ranks == 1 ? "" : "s");
  const auto size = [](int64_t value, std::string cause) {
    return SettingNote{"global-batch-size", fmt::format("{}", value), std::move(cause)};
  };
  std::vector<SettingNote> notes;
  if (b.schedule.batch(0) != b.schedule.target(0)) {
    notes.push_back(size(b.schedule.batch(0),
                         fmt::format("--decrease-batch-size-if-needed: {} is not a multiple of {}",
                                     b.schedule.target(0), rounded)));
  } else if (b.step_batch_size_schedule) {
    notes.push_back(size(*b.global_batch_size,
                         "the last one of --step-batch-size-schedule; also used for evaluations"));
  } else if (!global_given) {
    notes.push_back(size(*b.global_batch_size, rounded));
  }
  if (b.train_samples)
    notes.push_back({"train-iters", fmt::format("{}", b.base_iters),
                     fmt::format("whole steps in --train-samples {}", *b.train_samples)});
  return {std::move(s), std::move(notes)};
}

Settled count_epochs(settings::TrainSettings s, int64_t rows) {
  settings::BatchSettings& b = s.batch;
  b.count_epochs(rows);
  check_run(s);
  const int64_t batch = b.schedule.batch(0);
  const double per_epoch = static_cast<double>(rows) / static_cast<double>(batch);
  return {std::move(s),
          {{"train-iters", fmt::format("{}", b.base_iters),
            fmt::format("--epochs {}: {} rows / {} a step = {:.6g} steps per epoch", *b.epochs,
                        rows, batch, per_epoch)}}};
}

Settled take_pretrained(settings::TrainSettings s, bool load_has_checkpoint) {
  settings::CheckpointSettings& c = s.checkpoint;
  if (!c.pretrained_checkpoint || load_has_checkpoint) return {std::move(s)};
  const std::string flag(c.pretrained_flag),
      cause = c.load ? fmt::format("{}: {} has no checkpoint yet", flag, *c.load) : flag;
  std::vector<SettingNote> notes;
  if (c.load != c.pretrained_checkpoint) notes.push_back({"load", *c.pretrained_checkpoint, cause});
  if (!c.finetune) notes.push_back({"finetune", "true", flag});
  c.load = c.pretrained_checkpoint;
  c.load_flag = c.pretrained_flag;
  c.finetune = true;
  return {std::move(s), std::move(notes)};
}

Settled take_tokenizer(settings::TrainSettings s, const std::string& directory) {
  settings::DataSettings& d = s.data;
  if (d.tokenizer_model || d.tokenizer_type || d.vocab_file || d.mock_data || directory.empty() ||
      !tokenizers::has_tokenizer_file(directory))
    return {std::move(s)};
  d.tokenizer_model = directory;
  return {std::move(s), {{"tokenizer-model", directory, "the model's directory contains one"}}};
}

Settled settle(const settings::TrainSettings& given) {
  Settled run{given};
  if (auto& adapter = run.settings.adapters.directory)
    adapter = resume::resolve_model_directory(*adapter, "--adapter");
  run.pass(take_dense_model);
  run.pass(leave_out_evaluation);
  run.pass(allocate_layers);
  run.pass(place_by_pattern);
  settings::check_rules(settings::RuleScope::flags, run.settings);
  run.pass(count_ranks);
  run.pass(count_batches);
  run.settings.optimizer.config.check();
  run.settings.precision.check();
  check_run(run.settings);
  return run;
}

Settled settle_planned(const settings::TrainSettings& given) {
  settings::TrainSettings planned = given;
  settings::BatchSettings& batch = planned.batch;
  planned.runtime.planned = true;
  MG_CHECK(!batch.epochs,
           "--epochs {} is a number of steps only when the data has been read, which a plan does "
           "not do: give --train-iters instead",
           *batch.epochs);
  const bool open_end = !batch.train_iters && !batch.train_samples && !batch.extend_to_iters;
  if (open_end) batch.train_iters = 1;
  Settled run = settle(planned);
  settings::TrainSettings& s = run.settings;
  if (open_end)  // long enough to reach the last batch size
    s.batch.train_iters = s.batch.base_iters =
        s.batch.schedule.iterations_within(s.batch.schedule.stages().back().begin) + 1;
  settings::OptimizerSettings rate = s.optimizer;
  if (!rate.lr) rate.lr = std::max({1.0, rate.min_lr, rate.lr_warmup_init});
  if (open_end && !rate.lr_decay_iters) {  // long enough to contain warm-up and decay
    const auto within = [](int64_t value) {
      return std::clamp<int64_t>(value, 0, int64_t{1} << 31);
    };
    rate.lr_decay_iters =
        within(rate.lr_warmup_iters) + within(rate.lr_wsd_decay_iters.value_or(0)) + 1;
  }
  rate.learning_rate(s.batch);
  s.optimizer.decay(s.batch);
  return run;
}

void check_latents(const settings::TrainSettings& s, const models::Model& model) {
  const auto& attention = model->facts().attention;
  MG_CHECK(std::ranges::find(s.recompute.modules, "mla_up_proj") == s.recompute.modules.end() ||
               (attention && attention->latent),
           "--recompute-modules: 'mla_up_proj' belongs to multi-latent attention, which this model "
           "does not have");
}

void check_experts(const settings::TrainSettings& s, const models::Model& model) {
  const settings::ParallelSettings& parallel = s.parallel;
  const std::optional<models::ExpertFacts>& experts = model->facts().experts;
  if (!experts) {
    MG_CHECK(parallel.expert_parallel == 1,
             "--expert-model-parallel-size is {}, but the model has no experts: use 1, or give "
             "--num-experts",
             parallel.expert_parallel);
    MG_CHECK(!parallel.expert_tensor_parallel,
             "--expert-tensor-parallel-size is {}, but the model has no experts: leave it out",
             *parallel.expert_tensor_parallel);
    for (const std::string& module : s.recompute.modules)
      MG_CHECK(!module.starts_with("moe"),
               "--recompute-modules: '{}' belongs to mixture-of-experts layers, which this model "
               "does not have",
               module);
    return;
  }
  MG_CHECK(experts->count % parallel.expert_parallel == 0,
           "{} experts cannot be divided evenly by --expert-model-parallel-size {}: change one of "
           "them",
           experts->count, parallel.expert_parallel);
  const int64_t tensor = parallel.tensor_parallel,
                length = *s.batch.seq_length / parallel.context_parallel;
  if (!parallel.sequence_parallel || tensor == 1) return;
  s.shape.moe.training().check_divided(length, *s.batch.micro_batch_size * length / tensor,
                                       static_cast<int>(tensor));
}

void check_predictions(const settings::TrainSettings& s, const models::Model& model) {
  const int64_t depths = model->facts().prediction.depths;
  MG_CHECK(depths < *s.batch.seq_length,
           "--mtp-num-layers is {}; a sequence of --seq-length {} has labels for at most {}",
           depths, *s.batch.seq_length, *s.batch.seq_length - 1);
  const std::string& layout = s.parallel.placement().layout;
  const int64_t placed = layout.empty() ? 0 : parallel::predictions_of_layout(layout);
  MG_CHECK(placed == 0 || placed == depths,
           "--pipeline-model-parallel-layout '{}' has {} layers of multi-token prediction (m), but "
           "the model has {}: change one of them (--mtp-num-layers)",
           layout, placed, depths);
}

bool has_one_micro_batch(const data::BatchSchedule& schedule) {
  return std::ranges::all_of(schedule.stages(), [&](const data::BatchSchedule::Stage& stage) {
    return schedule.micro_batches(stage.begin) == 1;
  });
}

// Drops flags about the dispatch of tokens to experts if the model has nothing to which they apply.
void leave_out_idle_overlap(settings::TrainSettings& s, const models::Model& model,
                            std::vector<SettingNote>& notes) {
  using Dispatcher = settings::ParallelSettings::Dispatcher;
  const std::optional<models::ExpertFacts>& experts = model->facts().experts;
  settings::ParallelSettings& p = s.parallel;
  const auto idle = [&](bool given, std::string_view flag, std::string_view why) {
    if (given) notes.push_back({std::string(flag), "none", std::string(why)});
  };
  const std::string_view none = "the model has no experts";
  if (!experts) {
    idle(p.overlap_experts, "overlap-moe-expert-parallel-comm", none);
    idle(p.token_dispatcher == Dispatcher::alltoall, "moe-token-dispatcher-type", none);
    p.overlap_experts = false;
    if (p.token_dispatcher == Dispatcher::alltoall) p.token_dispatcher = Dispatcher::allgather;
  } else if (p.overlap_experts && has_one_micro_batch(s.batch.schedule)) {
    idle(true, "overlap-moe-expert-parallel-comm",
         "each step has only one micro-batch per rank, so there is nothing to overlap it with");
    p.overlap_experts = false;
  }
  if (p.token_dispatcher == Dispatcher::alltoall && s.runtime.device_kind() == DeviceKind::cuda) {
    notes.push_back({"moe-token-dispatcher-type", "allgather",
                     "on a GPU the host does not know how many rows each rank receives"});
    p.token_dispatcher = Dispatcher::allgather;
  }
  if (experts && s.shape.moe.names_losses_without_coefficient())
    notes.push_back({"moe-aux-loss-coeff", "0",
                     fmt::format("the default: --moe-router-load-balancing-type {} adds no loss",
                                 fmt::join(s.shape.moe.load_balancing_type, " "))});
  if (s.shape.moe.rank_capacity_factor && p.expert_parallel == 1) {
    idle(true, "moe-expert-rank-capacity-factor",
         "every rank holds all experts (--expert-model-parallel-size 1)");
    s.shape.moe.rank_capacity_factor.reset();
  }
  if (experts && experts->shared_width > 0) return;
  idle(p.overlap_shared_expert, "moe-shared-expert-overlap",
       experts ? "the model has no shared expert" : none);
  p.overlap_shared_expert = false;
}

Settled freeze(settings::TrainSettings s, const models::Model& model) {
  const std::vector<std::string>& patterns = s.optimizer.freeze;
  if (!FrozenParameters::any(model, patterns)) return {std::move(s)};
  SettingNote note =
      patterns.empty()
          ? SettingNote{s.adapters.directory ? "adapter" : "lora-rank",
                        s.adapters.directory.value_or(std::to_string(model->adapter()->rank)), ""}
          : SettingNote{"freeze", fmt::format("{}", fmt::join(patterns, " ")), ""};
  note.cause = FrozenParameters(model, patterns).text();
  return {std::move(s), {std::move(note)}};
}

Settled divide(settings::TrainSettings s, const models::Model& model) {
  std::vector<SettingNote> notes;
  leave_out_idle_overlap(s, model, notes);
  const data::BatchSchedule& schedule = s.batch.schedule;
  s.parallel.check(s.runtime.rank_count(), model->num_layers(), schedule.micro_batches(0),
                   *s.batch.seq_length, notes);
  if (s.batch.decoder_seq_length)
    s.parallel.check_length(*s.batch.decoder_seq_length, "decoder-seq-length");
  check_latents(s, model);
  check_experts(s, model);
  check_predictions(s, model);
  const parallel::PipelineShape shape = s.parallel.pipeline(model->num_layers());
  check_groups(s, shape);
  int64_t least = model->num_layers(), most = 0;
  for (const parallel::ModelPart& part :
       parallel::place_layers(model->num_layers(), shape, s.parallel.placement())) {
    least = std::min(least, part.layers);
    most = std::max(most, part.layers);
  }
  s.recompute.check(most, notes);
  MG_CHECK(s.recompute.mlp_chunks == 1 || model->facts().feed_forward,
           "--mlp-chunks-for-training is {}, but all feed-forward blocks of the model are experts, "
           "which have no chunks: leave it out, or recompute them (--recompute-granularity "
           "selective --recompute-modules moe)",
           s.recompute.mlp_chunks);
  s.offload.check(least, notes);
  settings::check_rules(settings::RuleScope::memory, s);
  settings::check_rules(settings::RuleScope::layout, s);
  s.graphs.check(s.runtime.device_kind(), notes);
  if (s.runtime.device_kind() == DeviceKind::cuda)
    settings::check_rules(settings::RuleScope::graphs, s);
  MG_CHECK(!model->facts().experts || s.parallel.expert_ranks() == 1 ||
               !s.graphs.record_after(s.parallel) || s.runtime.device_kind() != DeviceKind::cuda,
           "--cuda-graph-impl local cannot capture messages between the ranks that divide the "
           "experts, but --expert-model-parallel-size {} and --expert-tensor-parallel-size {} "
           "divide them among {} ranks; use --cuda-graph-impl none",
           s.parallel.expert_parallel, s.parallel.expert_ranks() / s.parallel.expert_parallel,
           s.parallel.expert_ranks());
  s.optimizer.config.offload_fraction = s.offload.fraction();
  return {std::move(s), std::move(notes)};
}

void check_settings(const settings::TrainSettings& given, bool planned) {
  const settings::TrainSettings s = (planned ? settle_planned(given) : settle(given)).settings;
  if (!planned) {
    s.optimizer.learning_rate(s.batch);
    s.optimizer.decay(s.batch);
    corpus::require_data(s.data);
  }
  const settings::CheckpointSettings& c = s.checkpoint;
  const bool by_flags = !s.shape.first_shape_flag().empty();
  if (s.run.model || c.use_checkpoint_args) return;
  models::Model model;
  if (s.run.model_config) {
    if (!settings::model_config_text(*s.run.model_config))
      return;  // a file, which is not opened here
    model = models::model_from_config_json(config_source(s).config);
  } else {
    if (!by_flags && (c.load || c.pretrained_checkpoint)) return;
    models::ModelFlags flags = s.shape;
    if (!flags.vocab_size) flags.vocab_size = 1;  // the tokenizer's size comes later
    model = models::model_from_flags(flags, *s.batch.seq_length);
  }
  check_length(s.batch, model);
  divide(s, model);
}

void check_length(const settings::BatchSettings& batch, const models::Model& model) {
  MG_CHECK(*batch.seq_length <= model->max_position_embeddings(),
           "--seq-length is {}, but the model has only {} positions; lower --seq-length or raise "
           "--max-position-embeddings",
           *batch.seq_length, model->max_position_embeddings());
  MG_CHECK(batch.labelled_length() <= model->max_position_embeddings(),
           "--decoder-seq-length is {}, but the model has only {} positions; lower "
           "--decoder-seq-length or raise --max-position-embeddings",
           batch.labelled_length(), model->max_position_embeddings());
}

}  // namespace megatron::training
