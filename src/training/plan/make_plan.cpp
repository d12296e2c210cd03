#include "training/plan/make_plan.h"

#include <algorithm>
#include <cmath>

#include "base/divide.h"
#include "base/error.h"
#include "base/function_ref.h"
#include "base/machine_limits.h"
#include "base/progress.h"
#include "device/cuda_plugin.h"
#include "plan/assumed_time.h"
#include "plan/expert_rows.h"
#include "plan/figures.h"
#include "plan/flops.h"
#include "plan/known_gpus.h"
#include "plan/megatron_memory.h"
#include "plan/parameters.h"
#include "plan/shortage.h"
#include "plan/step_time.h"
#include "report/log/machine.h"
#include "training/plan/compare_exchanges.h"
#include "training/plan/many_layers.h"
#include "training/plan/meta_run.h"
#include "training/plan/precision_text.h"
#include "training/plan/suggestions.h"
#include "training/run_plan.h"

namespace megatron::training {
namespace {

// GPU memory of a CUDA run. A machine's ranks take its GPUs in turn
// (RuntimeSettings::device_value).
std::optional<plan::GpuMemory> gpu_of(const settings::TrainSettings& s,
                                      const PlanOptions& options) {
  if (s.runtime.device_kind() != DeviceKind::cuda) return std::nullopt;
  const int here = s.runtime.ranks_here();
  plan::GpuMemory gpu;
  if (const CudaPlugin* plugin = cuda_state().plugin; plugin != nullptr) {
    const auto devices = static_cast<int>(plugin->devices().size());
    const CudaDevice& least = *std::ranges::min_element(plugin->devices(), {}, &CudaDevice::memory);
    gpu = {.name = least.name,
           .bytes = least.memory,
           .ranks = static_cast<int>(ceil_div(here, devices))};
  } else {
    const plan::PlannedGpu planned = plan::planned_gpu(options.recipe);
    gpu = {.name = std::string(planned.name),
           .bytes = planned.memory,
           .assumed = fmt::format("there is no GPU here, so {} of {} GiB is assumed for each rank "
                                  "(--device-memory GIB for another)",
                                  planned.of_recipe ? "the recipe's" : "one", planned.memory >> 30),
           .known_rates = planned.name == plan::kPlannedGpu};
  }
  if (options.device_memory) {
    constexpr double kGiB = 1 << 30;
    gpu.bytes = static_cast<int64_t>(*options.device_memory * kGiB);
    gpu.name = fmt::format("{:g} GiB", *options.device_memory);
    gpu.assumed = "from --device-memory";
  }
  gpu.processes = s.runtime.launched_here > 0 ? gpu.ranks : 1;
  return gpu;
}

std::optional<plan::GenerationMemory> generation_memory(const models::Model& model, DType type) {
  constexpr int64_t kMostLayers = 4096;  // more take seconds to build
  const models::ModelFacts& facts = model->facts();
  if (facts.two_sided || facts.encoder_layers > 0 || model->score_labels() > 0) return {};
  if (model->num_layers() > kMostLayers) return {};
  plan::GenerationMemory memory;
  Runtime shapes_only({DeviceKind::meta, 0}, 1);
  const auto layers = model.build(
      shapes_only, type, 0, {.layers = model->num_layers(), .embedding = false, .head = false}, {});
  for (const nn::CacheGroup& group : nn::cache_groups(layers->layer_caches())) {
    memory.token_bytes += group.token_elements * size_of(type);
    memory.sequence_bytes += group.slot_bytes;
  }
  return memory;
}

std::string model_text(const models::Model& c) {
  return fmt::format("{} parameters, {} layers, hidden {}, vocabulary {}, model type {}",
                     plan::count_text(c->parameter_count()), c->num_layers(), c->hidden_size(),
                     c->vocab_size(), c->family());
}

// Duration of a step relative to the work of one stage.
double pipeline_stretch(const parallel::PipelineShape& shape, int64_t micro_batches) {
  if (shape.stages == 1) return 1;
  const parallel::Simulated step = parallel::simulate(shape, static_cast<int>(micro_batches));
  return step.seconds / (step.seconds - *std::ranges::max_element(step.idle));
}

// Returns the expert rows in the run's steps, of which `work` is one; nullopt if no layer has
// experts.
std::optional<plan::ExpertRows> experts_of(const plan::StepWork& work,
                                           const settings::TrainSettings& s,
                                           const models::Model& model) {
  const std::optional<models::ExpertFacts>& experts = model->facts().experts;
  auto rows = plan::expert_rows(work, experts ? experts->count : 1);
  if (!rows) return rows;
  const nn::RouterTraining training = s.shape.moe.training();
  rows->fixed = s.runtime.device_kind() == DeviceKind::cuda;
  const auto bounds = [&](double factor) {  // a large one leaves room for any load
    return factor > 0 && static_cast<double>(rows->room) >= factor * rows->even;
  };
  rows->padded = training.capacity_factor > 0 && training.padded;
  const bool bounded = rows->divided ? bounds(training.capacity_factor)
                                     : training.capacity_factor > 0 &&
                                           (training.capacity_factor < rows->most || rows->padded);
  if (bounded) {
    rows->bound = plan::ExpertRows::Bound::expert_capacity;
    rows->factor = training.capacity_factor;
    if (!rows->divided) rows->most = std::clamp(rows->factor, 1.0, rows->most);
  } else if (rows->divided && bounds(training.rank_capacity_factor)) {
    rows->bound = plan::ExpertRows::Bound::rank_capacity;
    rows->factor = training.rank_capacity_factor;
  }
  return rows;
}

// Throws Error naming --moe-skew, the limit and its cause if experts cannot be loaded so unevenly.
void check_skew(double skew, const std::optional<plan::ExpertRows>& experts) {
  MG_CHECK(experts.has_value(),
           "--moe-skew is {:g}, but no layer has experts: leave it out, or give --num-experts",
           skew);
  const plan::ExpertRows& rows = *experts;
  const auto limit = [&]() -> std::string {
    switch (rows.bound) {
      case plan::ExpertRows::Bound::expert_capacity:
        return fmt::format(
            "the load that --moe-expert-capacity-factor {:g} allows; tokens above it are dropped",
            rows.factor);
      case plan::ExpertRows::Bound::rank_capacity:
        return fmt::format(
            "the load that --moe-expert-rank-capacity-factor {:g} allows; a step that needs more "
            "fails",
            rows.factor);
      case plan::ExpertRows::Bound::any_load: break;
    }
    return rows.divided ? "where one rank gets as many tokens as it can get"
                        : "where every token is routed to the same experts";
  };
  MG_CHECK(skew <= rows.most, "--moe-skew is {:g}; it must lie in [1, {:g}], {}", skew,
           std::floor(rows.most * 1e4) / 1e4, limit());
}

plan::ExpertFill fill_of(const plan::Plan& p, const PlanOptions& options) {
  if (!p.experts || !options.expert_load) return {};
  return plan::fill_at(*p.experts, *options.expert_load);
}

void add_time(plan::Plan& p, MetaRun& run, const settings::TrainSettings& s,
              const PlanOptions& options) {
  const double host = run.host_seconds();
  const plan::ExpertFill fill = fill_of(p, options);
  const plan::StepWork work = plan::filled(run.work(), fill);
  const auto time = plan::estimate_step_time(work, {.device = s.runtime.device_value(),
                                                    .type = s.precision.type(),
                                                    .ranks = s.runtime.ranks_here(),
                                                    .threads = p.threads,
                                                    .host_seconds = host,
                                                    .touched = p.memory.arena_bytes(),
                                                    .rates = options.rates,
                                                    .experts = fill,
                                                    .measured = options.measured});
  if (!time) return;
  p.step_seconds = time->seconds * pipeline_stretch(run.ranks().pipeline(), p.micro_batches);
  p.peak = time->peak.value * p.ranks / p.ranks_here;
  p.peak_origin = time->peak.origin();
  p.kernels = plan::kernel_work(work, time->kernels);
}

// run: the meta run of `rank`.
void add_assumed_time(plan::Plan& p, const MetaRun& run, int rank, const settings::TrainSettings& s,
                      const models::Model& model, const PlanOptions& options) {
  if ((p.type != DType::bf16 && p.type != DType::f16) || !p.gpu->known_rates) return;
  const plan::ExpertFill fill = fill_of(p, options);
  const plan::StepWork work = plan::filled(run.work(), fill);
  plan::StepWork keeping = work;
  if (s.recompute.any() || s.recompute.mlp_chunks > 1) {
    settings::TrainSettings without = s;
    without.recompute = {};
    const models::Model unchunked = model->with({.mlp_chunks = 1});
    MetaRun again(without, unchunked, rank, run.task());
    again.run(0, {}, false);
    keeping = plan::filled(again.work(), fill);
  }
  const std::optional<models::ExpertFacts>& experts = model->facts().experts;
  p.assumed =
      plan::assumed_time(work, keeping,
                         {.micro_batches = p.micro_batches,
                          .vocabulary = model->vocab_size(),
                          .tensor_ranks = static_cast<int>(s.parallel.tensor_parallel),
                          .experts = experts ? experts->count : 0,
                          .stretch = pipeline_stretch(run.ranks().pipeline(), p.micro_batches)});
}

// One rank of each pipeline stage, beginning with that of rank 0.
std::vector<int> ranks_of_stages(const settings::TrainSettings& s) {
  return parallel::rank_lists(s.parallel.mesh_layout(), s.runtime.rank_count(),
                              parallel::Axis::pp)[0];
}

double flops_of(const plan::StepWork& work) {
  double flops = 0;
  for (const plan::WorkItem& item : work.kernels)
    flops += static_cast<double>(item.calls) * item.cost.flops;
  return flops;
}

// Bytes are counted in 64 bits, so a memory class of the whole model must not exceed them, on any
// machine. A step on meta processes the logits of a micro-batch piece by piece.
void check_size(const settings::TrainSettings& s, const models::Model& c) {
  const auto d = [](int64_t value) { return static_cast<double>(value); };
  constexpr double kMax = 0x1p62;
  constexpr int64_t kMaxTokens = int64_t{1} << 28;
  const double state = 16 * d(c->parameter_count());
  MG_CHECK(state <= kMax,
           "a model of {} parameters (--num-layers {}, --hidden-size {}) has a training state of "
           "{}, which exceeds the limit of plans, {}: use a smaller model",
           format_count(state / 16), c->num_layers(), c->hidden_size(), format_bytes(state),
           format_bytes(kMax));
  const bool encodes = c->facts().encoder_layers > 0;
  const int64_t tokens = s.batch.tokens_per_sample(encodes);
  MG_CHECK(
      d(*s.batch.micro_batch_size) * d(tokens) <= d(kMaxTokens),
      "--micro-batch-size is {}: with {} tokens in a sequence a micro-batch can have at most {} "
      "sequences, {} tokens: use a smaller --micro-batch-size{} --seq-length{}",
      *s.batch.micro_batch_size, tokens, kMaxTokens / tokens, kMaxTokens, encodes ? "," : " or",
      encodes ? " or --decoder-seq-length" : "");
}

// The run as Megatron-LM's memory report would read it.
plan::MegatronLayout megatron_layout(const settings::TrainSettings& s, const models::Model& model) {
  const parallel::PipelineShape shape = s.parallel.pipeline(model->num_layers());
  plan::MegatronLayout layout{
      .seq_length = *s.batch.seq_length,
      .micro_batch_size = *s.batch.micro_batch_size,
      .num_microbatches = s.batch.schedule.micro_batches(last_stage(s)),
      .tensor_model_parallel_size = s.parallel.tensor_parallel,
      .pipeline_model_parallel_size = s.parallel.pipeline_parallel,
      .data_parallel_size = s.data_parallel(),
      .world_size = s.runtime.rank_count(),
      .use_distributed_optimizer = s.parallel.sharding() != parallel::Sharding::none,
      .sequence_parallel = s.parallel.sequence_parallel && s.parallel.tensor_parallel > 1,
      .selective_recompute = s.recompute.any() && s.recompute.granularity != "full"};
  if (shape.chunks > 1) layout.virtual_pipeline_model_parallel_size = shape.chunks;
  return layout;
}

plan::PlanAxes axes_of(const settings::TrainSettings& s, const models::Model& model) {
  const settings::ParallelSettings& p = s.parallel;
  return {.tensor = p.tensor_parallel,
          .pipeline = p.pipeline_parallel,
          .context = p.context_parallel,
          .data = s.data_parallel(),
          .expert = model->facts().experts ? p.expert_parallel : 0,
          .expert_tensor = p.expert_tensor_parallel.value_or(p.tensor_parallel)};
}

// The part of a plan that follows from the settings and the shape alone.
plan::Plan plan_without_run(const settings::TrainSettings& s, const models::Model& model,
                            const corpus::Vocabulary& vocabulary, const PlanOptions& options) {
  const data::BatchSchedule& schedule = s.batch.schedule;
  const int64_t last = last_stage(s);
  const MachineLimits limits = machine_limits();
  return {
      .model = model_text(model),
      .device = std::string(name(s.runtime.device_kind())),
      .type = s.precision.type(),
      .low_precision = precision_text(s, model),
      .ranks = s.runtime.rank_count(),
      .ranks_here = s.runtime.ranks_here(),
      .threads = s.runtime.threads_per_rank(),
      .axes = axes_of(s, model),
      .sequences = schedule.batch(last),
      .length = s.batch.labelled_length(),
      .encoder_length = model->facts().encoder_layers > 0 ? *s.batch.seq_length : 0,
      .micro_batches = schedule.micro_batches(last),
      .micro_batch_size = *s.batch.micro_batch_size,
      .iterations = *s.batch.train_iters,
      .reference = options.task != nullptr && options.task->needs_reference() &&
                   !s.data.precompute_reference && !has_base_reference(model, s.data),
      .flops = plan::step_flops(model, sequence_flops(s, model), vocabulary.padded_size,
                                schedule.batch(last), s.batch.labelled_length()),
      .program = report::resident_bytes() * std::max(1, s.runtime.launched_here),
      .machine = limits.memory,
      .cgroup = limits.memory_limit_file,
      .gpu = gpu_of(s, options),
      .megatron = model->facts().encoder_layers > 0
                      ? std::nullopt
                      : std::optional(plan::megatron_estimate(
                            model->facts(), vocabulary.padded_size, megatron_layout(s, model)))};
}

// Plans by running all layers on the meta device.
plan::Plan plan_by_run(const settings::TrainSettings& s, const models::Model& model,
                       const corpus::Vocabulary& vocabulary, const PlanOptions& options,
                       int64_t consumed) {
  plan::Plan p = plan_without_run(s, model, vocabulary, options);
  Runtime shapes_only({DeviceKind::meta, 0}, 1);
  const auto whole = model.build(shapes_only, s.precision.type(), 0);
  std::unique_ptr<MetaRun> first,
      busiest;  // runs of rank 0 and of a rank of the stage with the most compute
  int busiest_rank = 0;
  for (const int rank : ranks_of_stages(s)) {
    auto run = std::make_unique<MetaRun>(s, model, rank, options.task.get(),
                                         options.expert_load.value_or(0));
    run->run(consumed, vocabulary, options.samples);
    if (!p.experts) p.experts = experts_of(run->work(), s, model);
    p.stages.push_back(run->memory());
    p.exact = p.exact && run->exact();
    const bool more = busiest == nullptr || flops_of(run->work()) > flops_of(busiest->work());
    if (first == nullptr) {
      first = std::move(run);
    } else if (more) {
      busiest = std::move(run);
      busiest_rank = rank;
    }
  }
  MetaRun& run = *first;
  p.parameters = plan::count_parameters(*whole);
  if (FrozenParameters::any(model, s.optimizer.freeze))
    p.trained = FrozenParameters(model, s.optimizer.freeze).trained();
  p.memory = p.stages.front();
  p.kernels = plan::kernel_work(run.work());
  p.traffic = plan::traffic_work(run.work());
  MetaRun& timed = busiest == nullptr ? run : *busiest;
  if (options.time && p.fits()) {
    if (p.gpu && cuda_state().plugin == nullptr)
      add_assumed_time(p, timed, busiest_rank, s, model, options);
    else add_time(p, timed, s, options);
  }
  return p;
}

// Returns nullopt if shallower models do not represent this one.
std::optional<plan::Plan> plan_by_depths(const settings::TrainSettings& s,
                                         const models::Model& model,
                                         const corpus::Vocabulary& vocabulary,
                                         const PlanOptions& options, int64_t consumed,
                                         const Depths& depths) {
  plan::Plan whole = plan_without_run(s, model, vocabulary, options);
  PlanOptions untimed = options;
  untimed.time = false;
  const auto planned = [&](int64_t layers, const PlanOptions& of) {
    return plan_by_run(s, model->with({.num_layers = layers}), vocabulary, of, consumed);
  };
  try {
    std::array<plan::Plan, 3> plans;
    for (size_t i = 0; i < plans.size(); ++i) plans[i] = planned(depths.layers[i], untimed);
    auto deep = deepened(plans, depths, std::move(whole));
    if (deep && options.time && deep->fits()) take_time(*deep, planned(depths.layers[2], options));
    return deep;
  } catch (const Error&) {  // settings that list layers by number do not fit other depths
    return std::nullopt;
  }
}

plan::Plan plan_of(const settings::TrainSettings& s, const models::Model& model,
                   const corpus::Vocabulary& vocabulary, const PlanOptions& options,
                   int64_t consumed) {
  check_size(s, model);
  // Patterns of layers by number mean other shares of a model of another depth.
  const LowPrecisionLayers* const low = model->low_precision();
  const bool by_number = !s.optimizer.freeze.empty() || (low != nullptr && !low->rules.empty());
  if (const auto depths = by_number ? std::nullopt : depths_for(s, model->num_layers()))
    if (auto deep = plan_by_depths(s, model, vocabulary, options, consumed, *depths)) return *deep;
  return plan_by_run(s, model, vocabulary, options, consumed);
}

// The plan at the expected load of experts. `worst` is the plan for full buffers.
plan::Plan at_expected_load(const plan::Plan& worst, const settings::TrainSettings& s,
                            const models::Model& model, const corpus::Vocabulary& vocabulary,
                            const PlanOptions& options, int64_t consumed) {
  const double load = std::min(*options.expert_skew, worst.experts->most);
  PlanOptions at = options;
  at.expert_load = load;
  plan::Plan p = plan_of(s, model, vocabulary, at, consumed);
  const auto at_load = [](double value, int64_t rows, const plan::Plan& of) {
    return plan::ExpertLoad{.load = value,
                            .rows = rows,
                            .bytes = of.rank_bytes(),
                            .seconds = of.assumed ? of.assumed->step_seconds : of.step_seconds};
  };
  p.loads = {at_load(load, plan::rows_at(*p.experts, load), p),
             at_load(worst.experts->most, worst.experts->room, worst)};
  p.worst_stages = worst.stages;
  p.program = worst.program;  // host memory of the program, measured before any plan was made
  return p;
}

// Plans the run with `plan_of`. Chooses the scratch memory for part of cuDNN's attention backward
// if a run on a GPU in bf16 or fp16 does not set it (--attention-workspace-mib): the larger of two
// sizes if the run's plan then fits the GPU. Writes it and its reason to settled.runtime.
plan::Plan with_attention_workspace(
    settings::TrainSettings& settled,
    FunctionRef<plan::Plan(const settings::TrainSettings&)> plan_of) {
  using settings::kAttentionMib, settings::kLargeAttentionMib;
  settings::RuntimeSettings& runtime = settled.runtime;
  const bool chooses = !runtime.attention_workspace_mib &&
                       runtime.device_kind() == DeviceKind::cuda &&
                       settled.precision.type() != DType::f32;
  if (!chooses) return plan_of(settled);
  runtime.planned_attention_mib = kLargeAttentionMib;
  plan::Plan large = plan_of(settled);
  const auto spare = static_cast<double>(large.gpu->bytes - large.gpu_bytes());
  if (spare >= 0) {
    runtime.planned_attention_cause =
        fmt::format("the GPU's memory allows it: {} remain free", format_bytes(spare));
    return large;
  }
  runtime.planned_attention_mib = kAttentionMib;
  runtime.planned_attention_cause =
      fmt::format("with {} the run would need {} more than the GPU has", kLargeAttentionMib,
                  format_bytes(-spare));
  return plan_of(settled);
}

}  // namespace

double sequence_flops(const settings::TrainSettings& settings, const models::Model& model) {
  const models::TextLength length(settings.batch.labelled_length(), *settings.batch.seq_length);
  if (!FrozenParameters::any(model, settings.optimizer.freeze))
    return model->training_flops(length);
  Runtime meta({DeviceKind::meta, 0}, 1);
  const auto whole = model.build(meta, DType::f32, 0);
  FrozenParameters(model, settings.optimizer.freeze).apply(*whole);
  return plan::executed_flops(*whole, meta, length);
}

StepOptions step_options(const settings::TrainSettings& settings, const models::Model& model,
                         const Task* task) {
  parallel::DataParallelOptions data_parallel =
      settings.parallel.data_parallel(model->parameter_count());
  data_parallel.gather_fp8_codes = settings.precision.fp8_param_gather;
  data_parallel.gather_fp4_codes = settings.precision.fp4_param_gather;
  return {.loss_scope = settings.batch.scope(),
          .objective = task == nullptr ? nullptr : task->objective(model),
          .log_entropy = settings.log.log_entropy,
          .recompute = settings.recompute.options(),
          .offload = settings.offload.options(),
          .check_finite = settings.precision.check_for_nan_in_loss_and_grad,
          .loss_scale = settings.precision.loss_scale(),
          .record_after = settings.graphs.record_after(settings.parallel),
          .data_parallel = data_parallel,
          .pipeline = settings.parallel.pipeline_options(),
          .freeze = settings.optimizer.freeze,
          .timing_level = settings.log.timing_log_level};
}

ModelLayout model_layout(const settings::TrainSettings& settings, const models::Model& model) {
  return {.ranks = settings.parallel.ranks_options(model->num_layers()),
          .layers = settings.parallel.placement()};
}

plan::Plan make_plan(settings::TrainSettings& settled, const models::Model& model,
                     const corpus::Vocabulary& vocabulary, const PlanOptions& options,
                     int64_t consumed) {
  plan::MeasuredCalls measured;
  PlanOptions compared = options;
  if (options.expert_skew) compared.measured = &measured;
  plan::Plan p = with_attention_workspace(settled, [&](const settings::TrainSettings& s) {
    return plan_of(s, model, vocabulary, compared, consumed);
  });
  if (options.skew_given) check_skew(*options.expert_skew, p.experts);
  if (options.expert_skew && p.experts)
    p = at_expected_load(p, settled, model, vocabulary, compared, consumed);
  if (options.exchanges) p.exchanges = compare_exchanges(settled, model, options.task.get());
  p.generation = generation_memory(model, settled.precision.type());
  if (p.fits()) return p;
  const PlanOptions of_suggestions{.task = options.task,
                                   .samples = false,
                                   .device_memory = options.device_memory,
                                   .recipe = options.recipe};
  p.suggestions = find_suggestions(
      settled, model, p, [&](const settings::TrainSettings& other, const models::Model& shape) {
        return plan_of(other, shape, vocabulary, of_suggestions, 0);
      });
  return p;
}

plan::Plan make_plan(const settings::TrainSettings& given, const PlanOptions& options) {
  SettledRun run = settle_run(given, options.task);
  PlanOptions possible = options;
  if (run.stands_in) possible.samples = false;  // it cannot encode a prompt
  plan::Plan p = make_plan(run.settings, run.model, run.vocabulary, possible);
  p.derived = run.notes;
  if (auto chosen = run.settings.runtime.attention_workspace_note();
      chosen && !given.runtime.attention_workspace_mib)
    p.derived.push_back(std::move(*chosen));
  return p;
}

plan::StepWork step_work(const settings::TrainSettings& settled, const models::Model& model,
                         const Task* task) {
  MetaRun run(settled, model, 0, task);
  run.run(0, {}, {});
  return run.work();
}

void require_memory(const plan::Plan& p) {
  if (p.fits()) return;
  std::string classes, suggestions;
  for (int i = 0; i < kMemoryClasses; ++i) {
    const int64_t bytes = p.memory.arenas[static_cast<size_t>(i)];
    if (bytes > 0)
      classes +=
          fmt::format("{}{} {}", classes.empty() ? "" : ", ", name(static_cast<MemoryClass>(i)),
                      format_bytes(static_cast<double>(bytes)));
  }
  for (const std::string& suggestion : p.suggestions) suggestions += "\n  " + suggestion;
  const bool gpu = !p.fits_gpu();
  const int ranks = gpu ? p.gpu->ranks : p.ranks_here;
  const auto bytes = [](int64_t count) { return format_bytes(static_cast<double>(count)); };
  fail(
      "{} rank{} {}, with micro-batches of {} sequences of {} tokens and a model of {}, need {} "
      "({} each), and {}.\n{}.\nWhat would fit:{}",
      ranks, ranks == 1 ? "" : "s", gpu ? "on a GPU" : "here", p.micro_batch_size, p.length,
      p.model, bytes(gpu ? p.gpu_bytes() : p.process_bytes()), classes,
      gpu ? fmt::format("the GPU ({}) has {}", p.gpu->name, bytes(p.gpu->bytes)) : p.memory_text(),
      plan::cause_of_shortage(p), suggestions);
}

}  // namespace megatron::training
