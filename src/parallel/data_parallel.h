// Data parallelism: ranks that hold the same model and see different samples. Buffers of parameters
// and gradients, their reduction, and how much of them each rank keeps (ZeRO: Rajbhandari et al.
// 2020).
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "autograd/tape.h"
#include "comm/group.h"
#include "parallel/model_ranks.h"

namespace megatron::parallel {

// State that is divided among ranks, so that each keeps only its shard; each value includes those
// before it. Megatron-LM's --data-parallel-sharding-strategy no_shard, optim, optim_grads,
// optim_grads_params: ZeRO 0 to 3.
enum class Sharding { none, optimizer, gradients, parameters };
std::string_view name(Sharding sharding);  // "no_shard", "optim", ...

struct DataParallelOptions {
  Sharding sharding = Sharding::none;
  // Minimum number of elements of a bucket, except the last; 0: max(40e6, 1e6 ranks) if something
  // is overlapped, otherwise a single bucket. With Sharding::parameters, and by default with
  // gradients, every span of the model is a bucket.
  int64_t bucket_elements = 0;
  bool overlap_reduce = false;  // --overlap-grad-reduce: reduces buckets as they become final
  bool overlap_gather = false;  // --overlap-param-gather
  // --fp8-param-gather, --fp4-param-gather: weight_codes.h
  bool gather_fp8_codes = false, gather_fp4_codes = false;
};

// The ranks that hold the same parameters: instances x shards; the shards of one instance together
// hold every element once (--num-distributed-optimizer-instances; hybrid sharding). Groups are
// borrowed; a null group has one rank.
struct Replicas {
  comm::Group* shards = nullptr;     // for reduce-scatter and all-gather
  comm::Group* instances = nullptr;  // for all-reduce of a shard's gradients
  comm::Group* async =
      nullptr;  // same ranks as `shards`, for calls that overlap with compute (comm/async.h)
  comm::Group* instances_async = nullptr;
  bool counted = true;  // Shard::counted of this rank's shards
};

struct DataParallelGroups {
  Replicas dense, expert;  // selected by ParameterSpec::is_expert
  ModelRanks ranks;        // sum the gradients marked ParameterSpec::partial
  // Pipeline stages, which sum the gradients of parameters that several of them hold.
  comm::Group* stages = nullptr;

  const Replicas& replicas(bool of_experts) const { return of_experts ? expert : dense; }
};

// Owns the memory of a stage's parameters and main gradients: one buffer of gradients, and one of
// parameters per type. Parameters are laid out in the reverse of the given order (the order in
// which backward finishes their gradients), partial ones at the end of their bucket, and those of
// experts, which have other replicas, in buckets of their own. Every rank of a group contributes
// equally many gradients of each parameter in a step, even of an expert without tokens. Shards of a
// bucket have equal sizes; a border between them cuts a parameter only at a multiple of kNormBlock
// of its elements, so that no block of the gradient norm is ever cut. Sums over ranks are those of
// the raw gradients, in rank order in f32 (f64): over the uses of a parameter, from the last to the
// first, which may be on several stages; then over their group for partial ones, then over shards,
// then over instances; the caller divides. One shard: no sharding.
//
// With Sharding::gradients and parameters a bucket's gradients have memory from the first write
// (gradient_begins) until the micro-batch's gradients are reduced: for at most two buckets at once.
// Those of shared parameters (several uses or spans, tied across stages) are kept and reduced once
// per step.
//
// Bits do not depend on sharding, buckets or overlap, with one exception: gradients and parameters
// reduce every micro-batch, so with more than one micro-batch they add in another order than none
// and optimizer, which reduce once per step.
//
// Parameters that are not trainable have no gradients and are not reduced. Only
// Sharding::parameters divides their values.
//
// With Sharding::parameters a parameter's value exists only between enter() and leave() of the
// spans that name it; at most two spans' parameters are held at once: the current one and, with
// overlap_gather, the next. Spans are identified by name; others are ignored.
class DataParallel final : public GradientListener, public SpanListener {
 public:
  // parameters: in the model's order, with values without memory (nn::Builder), which is allocated
  // here (with undefined contents). spans: those of the stage, in the order of forward.
  DataParallel(std::vector<ParameterSpec*> parameters, std::vector<const Span*> spans,
               const DataParallelGroups& groups, Runtime& runtime,
               const DataParallelOptions& options);
  ~DataParallel() override;

  // The shards that this rank keeps: to be filled before the first step (then call
  // parameters_changed), and updated by the optimizer. They hold the gradients after finish().
  // Contains every parameter in the model's order; the shard is empty if this rank keeps nothing of
  // one.
  const std::vector<Shard>& shards() const { return shards_; }
  // Called after shards' values were changed: sends them to the other ranks, or starts to.
  void parameters_changed();
  // Called after the scales of quantized weights, or LowPrecision::active, changed outside a step:
  // sends the weights again if they are sent as codes.
  void scales_changed();
  // Makes every parameter's value whole (for samples and evaluation by other code); undone by the
  // next begin_step().
  void gather_all();

  // The first gradient of each parameter is stored, later ones are added.
  void begin_step(int micro_batches);
  void gradient_begins(Parameter& parameter) override;
  void gradient_final(Parameter& parameter, int micro_batch) override;
  void enter(const Span& span, Pass pass) override;
  void leave(const Span& span, Pass pass) override;
  // Called after the last backward: zeroes gradients that were not written, reduces those that were
  // not reduced, and waits for all reductions.
  void finish();

  int buckets() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
  std::vector<Shard> shards_;
};

}  // namespace megatron::parallel
