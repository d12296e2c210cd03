#include "training/cuda_graph_runner.h"

#include <algorithm>

#include "base/error.h"
#include "comm/values.h"

namespace megatron::training {
namespace {

constexpr Device kHost{DeviceKind::cpu, 0};
// A run needs two forms per chunk: one for the first micro-batch of a step, one for the others.
constexpr size_t kMaxForms = 64;

uint64_t place(const Tensor& tensor) {
  return tensor.defined() ? reinterpret_cast<uintptr_t>(tensor.address()) : 0;
}

std::vector<Parameter::Use*> uses_of(const std::vector<Parameter*>& parameters) {
  std::vector<Parameter::Use*> uses;
  for (Parameter* p : parameters)
    for (Parameter::Use& use : p->uses) uses.push_back(&use);
  return uses;
}

}  // namespace

// Host-side state of a parameter's use.
struct CudaGraphRunner::UseState {
  bool started = false;  // holds a gradient
  int micro_batches = 0;
  bool operator==(const UseState&) const = default;
};

struct CudaGraphRunner::Part {
  std::optional<RecordedPart> work;
  std::vector<UseState> before, after;      // one entry per use of each parameter
  std::vector<Parameter*> final_gradients;  // in the order in which backward completes them
};

struct CudaGraphRunner::Form {
  std::vector<uint64_t> key;
  bool made = false;        // has run eagerly at least once
  std::vector<Part> parts;  // of the captured micro-batch
  bool whole = false;       // all parts have been captured
  int64_t number = 0;       // number of the capture, equal on all ranks
};

CudaGraphRunner::CudaGraphRunner(std::vector<Parameter*> parameters, Runtime& runtime,
                                 GradientListener& next, int64_t warm_up,
                                 std::vector<comm::Group*> ranks, std::vector<comm::Group*> async)
    : parameters_(std::move(parameters)),
      runtime_(runtime),
      next_(next),
      warm_up_(warm_up),
      ranks_(std::move(ranks)),
      async_(std::move(async)),
      host_arena_(Arena::make(kHost, MemoryClass::communication)),
      host_(kHost, runtime.pool(), *host_arena_, {DeviceKind::cpu, 1}) {
  std::ranges::copy_if(parameters_, std::back_inserter(quantized_),
                       [](const Parameter* p) { return p->low_precision.has_value(); });
  std::erase_if(parameters_, [](const Parameter* p) { return !p->trainable; });
}

CudaGraphRunner::~CudaGraphRunner() = default;

std::vector<CudaGraphRunner::UseState> CudaGraphRunner::use_states() const {
  std::vector<UseState> states;
  for (const Parameter::Use* use : uses_of(parameters_))
    states.push_back({use->started, use->micro_batches});
  return states;
}

void CudaGraphRunner::add_places(const nn::Batch& batch, std::vector<uint64_t>& key) {
  for (const int64_t number : {batch.layout.sequences, batch.layout.length, batch.text_length()})
    key.push_back(static_cast<uint64_t>(number));
  for (const Tensor* t : {&batch.tokens,
                          &batch.positions,
                          &batch.token_types,
                          &batch.embedding_factors,
                          &batch.labels,
                          &batch.loss_weights,
                          &batch.sample_ids,
                          &batch.segment_starts,
                          &batch.segment_ends,
                          &batch.encoder_starts,
                          &batch.encoder_ends,
                          &batch.real.rows,
                          &batch.source_weights,
                          &batch.context_tokens.rank_indices,
                          &batch.context_tokens.all_indices,
                          &batch.context_tokens.part_rows,
                          &batch.context_tokens.whole_rows,
                          &batch.context_tokens.all_segment_starts,
                          &batch.context_tokens.all_segment_ends,
                          &batch.context_tokens.run_starts,
                          &batch.context_tokens.extended_starts,
                          &batch.context_tokens.inner.part_rows,
                          &batch.context_tokens.inner.whole_rows,
                          &batch.context_tokens.inner.all_segment_starts,
                          &batch.context_tokens.inner.all_segment_ends,
                          &batch.context_tokens.ring.rank_indices,
                          &batch.context_tokens.ring.run_starts,
                          &batch.context_tokens.ring.extended_starts})
    key.push_back(place(*t));
  if (batch.encoder != nullptr) add_places(*batch.encoder, key);
}

std::vector<uint64_t> CudaGraphRunner::key_of(const nn::Batch& batch,
                                              std::span<const Tensor> others,
                                              const Work& work) const {
  std::vector<uint64_t> key = {static_cast<uint64_t>(work.chunk), work.first ? 1U : 0U};
  add_places(batch, key);
  for (const Tensor& t : others) key.push_back(place(t));
  for (const Parameter* p : parameters_) {
    key.push_back(place(p->value));
    for (const Parameter::Use& use : p->uses) key.push_back(place(use.grad));
  }
  for (const Parameter* p : quantized_) key.push_back(p->low_precision->active ? 1 : 0);
  return key;
}

CudaGraphRunner::Form& CudaGraphRunner::form_of(std::vector<uint64_t> key) {
  for (const std::unique_ptr<Form>& form : forms_)
    if (form->key == key) return *form;
  if (forms_.size() == kMaxForms) forms_.erase(forms_.begin());
  forms_.push_back(std::make_unique<Form>());
  forms_.back()->key = std::move(key);
  return *forms_.back();
}

bool CudaGraphRunner::may_replay(const Form& form) const {
  return form.whole && std::ranges::all_of(form.parts, [](const Part& part) {
           return part.work->memory_is_free();
         });
}

CudaGraphRunner::Way CudaGraphRunner::begin(const nn::Batch& batch, std::span<const Tensor> others,
                                            const Work& work, bool recordable) {
  MG_ASSERT(form_ == nullptr);
  way_ = Way::eager;
  if (runtime_.device().kind != DeviceKind::cuda) return way_;
  if (!recordable) return way_ = agreed(Way::eager, 0);
  Form& form = form_of(key_of(batch, others, work));
  Way way = form.made && steps_ > warm_up_ ? Way::record : Way::eager;
  if (may_replay(form)) way = Way::replay;
  way_ = agreed(way, form.number);
  form_ = &form;
  part_ = 0;
  if (way_ == Way::record) {
    form.whole = false;
    form.parts.clear();
  }
  begin_part();
  return way_;
}

void CudaGraphRunner::begin_part() {
  if (way_ == Way::replay) return replay(form_->parts[part_]);
  if (way_ == Way::eager) return;
  form_->parts.push_back({.before = use_states()});
  recording_.emplace(runtime_);
}

void CudaGraphRunner::end_part() {
  if (way_ != Way::record) return;
  Part& part = form_->parts.back();
  part.work = recording_->finish();
  recording_.reset();
  part.after = use_states();
  queue(part);
}

void CudaGraphRunner::pause() {
  if (form_ != nullptr) end_part();
}

void CudaGraphRunner::resume() {
  if (form_ == nullptr) return;
  ++part_;
  begin_part();
}

void CudaGraphRunner::end() {
  if (form_ == nullptr) return;
  end_part();
  Form& form = *std::exchange(form_, nullptr);
  form.made = true;
  if (way_ == Way::eager) return;
  ++counts_.replayed;
  if (way_ == Way::replay) return;
  form.whole = true;
  form.number = ++counts_.recorded;
}

void CudaGraphRunner::drop() {
  form_ = nullptr;
  recording_.reset();
}

// The ranks' parts of one captured graph are launched together or not at all.
CudaGraphRunner::Way CudaGraphRunner::agreed(Way own, int64_t recording) {
  if (ranks_.empty()) return own;
  const auto level = static_cast<double>(own), number = static_cast<double>(recording);
  std::array<double, 3> largest = {-level, number, -number};
  for (comm::Group* group : ranks_) comm::largest(*group, host_, largest, "recorded micro-batch");
  const Way least = static_cast<Way>(static_cast<int>(-largest[0]));
  return least == Way::replay && largest[1] != -largest[2] ? Way::record : least;
}

// Repeats the work's effects on host-side state for the parameters whose gradients it computes.
void CudaGraphRunner::replay(Part& part) {
  const std::vector<Parameter::Use*> uses = uses_of(parameters_);
  for (size_t i = 0; i < uses.size(); ++i) {
    const UseState &before = part.before[i], &after = part.after[i];
    if (before == after) continue;
    MG_ASSERT(uses[i]->started == before.started);
    uses[i]->started = after.started;
    uses[i]->micro_batches += after.micro_batches - before.micro_batches;
  }
  queue(part);
}

void CudaGraphRunner::queue(Part& part) {
  part.work->queue();
  for (const auto* groups : {&ranks_, &async_})
    for (comm::Group* group : *groups)
      group->queued_again(runtime_.stream(), "recorded micro-batch");
  for (Parameter* p : part.final_gradients) next_.gradient_final(*p, p->micro_batches_final() - 1);
}

void CudaGraphRunner::gradient_begins(Parameter& parameter) {
  MG_ASSERT(!recording_);
  next_.gradient_begins(parameter);
}

void CudaGraphRunner::gradient_final(Parameter& parameter, int micro_batch) {
  if (!recording_) return next_.gradient_final(parameter, micro_batch);
  form_->parts.back().final_gradients.push_back(&parameter);
}

}  // namespace megatron::training
