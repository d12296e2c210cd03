#include "parallel/data_parallel.h"

#include <algorithm>

#include "base/error.h"
#include "parallel/gradient_buckets.h"
#include "parallel/parameter_buckets.h"

namespace megatron::parallel {
namespace {

constexpr int64_t kAlignment = 64;                                  // bytes
constexpr int64_t kBucket = 40'000'000, kBucketOfRank = 1'000'000;  // elements

// With a single shard nothing is divided.
Sharding effective(const DataParallelGroups& groups, const DataParallelOptions& options) {
  const bool divides = size_of(groups.dense.shards) > 1 || size_of(groups.expert.shards) > 1;
  return divides ? options.sharding : Sharding::none;
}

BucketRules rules_of(const std::vector<ParameterSpec*>& parameters,
                     const DataParallelGroups& groups, const DataParallelOptions& options) {
  MG_CHECK(options.bucket_elements >= 0,
           "the gradient bucket size is {} elements; it must be at least 1 (0: the default)",
           options.bucket_elements);
  const Sharding sharding = effective(groups, options);
  BucketRules rules;
  if (sharding != Sharding::none) {
    rules.shards = size_of(groups.dense.shards);
    rules.expert_shards = size_of(groups.expert.shards);
  }
  rules.unit = kAlignment / megatron::size_of(DType::f32);
  for (const ParameterSpec* placed : parameters)
    rules.unit = std::max<int64_t>(rules.unit,
                                   kAlignment / megatron::size_of(placed->parameter.value.dtype()));
  // Nothing updates frozen parameters, so that there is nothing to gather.
  rules.divides_frozen = sharding == Sharding::parameters;
  rules.bucket_elements = options.bucket_elements;
  rules.fp8_codes = options.gather_fp8_codes;
  rules.fp4_codes = options.gather_fp4_codes;
  rules.shared_apart = sharding >= Sharding::gradients;
  rules.by_span = sharding == Sharding::parameters ||
                  (sharding == Sharding::gradients && options.bucket_elements == 0);
  if (rules.bucket_elements == 0 && (options.overlap_reduce || options.overlap_gather)) {
    const int64_t replicas =
        size_of(groups.dense.shards) * int64_t{size_of(groups.dense.instances)};
    rules.bucket_elements = std::max(kBucket, kBucketOfRank * replicas);
  }
  return rules;
}

}  // namespace

std::string_view name(Sharding sharding) {
  switch (sharding) {
    case Sharding::none: return "no_shard";
    case Sharding::optimizer: return "optim";
    case Sharding::gradients: return "optim_grads";
    case Sharding::parameters: return "optim_grads_params";
  }
  MG_ASSERT(false);
}

struct DataParallel::State {
  State(const std::vector<ParameterSpec*>& parameters, const std::vector<const Span*>& spans,
        const DataParallelGroups& groups, Runtime& runtime, const DataParallelOptions& options)
      : buckets(lay_out(parameters, spans, rules_of(parameters, groups, options))),
        gradients(buckets, groups, runtime, effective(groups, options), options.overlap_reduce),
        values(buckets, spans, groups, runtime, effective(groups, options),
               options.overlap_gather) {}

  std::vector<Bucket> buckets;
  GradientBuckets gradients;
  ParameterBuckets values;
};

DataParallel::DataParallel(std::vector<ParameterSpec*> parameters, std::vector<const Span*> spans,
                           const DataParallelGroups& groups, Runtime& runtime,
                           const DataParallelOptions& options)
    : state_(std::make_unique<State>(parameters, spans, groups, runtime, options)),
      shards_(parameters.size()) {
  const bool divides = effective(groups, options) != Sharding::none;
  for (size_t b = 0; b < state_->buckets.size(); ++b) {
    const Bucket& bucket = state_->buckets[b];
    const Tensor values = state_->values.shard(b), gradients = state_->gradients.shard(b);
    const Replicas& replicas = groups.replicas(bucket.expert);
    const int64_t first = bucket.shards > 1 ? replicas.shards->rank() * bucket.shard : 0;
    for (const Bucket::Entry& entry : bucket.entries) {
      const int64_t begin = std::clamp(first, entry.begin, entry.begin + entry.size());
      const int64_t end =
          std::clamp(first + values.elements(), entry.begin, entry.begin + entry.size());
      const Shape shape =
          end - begin == entry.size() ? entry.placed->parameter.value.shape() : Shape{end - begin};
      const int64_t at = begin < end ? begin - first : 0;
      Shard& shard = shards_[entry.index];
      shard.placed = entry.placed;
      shard.counted = entry.placed->counted && replicas.counted;
      if (divides && bucket.shards == 1 && rank_in(replicas.shards) > 0) shard.counted = false;
      shard.begin = begin - entry.begin;
      shard.value = values.slice(0, at, end - begin).view(shape);
      if (bucket.trainable) shard.gradient = gradients.slice(0, at, end - begin).view(shape);
    }
  }
}

DataParallel::~DataParallel() = default;

void DataParallel::parameters_changed() { state_->values.changed(); }
void DataParallel::scales_changed() {
  if (std::ranges::any_of(state_->buckets, &Bucket::coded)) parameters_changed();
}
void DataParallel::gather_all() { state_->values.gather_all(); }

void DataParallel::begin_step(int micro_batches) {
  state_->values.begin_step();
  state_->gradients.begin_step(micro_batches);
}

void DataParallel::gradient_begins(Parameter& parameter) { state_->gradients.begins(parameter); }
void DataParallel::gradient_final(Parameter& parameter, int) { state_->gradients.final(parameter); }
void DataParallel::enter(const Span& span, Pass pass) { state_->values.enter(span, pass); }
void DataParallel::leave(const Span& span, Pass) { state_->values.leave(span); }
void DataParallel::finish() { state_->gradients.finish(); }

int DataParallel::buckets() const {
  return static_cast<int>(std::ranges::count_if(state_->buckets, &Bucket::trainable));
}

}  // namespace megatron::parallel
