#include "settings/parallel_settings.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "base/divide.h"
#include "base/error.h"
#include "settings/rules.h"

namespace megatron::settings {

using parallel::PipelineShape;
using parallel::ScheduleKind;
using parallel::Sharding;

void ParallelSettings::fields(Fields& f) {
  f.begin_group("parallelism");
  size_fields(f, Of::training);
  f.add_switch("use-tp-pp-dp-mapping", &tp_pp_dp_mapping, true,
               "rank order: tensor-parallel ranks are adjacent, then pipeline stages, then "
               "data-parallel ranks; else pipeline stages come last");
  f.add("num-layers-per-virtual-pipeline-stage", &layers_per_virtual_stage,
        "layers per virtual stage (chunk), for the interleaved schedule");
  f.add("num-virtual-stages-per-pipeline-rank", &virtual_stages,
        "virtual stages (chunks) per pipeline rank, for the interleaved schedule")
      .within(1, kMaxRanks);
  f.add("microbatch-group-size-per-virtual-pipeline-stage", &microbatch_group,
        "micro-batches that pass through a chunk before the next chunk runs; default "
        "--pipeline-model-parallel-size")
      .within(1, kMaxRanks);
  f.add("decoder-first-pipeline-num-layers", &decoder_first_layers,
        "layers of the first stage; the rest are split evenly over the other stages");
  f.add("decoder-last-pipeline-num-layers", &decoder_last_layers, "layers of the last stage");
  f.add_switch("account-for-embedding-in-pipeline-split", &account_for_embedding, true,
               "count the embedding as a layer when splitting layers over stages");
  f.add_switch("account-for-loss-in-pipeline-split", &account_for_loss, true,
               "count the output layer and the loss as a layer when splitting layers over stages");
  f.add("pipeline-model-parallel-layout", &layout,
        "contents of each virtual stage of the pipeline: E embedding, t layer, m depth of "
        "multi-token prediction, L loss, | between virtual stages, *n repeats: "
        "\"Et*3|(tt|)*6L\"");
  f.add("pipeline-schedule", &schedule,
        "1f1b, interleaved (the default with several chunks per stage), zb-h1 or zb-v (zero "
        "bubble)");
  f.add_switch("no-overlap-p2p-communication", &overlap_p2p, false,
               "let pipeline stages wait for each message instead of overlapping it with compute");
  f.add_enum<Dispatcher>("moe-token-dispatcher-type", &token_dispatcher,
                         {{"allgather", Dispatcher::allgather},
                          {"alltoall", Dispatcher::alltoall},
                          {"flex", Dispatcher::flex}},
                         "how tokens reach the ranks of their experts: allgather sends all tokens "
                         "to every rank, alltoall (on a CPU) sends each rank only the tokens of "
                         "its experts; results are the same; flex is not supported");
  f.add_switch("moe-shared-expert-overlap", &overlap_shared_expert, true,
               "compute the shared expert while tokens are sent to the ranks of their experts");
  f.add_switch("overlap-moe-expert-parallel-comm", &overlap_experts, true,
               "overlap the exchange of tokens between ranks with the compute of another "
               "micro-batch: the forward of one alternates with the backward of the other, and one "
               "more micro-batch is kept in memory (with pipeline stages up to twice as many)");
  f.add_switch("use-distributed-optimizer", &distributed_optimizer, true,
               "shard the optimizer state over data-parallel ranks (ZeRO-1)")
      .in_short_help();
  f.add("data-parallel-sharding-strategy", &sharding_strategy,
        "what is sharded over data-parallel ranks: no_shard, optim (ZeRO-1), optim_grads "
        "(ZeRO-2) or optim_grads_params (ZeRO-3)");
  f.add("num-distributed-optimizer-instances", &optimizer_instances,
        "groups of data-parallel ranks, each of which holds a full copy of the sharded state")
      .within(1, kMaxRanks);
  f.add_switch("overlap-grad-reduce", &overlap_grad_reduce, true,
               "overlap the reduction of gradients with backward");
  f.add_switch("overlap-param-gather", &overlap_param_gather, true,
               "overlap the all-gather of sharded parameters with forward");
  f.add("ddp-bucket-size", &bucket_size,
        "gradient elements per reduction bucket; default max(40e6, 1e6 x data-parallel ranks)");
  f.add("ddp-num-buckets", &num_buckets, "number of gradient buckets, instead of their size");
  f.add_switch("use-megatron-fsdp", &use_megatron_fsdp, true,
               "--data-parallel-sharding-strategy, optim_grads_params by default");
  f.add_switch("use-custom-fsdp", &use_custom_fsdp, true, "older spelling of --use-megatron-fsdp");
  f.add_switch("use-torch-fsdp2", &use_torch_fsdp2, true,
               "--data-parallel-sharding-strategy optim_grads_params");
  f.common({"tensor-model-parallel-size", "pipeline-model-parallel-size"});
}

namespace {

constexpr std::array kShardings = {Sharding::none, Sharding::optimizer, Sharding::gradients,
                                   Sharding::parameters};
constexpr std::array kSchedules = {ScheduleKind::one_f_one_b, ScheduleKind::interleaved,
                                   ScheduleKind::zero_bubble_h1, ScheduleKind::zero_bubble_v};

// Returns the value with this name.
template <class T, size_t n>
T named(const std::array<T, n>& values, const std::string& text, std::string_view flag) {
  std::string names;
  for (const T value : values) {
    if (name(value) == text) return value;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", name(value));
  }
  fail("--{} is '{}'; it must be one of {}", flag, text, names);
}

void check_positive(const std::optional<int64_t>& value, std::string_view flag) {
  if (!value) return;
  MG_CHECK(*value >= 1, "--{} is {}; it must be at least 1", flag, *value);
}

// Chunks per stage; 0: not set by any flag.
int chunks_of_flags(const ParallelSettings& s, int64_t num_layers) {
  if (!s.layout.empty()) {
    const int64_t virtual_stages = parallel::virtual_stages_of_layout(s.layout);
    MG_CHECK(
        virtual_stages % s.pipeline_parallel == 0,
        "--pipeline-model-parallel-layout '{}' has {} virtual stages, which cannot be divided by "
        "--pipeline-model-parallel-size {}: change the layout's | or the size",
        s.layout, virtual_stages, s.pipeline_parallel);
    return static_cast<int>(virtual_stages / s.pipeline_parallel);
  }
  if (s.virtual_stages) return static_cast<int>(*s.virtual_stages);
  if (!s.layers_per_virtual_stage) return 0;
  const int64_t total = num_layers + s.account_for_embedding + s.account_for_loss;
  const int64_t each = total / s.pipeline_parallel;
  MG_CHECK(total % s.pipeline_parallel == 0 && each % *s.layers_per_virtual_stage == 0 && each > 0,
           "--num-layers {}{} cannot be divided by --pipeline-model-parallel-size {} stages of "
           "chunks with --num-layers-per-virtual-pipeline-stage {}: change one of them",
           num_layers,
           s.account_for_embedding || s.account_for_loss ? " with the embedding or the loss counted"
                                                         : "",
           s.pipeline_parallel, *s.layers_per_virtual_stage);
  return static_cast<int>(each / *s.layers_per_virtual_stage);
}

class Check {
 public:
  Check(const ParallelSettings& settings, std::vector<SettingNote>& notes)
      : s_(settings), notes_(notes) {}

  void run(int ranks, int64_t num_layers, int64_t micro_batches, int64_t seq_length) {
    s_.check_sizes();
    parallel::rank_lists(s_.mesh_layout(), ranks, parallel::Axis::tp);
    check_sequence(seq_length);
    check_rules(RuleScope::parallel, {.parallel = s_});
    const PipelineShape shape = s_.pipeline(num_layers);
    check_schedule(shape, micro_batches);
    parallel::place_layers(num_layers, shape, s_.placement());
    tell_sharding();
    check_overlap();
  }

 private:
  void check_sequence(int64_t seq_length);
  void check_schedule(const PipelineShape& shape, int64_t micro_batches);
  void tell_sharding();
  void check_overlap();

  const ParallelSettings& s_;
  std::vector<SettingNote>& notes_;
};

void Check::check_sequence(int64_t seq_length) {
  s_.check_length(seq_length, "seq-length");
  if (!s_.context_exchange.empty() && s_.context_parallel == 1)
    notes_.push_back({"cp-comm-type", "none", "--context-parallel-size 1"});
  if (s_.sequence_parallel && s_.tensor_parallel == 1)
    notes_.push_back({"sequence-parallel", "false", "--tensor-model-parallel-size 1"});
}

void Check::check_schedule(const PipelineShape& shape, int64_t micro_batches) {
  const std::string_view kind = name(shape.kind);
  const bool v = shape.kind == ScheduleKind::zero_bubble_v;
  MG_CHECK(shape.stages > 1 || shape.chunks == 1,
           "{} chunks per stage ({}) need --pipeline-model-parallel-size above 1", shape.chunks,
           v                             ? "--pipeline-schedule zb-v"
           : s_.virtual_stages           ? "--num-virtual-stages-per-pipeline-rank"
           : s_.layers_per_virtual_stage ? "--num-layers-per-virtual-pipeline-stage"
                                         : "--pipeline-model-parallel-layout");
  MG_CHECK(shape.stages > 1 || shape.kind == ScheduleKind::one_f_one_b,
           "--pipeline-schedule {} needs --pipeline-model-parallel-size above 1", kind);
  if (shape.kind == ScheduleKind::interleaved) {
    MG_CHECK(shape.chunks > 1,
             "--pipeline-schedule interleaved needs several chunks per stage: give "
             "--num-virtual-stages-per-pipeline-rank");
  } else {
    const int wanted = v ? 2 : 1;
    MG_CHECK(shape.chunks == wanted,
             "--pipeline-schedule {} needs {} per stage, but {} are given: drop it, or whichever "
             "of --num-virtual-stages-per-pipeline-rank, --num-layers-per-virtual-pipeline-stage "
             "and --pipeline-model-parallel-layout sets that number",
             kind, v ? "two chunks" : "one chunk", shape.chunks);
    if (s_.microbatch_group)
      notes_.push_back(
          {"microbatch-group-size-per-virtual-pipeline-stage", "none",
           fmt::format("only the interleaved schedule has groups, not --pipeline-schedule {}",
                       kind)});
  }
  // schedule() throws Error if the groups do not fit. Checked without parts, since
  // check_overlapped_experts() checks which schedules support them.
  PipelineShape whole = shape;
  whole.parts = 1;
  if (micro_batches > 0 && micro_batches <= ParallelSizes::kMaxRanks)
    whole.schedule(0, static_cast<int>(micro_batches));
  if (shape.stages == 1 && !s_.overlap_p2p)
    notes_.push_back({"no-overlap-p2p-communication", "none",
                      "--pipeline-model-parallel-size 1: there are no other stages to "
                      "communicate with"});
}

void Check::tell_sharding() {
  const auto note = [&](std::string cause) {
    notes_.push_back(
        {"data-parallel-sharding-strategy", std::string(name(s_.sharding())), std::move(cause)});
  };
  for (const auto& [given, flag] : {std::pair{s_.use_torch_fsdp2, "--use-torch-fsdp2"},
                                    {s_.use_megatron_fsdp, "--use-megatron-fsdp"},
                                    {s_.use_custom_fsdp, "--use-custom-fsdp"}})
    if (given) return note(fmt::format("{}: the same sharding, implemented here", flag));
  if (s_.sharding_strategy)
    note("it works on its own here; Megatron-LM reads it only with --use-megatron-fsdp");
  else if (s_.distributed_optimizer) note("--use-distributed-optimizer");
}

void Check::check_overlap() {
  MG_CHECK(s_.token_dispatcher != ParallelSettings::Dispatcher::flex,
           "--moe-token-dispatcher-type flex chooses the fused kernels of DeepEP, HybridEP or NCCL "
           "EP, libraries that this program does not use; use alltoall or allgather");
  for (const auto& [given, flag] :
       {std::pair{s_.overlap_experts, "overlap-moe-expert-parallel-comm"},
        {s_.overlap_shared_expert, "moe-shared-expert-overlap"},
        {s_.token_dispatcher == ParallelSettings::Dispatcher::alltoall,
         "moe-token-dispatcher-type"}})
    if (given && !s_.expert_tokens_travel())
      notes_.push_back({flag, "none",
                        "every rank holds all experts that its tokens use, so no tokens are sent"});
  if (s_.overlap_grad_reduce || !(s_.bucket_size || s_.num_buckets)) return;
  notes_.push_back({s_.bucket_size ? "ddp-bucket-size" : "ddp-num-buckets", "none",
                    "without --overlap-grad-reduce there is one bucket"});
}

}  // namespace

void ParallelSettings::check_sizes() const {
  ParallelSettings rows = *this;
  Fields f;
  rows.fields(f);
  f.check();
  context_exchanges();
  context_levels();
  check_rules(RuleScope::sizes, {.parallel = *this});
  check_positive(layers_per_virtual_stage, "num-layers-per-virtual-pipeline-stage");
  check_positive(bucket_size, "ddp-bucket-size");
  check_positive(num_buckets, "ddp-num-buckets");
}

// The product cannot overflow even for sizes that check() refuses.
int64_t ParallelSettings::model_ranks() const {
  int64_t product = 1;
  for (const int64_t size : {tensor_parallel, pipeline_parallel, context_parallel})
    product *= std::clamp<int64_t>(size, 0, kMaxRanks);
  return product;
}

int64_t ParallelSettings::least_ranks() const {
  const auto size = [](int64_t given) { return std::clamp<int64_t>(given, 1, kMaxRanks); };
  const int64_t of_stage =
      std::lcm(size(tensor_parallel) * size(context_parallel) * size(optimizer_instances),
               size(expert_parallel) * size(expert_tensor_parallel.value_or(tensor_parallel)));
  return std::min(of_stage, int64_t{1} << 40) * size(pipeline_parallel);
}

void ParallelSettings::check(int ranks, int64_t num_layers, int64_t micro_batches,
                             int64_t seq_length, std::vector<SettingNote>& notes) const {
  Check(*this, notes).run(ranks, num_layers, micro_batches, seq_length);
}

void ParallelSettings::check_length(int64_t length, std::string_view flag) const {
  const parallel::TokenLayout tokens{.length = length, .ranks = static_cast<int>(context_parallel)};
  tokens.check(flag);
  MG_CHECK(
      !sequence_parallel || tokens.held() % tensor_parallel == 0,
      "--{} {}{} cannot be divided by --tensor-model-parallel-size {}, and --sequence-parallel "
      "divides the tokens by it: change one of them, or drop --sequence-parallel",
      flag, length,
      context_parallel == 1 ? "" : fmt::format(" / --context-parallel-size {}", context_parallel),
      tensor_parallel);
}

PipelineShape ParallelSettings::pipeline(int64_t num_layers) const {
  PipelineShape shape;
  shape.stages = static_cast<int>(pipeline_parallel);
  const int chunks = chunks_of_flags(*this, num_layers);
  shape.chunks = std::max(chunks, 1);
  shape.kind = shape.chunks > 1 ? ScheduleKind::interleaved : ScheduleKind::one_f_one_b;
  if (schedule) shape.kind = named(kSchedules, *schedule, "pipeline-schedule");
  if (shape.kind == ScheduleKind::zero_bubble_v && chunks == 0) shape.chunks = 2;
  if (shape.kind == ScheduleKind::interleaved)
    shape.group = static_cast<int>(microbatch_group.value_or(0));
  if (!overlap_experts || !expert_tokens_travel()) return shape;
  int64_t most = 0;
  for (const parallel::ModelPart& part : parallel::place_layers(num_layers, shape, placement()))
    most = std::max(most, part.layers);
  shape.parts = parallel::most_parts(most);
  return shape;
}

Sharding ParallelSettings::sharding() const {
  if (sharding_strategy)
    return named(kShardings, *sharding_strategy, "data-parallel-sharding-strategy");
  if (use_megatron_fsdp || use_custom_fsdp || use_torch_fsdp2) return Sharding::parameters;
  return distributed_optimizer ? Sharding::optimizer : Sharding::none;
}

parallel::Layout ParallelSettings::mesh_layout() const {
  parallel::Layout layout;
  layout.tp = static_cast<int>(tensor_parallel);
  layout.pp = static_cast<int>(pipeline_parallel);
  layout.cp = static_cast<int>(context_parallel);
  layout.hierarchical_cp = context_levels();
  layout.ep = static_cast<int>(expert_parallel);
  layout.etp = static_cast<int>(expert_tensor_parallel.value_or(0));
  layout.instances = static_cast<int>(optimizer_instances);
  if (tp_pp_dp_mapping) layout.order = "tp-cp-ep-pp-dp";
  return layout;
}

parallel::LayerPlacement ParallelSettings::placement() const {
  parallel::LayerPlacement placement;
  placement.first_stage_layers = decoder_first_layers;
  placement.last_stage_layers = decoder_last_layers;
  placement.count_embedding = account_for_embedding;
  placement.count_loss = account_for_loss;
  placement.layout = layout;
  return placement;
}

parallel::DataParallelOptions ParallelSettings::data_parallel(int64_t parameters_of_rank) const {
  parallel::DataParallelOptions options;
  options.sharding = sharding();
  options.overlap_reduce = overlap_grad_reduce;
  options.overlap_gather = overlap_param_gather;
  if (!overlap_grad_reduce) return options;
  if (bucket_size) options.bucket_elements = *bucket_size;
  if (num_buckets)
    options.bucket_elements = std::max<int64_t>(1, ceil_div(parameters_of_rank, *num_buckets));
  return options;
}

parallel::PipelineOptions ParallelSettings::pipeline_options() const {
  parallel::PipelineOptions options;
  options.overlap = overlap_p2p;
  return options;
}

parallel::RanksOptions ParallelSettings::ranks_options(int64_t num_layers) const {
  parallel::RanksOptions options;
  options.layout = mesh_layout();
  options.sequence = sequence_parallel && tensor_parallel > 1;
  options.pipeline = pipeline(num_layers);
  options.sharding = sharding();
  options.context_exchange = context_exchanges();
  options.async = tensor_parallel > 1 || context_parallel > 1 || overlap_grad_reduce ||
                  overlap_param_gather || (pipeline_parallel > 1 && overlap_p2p);
  options.async_experts = (overlap_experts || overlap_shared_expert) && expert_tokens_travel();
  if (token_dispatcher == Dispatcher::alltoall)
    options.dispatcher = parallel::TokenDispatcher::alltoall;
  return options;
}

}  // namespace megatron::settings
