#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "base/error.h"
#include "base/fields.h"
#include "selftest/changed_kernel.h"
#include "selftest/encoder_faults.h"
#include "selftest/environment.h"
#include "selftest/layout_matrix.h"
#include "selftest/passing_group.h"
#include "selftest/preferences.h"
#include "selftest/state_space_faults.h"

namespace megatron::selftest {
namespace {

// Calls of the computation, by prefixes of their names.
constexpr std::string_view kGradients = "gradients, bucket", kPartial = "partial gradients, bucket",
                           kTiedGradients = "tied gradients", kParameters = "parameters, bucket",
                           kLossStats = "vocabulary_loss, stats", kStates = "step.states",
                           kExpertChoices = "expert choices", kExpertResults = "expert results",
                           kExpertLoad = "expert load", kBlocks = "context, keys and values",
                           kTotals = "step.totals";

template <class T>
void scale(std::span<T> values, double factor) {
  for (T& value : values) value = static_cast<T>(value * factor);
}

void scale(const Tensor& t, double factor) {
  if (t.dtype() == DType::f64) return scale(t.span<double>(), factor);
  scale(t.span<float>(), factor);
}

// Makes the calls of another group, as `change` makes each.
template <auto change>
class Changed final : public PassingGroup<Changed<change>> {
 public:
  using PassingGroup<Changed>::PassingGroup;
  comm::Work make(comm::GroupCall call, Stream& stream) override {
    return change(this->group_, call, stream);
  }
};

bool is(const comm::GroupCall& call, comm::Operation operation, std::string_view prefix) {
  return call.operation == operation && call.name.starts_with(prefix);
}

// All-reduces whose names begin with this do nothing.
template <const std::string_view& kCalls>
comm::Work unreduced(comm::Group& group, const comm::GroupCall& call, Stream& stream) {
  if (is(call, comm::Operation::all_reduce, kCalls)) return {};
  return group.make(call, stream);
}

// Doubles the gradient of a tied parameter that a later stage sends to the first.
comm::Work tied_gradient_twice(comm::Group& group, const comm::GroupCall& call, Stream& stream) {
  if (is(call, comm::Operation::send, kTiedGradients) && group.rank() > 0) scale(call.in, 2);
  return group.make(call, stream);
}

// Divides the sum over data-parallel ranks by their number, although the step divides by all
// tokens.
comm::Work averaged_gradients(comm::Group& group, const comm::GroupCall& call, Stream& stream) {
  comm::Work work = group.make(call, stream);
  if (!call.reduces() || !call.name.starts_with(kGradients)) return work;
  work.wait(stream);
  scale(call.out.defined() ? call.out : call.in, 1.0 / group.size());
  return {};
}

// Every rank's sum of exponentials counts as often as there are ranks: the loss grows by log(TP).
comm::Work counted_twice_in_loss(comm::Group& group, const comm::GroupCall& call, Stream& stream) {
  if (is(call, comm::Operation::all_gather, kLossStats)) {
    for (int64_t token = 0; token < call.in.size(0); ++token)
      scale(call.in.select(0, token).slice(0, 1, 1), group.size());
  }
  return group.make(call, stream);
}

// Tokens that chose expert 0 go to expert 1, and the reverse.
comm::Work swapped_experts(comm::Group& group, const comm::GroupCall& call, Stream& stream) {
  comm::Work work = group.make(call, stream);
  if (!is(call, comm::Operation::all_gather, kExpertChoices)) return work;
  work.wait(stream);
  for (int32_t& expert : call.out.span<int32_t>())
    if (expert <= 1) expert = 1 - expert;
  return {};
}

// Every token gets the experts' result for the previous token.
comm::Work misplaced_expert_results(comm::Group& group, const comm::GroupCall& call,
                                    Stream& stream) {
  comm::Work work = group.make(call, stream);
  const Tensor& out = call.out;
  if (call.name != kExpertResults || !out.defined() || out.size(0) == 0) return work;
  work.wait(stream);
  const auto row = out.bytes() / out.size(0);
  auto* begin = static_cast<std::byte*>(out.raw());
  std::rotate(begin, begin + (out.bytes() - row), begin + out.bytes());
  return {};
}

// The balance loss counts the choices of a divided sequence's tokens twice.
comm::Work expert_load_twice(comm::Group& group, const comm::GroupCall& call, Stream& stream) {
  if (is(call, comm::Operation::all_reduce, kExpertLoad) ||
      is(call, comm::Operation::all_gather, kExpertLoad))
    scale(call.in, 2);
  return group.make(call, stream);
}

// The later half of a block returns to its own rank, not to the next one in the ring: what arrives
// is the first half of the previous rank's block and the later half of one's own.
comm::Work misdirected_half(comm::Group& group, const comm::GroupCall& call, Stream& stream) {
  comm::Work work = group.make(call, stream);
  if (!is(call, comm::Operation::all_to_all, kBlocks)) return work;
  work.wait(stream);
  const int64_t half = call.in.size(1) / 2;
  kernels::table(stream).copy(
      {.x = call.in.slice(1, half, half), .out = call.out.slice(1, half, half)}, stream);
  return {};
}

// Counts the tokens of a step once per context-parallel rank of the run. The ranks of groups split
// from this one know their number from the group that has its name.
class RepeatedCounts final : public PassingGroup<RepeatedCounts> {
 public:
  using PassingGroup::PassingGroup;
  std::unique_ptr<comm::Group> split(int color, int key, int members) override {
    auto part = std::make_unique<RepeatedCounts>(group_.split(color, key, members));
    part->times_ = times_;
    return part;
  }
  void set_name(std::string_view name) override {
    if (name == "cp") *times_ = size();
    PassingGroup::set_name(name);
  }
  comm::Work make(comm::GroupCall call, Stream& stream) override {
    if (is(call, comm::Operation::all_reduce, kTotals))
      scale(call.in.slice(0, call.in.size(0) - 1, 1), *times_);
    return PassingGroup::make(std::move(call), stream);
  }

 private:
  std::shared_ptr<int> times_ = std::make_shared<int>(1);
};

comm::Work counts_of_own_rank(comm::Group& group, const comm::GroupCall& call, Stream& stream) {
  if (!is(call, comm::Operation::all_reduce, kTotals)) return group.make(call, stream);
  const Tensor counted = call.in.slice(0, call.in.size(0) - 1, 1);
  const double own = to_doubles(counted)[0];
  group.make(call, stream).wait(stream);
  counted.span<double>()[0] = std::max(own, 1.0) * group.size();  // a step without any is refused
  return {};
}

// The other ranks' part of a bucket stays as it was in the bucket's first gather.
class StaleParameters final : public PassingGroup<StaleParameters> {
 public:
  using PassingGroup::PassingGroup;
  comm::Work make(comm::GroupCall call, Stream& stream) override {
    if (!is(call, comm::Operation::all_gather, kParameters)) return group_.make(call, stream);
    const Tensor &in = call.in, &out = call.out;
    const auto bytes = static_cast<size_t>(out.bytes()), own = static_cast<size_t>(in.bytes());
    std::vector<std::byte>& kept = first_[std::string(call.name)];
    if (kept.empty()) {
      group_.make(call, stream).wait(stream);
      kept.resize(bytes);
      std::memcpy(kept.data(), out.raw(), bytes);
      return {};
    }
    const size_t begin = static_cast<size_t>(rank()) * own;
    std::memmove(static_cast<std::byte*>(out.raw()) + begin, in.raw(), own);
    std::memcpy(out.raw(), kept.data(), begin);
    std::memcpy(static_cast<std::byte*>(out.raw()) + begin + own, kept.data() + begin + own,
                bytes - begin - own);
    return {};
  }

 private:
  std::map<std::string, std::vector<std::byte>> first_;
};

template <class Group>
Environment with_group() {
  Environment environment;
  environment.wrap = [](comm::Group& group) { return std::make_unique<Group>(group); };
  return environment;
}

// "model.layers.2.mlp..." -> the name with another layer, as `other` says; other names as they are.
void rename_layer(std::string& name, const std::function<int64_t(int64_t)>& other) {
  for (const std::string_view before : {"layers.", ".h.", ".layer."}) {
    const size_t found = name.find(before);
    if (found == std::string::npos) continue;
    const size_t begin = found + before.size(), end = name.find('.', begin);
    name.replace(begin, end - begin,
                 std::to_string(other(std::stoll(name.substr(begin, end - begin)))));
    return;
  }
}

// Swaps the tensors of the layers in the first and the last virtual stage that have layers, for as
// many layers as both have: each is filled with the other's values and provides the other's
// gradients.
void swap_stages(std::span<const parallel::Shard> shards,
                 std::span<const parallel::ModelPart> virtual_stages) {
  const auto has_layers = [](const parallel::ModelPart& part) { return part.layers > 0; };
  const parallel::ModelPart& first = *std::ranges::find_if(virtual_stages, has_layers);
  const parallel::ModelPart& last =
      *std::ranges::find_if(virtual_stages.rbegin(), virtual_stages.rend(), has_layers);
  const int64_t layers = &first == &last ? 0 : std::min(first.layers, last.layers);
  const auto other = [&](int64_t layer) {
    const int64_t in_first = layer - first.first_layer, in_last = layer - last.first_layer;
    if (in_first >= 0 && in_first < layers) return last.first_layer + in_first;
    return in_last >= 0 && in_last < layers ? first.first_layer + in_last : layer;
  };
  for (const parallel::Shard& shard : shards)
    for (parallel::CanonicalTensor& part : shard.placed->placement.tensors)
      rename_layer(part.name, other);
}

Environment with_swapped_stages() {
  Environment environment;
  environment.place = swap_stages;
  return environment;
}

void doubled_embedding_backward(const kernels::EmbeddingBackwardArgs& args, Stream& stream) {
  kernels::table(stream).embedding_backward(args, stream);
  kernels::EmbeddingBackwardArgs again = args;
  again.dtable.beta = 1;
  kernels::table(stream).embedding_backward(again, stream);
}

void shifted_rope(const kernels::RopeArgs& args, Stream& stream) {
  kernels::RopeArgs shifted = args;
  shifted.interleaved = !args.interleaved;
  kernels::table(stream).rope(shifted, stream);
}

void shifted_cross_entropy(const kernels::CrossEntropyArgs& args, Stream& stream) {
  kernels::CrossEntropyArgs shifted = args;
  shifted.labels = Tensor::empty(stream.scratch(), args.labels.shape(), DType::i32, "labels");
  const std::span<const int32_t> from = args.labels.span<int32_t>();
  const std::span<int32_t> to = shifted.labels.span<int32_t>();
  for (size_t i = 0; i < to.size(); ++i)
    to[i] = std::max(from[(i + 1) % from.size()], 0);  // an unused label may be -100
  kernels::table(stream).cross_entropy(shifted, stream);
}

// Weights blocks equally, whatever the sums of exponentials by which their results were divided.
void unmerged_denominators(const kernels::AttentionMergeArgs& args, Stream& stream) {
  kernels::AttentionMergeArgs equal = args;
  equal.part_lse = args.lse;
  kernels::table(stream).attention_merge(equal, stream);
}

// Gives the early tokens of a divided sequence the positions of the late ones, and the reverse.
void swapped_halves(const kernels::AttentionArgs& args, Stream& stream) {
  kernels::AttentionArgs swapped = args;
  if (const Tensor& positions = args.q_positions; positions.defined()) {
    const int64_t half = positions.size(1) / 2;
    swapped.q_positions =
        Tensor::empty(stream.scratch(), positions.shape(), positions.dtype(), "positions");
    for (const int64_t begin : {int64_t{0}, half})
      kernels::table(stream).copy({.x = positions.slice(1, begin, half),
                                   .out = swapped.q_positions.slice(1, half - begin, half)},
                                  stream);
  }
  kernels::table(stream).attention(swapped, stream);
}

// Uses one segment for all tokens, with as many rows as its sequences would have together.
void capacity_of_all_tokens(const kernels::ExpertRowsArgs& args, Stream& stream) {
  kernels::ExpertRowsArgs all = args;
  if (args.capacity > 0 && !args.padded) {
    all.segment = args.experts.size(0);
    all.capacity = args.capacity * (all.segment / args.segment);
  }
  kernels::table(stream).expert_rows(all, stream);
}

// Tensor-parallel ranks of the rank whose thread this is.
thread_local int tensor_ranks = 1;

class TensorRanks final : public PassingGroup<TensorRanks> {
 public:
  using PassingGroup::PassingGroup;
  void set_name(std::string_view name) override {
    if (name == "tp") tensor_ranks = size();
    PassingGroup::set_name(name);
  }
};

void scale_doubled_by_tp(const kernels::ScaleArgs& args, Stream& stream) {
  kernels::ScaleArgs doubled = args;
  if (tensor_ranks > 1) doubled.factor *= 2;
  kernels::table(stream).scale(doubled, stream);
}

Environment with_scale_doubled_by_tp() {
  Environment environment = with_kernel<&kernels::Table::scale, scale_doubled_by_tp>();
  environment.wrap = [](comm::Group& group) {
    tensor_ranks = 1;
    return std::make_unique<TensorRanks>(group);
  };
  return environment;
}

// The model without its adapter, but in training mode, so that it has dropout. For one stage only.
class DroppingReference final : public training::ReferenceSource {
 public:
  DroppingReference(training::TrainedModel& trained, DType type) : trained_(trained), type_(type) {}

  void fill(const data::Dataset&, std::span<corpus::HostBatch> micro_batches) override {
    const models::Stage& stage = trained_.parts.whole();
    for (corpus::HostBatch& host : micro_batches) {
      corpus::DeviceBatch device(trained_.runtime, type_);
      const nn::Batch& batch = device.fill(host, stage.model(), settings::LossScope::token);
      device.list_labelled(host);
      Tape tape(trained_.runtime, Tape::Mode::infer);
      tape.leave_out_adapters();
      tape.listen(static_cast<SpanListener*>(&trained_.step.data_parallel()));
      const Bundle out = models::forward(stage, tape, {}, batch, models::Phase::train);
      const Tensor values = models::head_objective_values(stage, tape, out, batch).value;
      corpus::set_reference(
          host, training::values_of_sequences(values, host, trained_.ranks.modules().context,
                                              trained_.runtime));
    }
  }

 private:
  training::TrainedModel& trained_;
  DType type_;
};

Environment with_dropping_reference() {
  Environment environment;
  environment.reference = [](training::TrainedModel& trained,
                             DType type) -> std::unique_ptr<training::ReferenceSource> {
    if (trained.ranks.pipeline().stages > 1) return Environment().reference(trained, type);
    return std::make_unique<DroppingReference>(trained, type);
  };
  return environment;
}

// The whole sequences, of which prediction takes tokens and labels, have no documents.
Environment with_joined_documents() {
  Environment environment;
  environment.pairs = [](int, corpus::HostBatch& batch) {
    auto whole = std::make_shared<corpus::HostBatch>(batch);
    whole->segment_starts.clear();
    batch.cut_from = std::move(whole);
  };
  return environment;
}

Environment with_swapped_pairs() {
  Environment environment;
  environment.pairs = [](int samples, corpus::HostBatch& batch) {
    if (samples == 1) swap_preferences(batch);
  };
  return environment;
}

bool divides_matrices(const MatrixRow& row) { return row.layout.tp > 1; }

// Ranks among which gradients are reduced first, and what is sharded is divided.
int shards_of(const MatrixRow& row) { return row.layout.dp * row.layout.cp / row.layout.instances; }

// The same for experts, which may be on several ranks when dense parameters are not.
int shards_of_experts(const MatrixRow& row) {
  const Layout& layout = row.layout;
  if (!row.has_experts()) return 1;
  return layout.tp * layout.cp * layout.dp /
         (layout.ep * (layout.etp == 0 ? layout.tp : layout.etp) * layout.instances);
}
bool is_sharded(const MatrixRow& row) { return shards_of(row) > 1 || shards_of_experts(row) > 1; }

bool ends_on_two_stages(const MatrixRow& row) {
  const parallel::PipelineShape& shape = row.layout.pipeline;
  return shape.stage_of(0) != shape.stage_of(shape.virtual_stages() - 1);
}

bool has_ring(const MatrixRow& row) {
  using enum parallel::ContextExchange;
  return row.layout.cp > 1 && row.layout.exchange != all_gather && row.layout.exchange != a2a;
}
// True if attention gets the positions of its queries: in the ring if there are several documents
// or dropout, which the GPT-2 and the BERT have; with all_gather; and in the T5's cross attention.
bool has_positions(const MatrixRow& row) {
  const bool in_ring = has_ring(row) && (row.model == 1 || row.is_encoder() || row.packed);
  return row.layout.cp > 1 && (in_ring || row.is_encoder_decoder() ||
                               row.layout.exchange == parallel::ContextExchange::all_gather);
}
bool has_ep(const MatrixRow& row) { return row.has_experts() && row.layout.ep > 1; }
// True if no rank sees all tokens of its experts.
bool divides_loads(const MatrixRow& row) {
  const Layout& layout = row.layout;
  return row.has_experts() &&
         (layout.dp * layout.cp > 1 || (layout.etp > 0 && layout.etp < layout.tp));
}
// A rank with whole sequences does not need other ranks' counts.
bool divides_sequences(const MatrixRow& row) {
  const Layout& layout = row.layout;
  const bool by_tensor_ranks = layout.sequence && layout.micro_batch < layout.tp;
  return row.has_experts() && (by_tensor_ranks || layout.cp > 1);
}
// One rank counts over micro-batches of two sequences. If no ranks that share experts have all
// tokens of a sequence, the ranks that divide the sequences of a micro-batch count over these.
bool counts_other_tokens(const MatrixRow& row) {
  const Layout& layout = row.layout;
  const int ranks = layout.ep * (layout.etp == 0 ? layout.tp : layout.etp);
  const bool divided = layout.cp > 1 || (layout.sequence && ranks % layout.tp != 0 &&
                                         layout.micro_batch % layout.tp != 0);
  return row.drops_tokens && (layout.micro_batch != 2 || (!divided && ranks != layout.tp));
}

std::vector<Fault> faults_of_decoders() {
  using parallel::Sharding;
  return {
      {"doubled-gradient",
       "embedding_backward adds its gradient twice",
       true,
       {},
       with_kernel<&kernels::Table::embedding_backward, doubled_embedding_backward>},
      {"shifted-rope-pairing",
       "rope rotates pairs (2i, 2i+1) instead of (i, i + half), and vice versa",
       true,
       {},
       with_kernel<&kernels::Table::rope, shifted_rope>},
      {"off-by-one-label",
       "cross_entropy takes the label of the next token",
       true,
       {},
       with_kernel<&kernels::Table::cross_entropy, shifted_cross_entropy>},
      {"dropped-all-reduce", "the all-reduce of gradients over data-parallel ranks does nothing",
       true,
       [](const MatrixRow& row) {
         return shards_of(row) > 1 && row.layout.sharding == Sharding::none;
       },
       with_group<Changed<unreduced<kGradients>>>},
      {"loss-off-by-log-tp",
       "in the loss every rank's sum of exponentials is counted once per tensor-parallel rank",
       false, [](const MatrixRow& row) { return row.layout.tp > 1 && !row.is_encoder(); },
       with_group<Changed<counted_twice_in_loss>>},
      {"gradient-averaged-twice",
       "the sum of gradients over data-parallel ranks is divided by their number, although the "
       "step divides by the tokens of all ranks",
       true, is_sharded, with_group<Changed<averaged_gradients>>},
      {"stale-parameters", "the gather of sharded parameters does nothing after the first time",
       false,
       [](const MatrixRow& row) {
         return is_sharded(row) && row.layout.sharding != Sharding::none;
       },
       with_group<StaleParameters>},
      {"swapped-stages",
       "the first and the last virtual stage of the pipeline hold each other's layers", false,
       [](const MatrixRow& row) { return row.layout.pipeline.virtual_stages() > 1; },
       with_swapped_stages},
      {"unreduced-norm-gradient",
       "under sequence parallelism the partial gradients of a norm or bias, one per "
       "tensor-parallel rank, are not summed",
       false, [](const MatrixRow& row) { return row.layout.sequence; },
       with_group<Changed<unreduced<kPartial>>>},
      {"tied-gradient-twice", "the last stage's gradient of the tied embedding is added twice",
       false, [](const MatrixRow& row) { return row.is_tied() && ends_on_two_stages(row); },
       with_group<Changed<tied_gradient_twice>>},
      {"own-expert-bias",
       "every rank updates the correction bias of its routers from the load of only its own tokens",
       false, divides_loads, with_group<Changed<unreduced<kStates>>>},
      {"swapped-experts", "tokens of expert 0 go to expert 1, and vice versa", false, has_ep,
       with_group<Changed<swapped_experts>>},
      {"misplaced-expert-results", "every token gets the experts' output of the token before it",
       false, has_ep, with_group<Changed<misplaced_expert_results>>},
      {"expert-load-twice",
       "where ranks divide a sequence, the balance loss counts the choices of its tokens twice",
       false, divides_sequences, with_group<Changed<expert_load_twice>>},
      {"capacity-of-all-tokens",
       "an expert's capacity is counted over the tokens of all ranks that share the experts, "
       "instead of over each sequence",
       false, counts_other_tokens,
       with_kernel<&kernels::Table::expert_rows, capacity_of_all_tokens>},
      {"unmerged-denominators",
       "context-parallel ranks average the results of attention to each block of keys, without "
       "weighting them by their sums of exponentials",
       false, has_ring, with_kernel<&kernels::Table::attention_merge, unmerged_denominators>},
      {"misdirected-half",
       "in the ring of context-parallel ranks the later half of a block of keys and values goes "
       "back to its own rank instead of to the next one",
       false, has_ring, with_group<Changed<misdirected_half>>},
      {"swapped-halves",
       "attention takes the early half of a context-parallel rank's tokens for the late one, and "
       "vice versa",
       false, has_positions, with_kernel<&kernels::Table::attention, swapped_halves>},
      {"samples-counted-by-context-rank",
       "the number of tokens by which a step divides its loss and gradients counts each sample "
       "once per context-parallel rank",
       false, [](const MatrixRow& row) { return row.layout.cp > 1; }, with_group<RepeatedCounts>},
      {"counts-of-own-rank",
       "a step divides its loss and gradients by the number of this rank's own tokens, times the "
       "number of ranks",
       false, [](const MatrixRow& row) { return row.layout.dp * row.layout.cp > 1; },
       with_group<Changed<counts_of_own_rank>>},
      {"adapter-scale-doubled-by-tp",
       "an adapter that tensor-parallel ranks divide has twice its scale", false, divides_matrices,
       with_scale_doubled_by_tp, MatrixTask::adapters},
      {"unreduced-adapter-gradient",
       "the gradients of the matrices A of adapters, of which each tensor-parallel rank has a "
       "part, are not summed",
       false, divides_matrices, with_group<Changed<unreduced<kPartial>>>, MatrixTask::adapters},
      {"reference-with-dropout",
       "the reference model of preferences, which is the model without its adapter, has dropout",
       // Only the GPT-2 has dropout. With several stages the fault is not planted in the row
       // itself, but in the one-rank run with which it is compared.
       false, [](const MatrixRow& row) { return row.model == 1; }, with_dropping_reference,
       MatrixTask::preferences},
      {"prediction-past-documents",
       "multi-token prediction reads and predicts tokens of the next document, across the end of "
       "their own",
       true, nullptr, with_joined_documents},
      {"swapped-preferences",
       "the second of the ranks with samples of their own takes rejected completions for chosen "
       "ones, and vice versa",
       false, [](const MatrixRow& row) { return row.layout.dp > 1; }, with_swapped_pairs,
       MatrixTask::preferences},
  };
}

}  // namespace

const std::vector<Fault>& faults() {
  static const std::vector<Fault> all = [] {
    std::vector<Fault> list = faults_of_decoders();
    for (Fault& fault : faults_of_encoders()) list.push_back(std::move(fault));
    for (Fault& fault : faults_of_state_spaces()) list.push_back(std::move(fault));
    return list;
  }();
  return all;
}

bool comes_to(const Fault& fault, const MatrixRow& row) {
  return row.task == fault.task && fault.in_row(row);
}

std::vector<std::string> fault_names() {
  std::vector<std::string> names;
  for (const Fault& fault : faults()) names.push_back(fault.name);
  return names;
}

const Fault& fault_named(const std::string& name) {
  const auto found = std::ranges::find(faults(), name, &Fault::name);
  if (found != faults().end()) return *found;
  const std::string near = nearest(name, fault_names());
  fail("there is no fault '{}'{}", name,
       near.empty() ? "" : fmt::format("; did you mean '{}'?", near));
}

}  // namespace megatron::selftest
