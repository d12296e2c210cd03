#include "training/cuda_graph_runner.h"

#include <algorithm>

#include "base/error.h"
#include "comm/values.h"
#include "device/cuda_plugin.h"

namespace megatron::training {
namespace {

constexpr Device kHost{DeviceKind::cpu, 0};
constexpr size_t kMostForms = 8;  // a run has two: the first micro-batch of a step, and the others

uint64_t place(const Tensor& tensor) {
  return tensor.defined() ? reinterpret_cast<uintptr_t>(tensor.address()) : 0;
}

}  // namespace

struct CudaGraphRunner::Form {
  // How a micro-batch changes a use of a parameter.
  struct Change {
    bool started = false;  // holds a gradient afterwards
    int micro_batches = 0;
  };
  std::vector<uint64_t> key;
  bool made = false;  // eagerly, once
  std::unique_ptr<RecordedWork> work;
  int64_t number = 0;  // of the recording, the same on all ranks
  std::array<std::vector<Arena::Extent>, kMemoryClasses> memory;
  std::vector<Change> changes;              // of the uses of all parameters, in their order
  std::vector<Parameter*> final_gradients;  // in the order of backward
};

CudaGraphRunner::CudaGraphRunner(std::vector<Parameter*> parameters, Runtime& runtime,
                                 GradientListener& next, int64_t warm_up, comm::Group* ranks,
                                 comm::Group* async)
    : parameters_(std::move(parameters)),
      runtime_(runtime),
      next_(next),
      warm_up_(warm_up),
      ranks_(ranks),
      async_(async),
      host_arena_(Arena::make(kHost, MemoryClass::communication)),
      host_(kHost, runtime.pool(), *host_arena_, {DeviceKind::cpu, 1}) {
  std::erase_if(parameters_, [](const Parameter* p) { return !p->trainable; });
  loss_ = Tensor::empty(runtime.arena(MemoryClass::optimizer), {}, DType::f64, "step.loss");
}

CudaGraphRunner::~CudaGraphRunner() = default;

std::vector<uint64_t> CudaGraphRunner::key_of(const nn::Batch& batch) const {
  std::vector<uint64_t> key = {static_cast<uint64_t>(batch.sequences),
                               static_cast<uint64_t>(batch.length)};
  for (const Tensor* input : {&batch.tokens, &batch.positions, &batch.labels, &batch.loss_weights,
                              &batch.sample_ids, &batch.segment_starts})
    key.push_back(place(*input));
  for (const Parameter* p : parameters_) {
    key.push_back(place(p->value));
    for (const Parameter::Use& use : p->uses) {
      key.push_back(place(use.grad));
      key.push_back(use.started ? 1 : 0);
    }
  }
  return key;
}

CudaGraphRunner::Form& CudaGraphRunner::form_of(const nn::Batch& batch) {
  std::vector<uint64_t> key = key_of(batch);
  for (const std::unique_ptr<Form>& form : forms_)
    if (form->key == key) return *form;
  if (forms_.size() == kMostForms) forms_.erase(forms_.begin());
  forms_.push_back(std::make_unique<Form>());
  forms_.back()->key = std::move(key);
  return *forms_.back();
}

bool CudaGraphRunner::memory_is_free(const Form& form) const {
  for (int i = 0; i < kMemoryClasses; ++i) {
    if (!runtime_.arena(static_cast<MemoryClass>(i)).is_free(form.memory[static_cast<size_t>(i)]))
      return false;
  }
  return true;
}

CudaGraphRunner::Way CudaGraphRunner::begin(const nn::Batch& batch, bool recordable) {
  MG_ASSERT(form_ == nullptr);
  if (runtime_.device().kind != DeviceKind::cuda) return Way::eager;
  if (!recordable) return agreed(Way::eager, 0);
  Form& form = form_of(batch);
  Way way = form.made && steps_ > warm_up_ ? Way::record : Way::eager;
  if (form.work != nullptr && memory_is_free(form)) way = Way::replay;
  way = agreed(way, form.number);
  if (way == Way::replay) {
    replay(form);
    return way;
  }
  form_ = &form;
  if (way == Way::eager) return way;
  form.work.reset();
  form.final_gradients.clear();
  counts_before_.clear();
  for (const Parameter* p : parameters_)
    for (const Parameter::Use& use : p->uses) counts_before_.push_back(use.micro_batches);
  for (int i = 0; i < kMemoryClasses; ++i) runtime_.arena(static_cast<MemoryClass>(i)).note();
  recording_ = cuda_plugin().record(runtime_.stream());
  return way;
}

// The ranks' parts of one recording are launched together, or none is.
CudaGraphRunner::Way CudaGraphRunner::agreed(Way own, int64_t recording) {
  if (ranks_ == nullptr) return own;
  const auto level = static_cast<double>(own), number = static_cast<double>(recording);
  std::array<double, 3> largest = {-level, number, -number};
  comm::largest(*ranks_, host_, largest, "recorded micro-batch");
  const Way least = static_cast<Way>(static_cast<int>(-largest[0]));
  return least == Way::replay && largest[1] != -largest[2] ? Way::record : least;
}

void CudaGraphRunner::end() {
  if (form_ == nullptr) return;
  Form& form = *std::exchange(form_, nullptr);
  form.made = true;
  if (recording_ == nullptr) return;
  form.work = std::exchange(recording_, nullptr)->finish();
  for (int i = 0; i < kMemoryClasses; ++i)
    form.memory[static_cast<size_t>(i)] = runtime_.arena(static_cast<MemoryClass>(i)).noted();
  form.changes.clear();
  for (const Parameter* p : parameters_) {
    for (const Parameter::Use& use : p->uses) {
      const int before = counts_before_[form.changes.size()];
      form.changes.push_back({use.started, use.micro_batches - before});
    }
  }
  form.number = ++counts_.recorded;
  queue(form);
}

void CudaGraphRunner::drop() {
  form_ = nullptr;
  recording_.reset();
}

// What backward does to the parameters on the host.
void CudaGraphRunner::replay(Form& form) {
  size_t i = 0;
  for (Parameter* p : parameters_) {
    for (Parameter::Use& use : p->uses) {
      use.started = form.changes[i].started;
      use.micro_batches += form.changes[i].micro_batches;
      ++i;
    }
  }
  queue(form);
}

void CudaGraphRunner::queue(Form& form) {
  form.work->queue();
  ++counts_.replayed;
  for (comm::Group* group : {ranks_, async_})
    if (group != nullptr) group->queued_again(runtime_.stream(), "recorded micro-batch");
  for (Parameter* p : form.final_gradients) next_.gradient_final(*p, p->micro_batches_final() - 1);
}

void CudaGraphRunner::gradient_begins(Parameter& parameter) {
  MG_ASSERT(recording_ == nullptr);
  next_.gradient_begins(parameter);
}

void CudaGraphRunner::gradient_final(Parameter& parameter, int micro_batch) {
  if (recording_ == nullptr) return next_.gradient_final(parameter, micro_batch);
  form_->final_gradients.push_back(&parameter);
}

}  // namespace megatron::training
