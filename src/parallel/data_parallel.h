// Ranks that hold the same model and see different samples: buffers of parameters and gradients,
// their reduction, and how much of them each rank keeps (ZeRO: Rajbhandari et al. 2020).
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "autograd/tape.h"
#include "comm/group.h"
#include "parallel/model_ranks.h"

namespace megatron::parallel {

// What a rank holds no more than its shard of; each includes those before it. Megatron-LM's
// --data-parallel-sharding-strategy no_shard, optim, optim_grads, optim_grads_params: ZeRO 0 to 3.
enum class Sharding { none, optimizer, gradients, parameters };
std::string_view name(Sharding sharding);  // "no_shard", "optim", ...

struct DataParallelOptions {
  Sharding sharding = Sharding::none;
  // A bucket is closed once it has so many elements; 0: max(40e6, 1e6 ranks) where something is
  // overlapped, else one bucket. With Sharding::parameters, and by default with gradients, every
  // span of the model is a bucket.
  int64_t bucket_elements = 0;
  bool overlap_reduce = false;  // --overlap-grad-reduce: buckets are reduced as they become final
  bool overlap_gather = false;  // --overlap-param-gather
};

// The ranks that hold the same parameters: instances x shards, of which the shards of one instance
// together hold everything once (--num-distributed-optimizer-instances; hybrid sharding). Groups are
// borrowed; a null one has one rank.
struct Replicas {
  comm::Group* shards = nullptr;     // reduce-scatter, all-gather
  comm::Group* instances = nullptr;  // all-reduce of what a shard holds
  comm::Group* async =
      nullptr;  // `shards` again: for calls that overlap with compute (comm/async.h)
  comm::Group* instances_async = nullptr;
  bool counted = true;  // Shard::counted of what this rank holds
};

struct DataParallelGroups {
  Replicas dense, expert;            // of ParameterSpec::is_expert
  ModelRanks ranks;                  // sum the gradients of ParameterSpec::partial
  comm::Group* embedding = nullptr;  // first and last stage: sums those of tied_across_stages

  const Replicas& replicas(bool of_experts) const { return of_experts ? expert : dense; }
};

// Owns the memory of a stage's parameters and main gradients, one buffer of each, and of parameters
// one a type. Parameters lie in the reverse of the order given (the order in which backward makes
// them final), partial ones at the end of their bucket, and those of experts, whose replicas are
// other ranks, in buckets of their own. Every rank of a group gives each parameter as many gradients
// in a step, also of an expert that got no token. Shards of a bucket are of one size; a border between them cuts a
// parameter only at a multiple of kNormBlock of its elements, so that no block of the gradient norm
// is ever cut. Sums over ranks are those of the raw gradients, in rank order in f32 (f64): over
// their group for partial ones, then over stages for tied ones, then over shards, then over instances;
// the caller divides. One shard: no sharding.
//
// With Sharding::gradients and parameters the gradients of a bucket have memory from the first that
// is written (gradient_begins) until the micro-batch's are reduced: at most two buckets' at once.
// Those of shared parameters (several uses or spans, tied across stages) are kept and reduced once
// a step.
//
// Bits do not depend on sharding, buckets or overlap, but for one thing: gradients and parameters
// reduce every micro-batch, so that with more than one they add in another order than none and
// optimizer, which reduce once a step.
//
// With Sharding::parameters a parameter's value is there between enter() and leave() of the spans
// that name it only; at most two spans' parameters are held at once: the one at work and, with
// overlap_gather, the next. Spans are known by their names; others are ignored.
class DataParallel final : public GradientListener, public SpanListener {
 public:
  // parameters: in the model's order, values without memory (nn::Builder); they get memory here
  // (undefined contents). spans: those of the stage, in the order of forward.
  DataParallel(std::vector<ParameterSpec*> parameters, std::vector<const Span*> spans,
               const DataParallelGroups& groups, Runtime& runtime,
               const DataParallelOptions& options);
  ~DataParallel() override;

  // What this rank keeps: to be filled before the first step (then call parameters_changed), and
  // updated by the optimizer. Gradients lie there after finish(). Every parameter in the model's
  // order; where this rank keeps nothing of one, its shard is empty.
  const std::vector<Shard>& shards() const { return shards_; }
  // After shards' values were changed: brings them to the other ranks, or begins to.
  void parameters_changed();
  // Makes every parameter's value whole (saving samples, evaluation by other code); undone by the
  // next begin_step().
  void gather_all();

  void begin_step(int micro_batches);  // the first gradient of each is stored, later ones add
  void gradient_begins(Parameter& parameter) override;
  void gradient_final(Parameter& parameter, int micro_batch) override;
  void enter(const Span& span, Pass pass) override;
  void leave(const Span& span, Pass pass) override;
  // After the last backward: what got no gradient becomes zero, what was not reduced is, and all
  // reductions are waited for.
  void finish();

  int buckets() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
  std::vector<Shard> shards_;
};

}  // namespace megatron::parallel
