#include "parallel/gradient_buffer.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/table.h"

namespace megatron::parallel {

namespace {

constexpr int64_t kAlignment = 64;  // bytes

}  // namespace

GradientBuffer::GradientBuffer(std::vector<Parameter*> parameters, comm::Group& group,
                               Runtime& runtime, GradientBufferOptions options)
    : group_(group), runtime_(runtime) {
  MG_CHECK(options.bucket_bytes >= 1,
           "the bucket size of gradients is {} bytes; it must be at least 1", options.bucket_bytes);
  for (auto p = parameters.rbegin(); p != parameters.rend(); ++p) {
    if ((*p)->trainable) parameters_.push_back(*p);
  }
  const DType type =
      parameters_.empty() ? DType::f32 : kernels::accumulator(parameters_[0]->value.dtype());
  const int64_t unit = kAlignment / size_of(type);

  std::vector<int64_t> begins;
  int64_t end = 0;
  for (Parameter* p : parameters_) {
    MG_ASSERT(kernels::accumulator(p->value.dtype()) == type && !p->uses.empty());
    if (buckets_.empty() || (end - buckets_.back().begin) * size_of(type) >= options.bucket_bytes) {
      buckets_.push_back({.begin = end, .end = end, .parameters = {}});
    }
    begins.push_back(end);
    end += (p->value.elements() + unit - 1) / unit * unit;
    buckets_.back().end = end;
    buckets_.back().parameters.push_back(p);
    const bool is_new = bucket_of_.emplace(p, buckets_.size() - 1).second;
    MG_ASSERT(is_new);
  }

  Arena& arena = runtime_.arena(MemoryClass::gradients);
  buffer_ = Tensor::empty(arena, {end}, type, "gradients");
  kernels::table(runtime_.stream()).fill({buffer_, 0}, runtime_.stream());
  for (size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& p = *parameters_[i];
    p.uses[0].grad = buffer_.slice(0, begins[i], p.value.elements()).view(p.value.shape());
    for (size_t u = 1; u < p.uses.size(); ++u) {
      p.uses[u].grad = Tensor::empty(arena, p.value.shape(), type,
                                     fmt::format("gradient of use {} of {}", u, p.name));
    }
  }
}

void GradientBuffer::begin_step(int micro_batches) {
  MG_ASSERT(micro_batches >= 1 && pending_.empty());
  micro_batches_ = micro_batches;
  for (Parameter* p : parameters_) {
    for (Parameter::Use& use : p->uses) {
      use.started = false;
      use.micro_batches = 0;
    }
  }
  for (Bucket& bucket : buckets_) {
    bucket.final_parameters = 0;
    bucket.reduced = false;
  }
}

void GradientBuffer::gradient_final(Parameter& parameter, int micro_batch) {
  if (micro_batch != micro_batches_ - 1) return;
  const auto found = bucket_of_.find(&parameter);
  if (found == bucket_of_.end()) return;
  ++buckets_[found->second].final_parameters;
  // In the order of the buffer only, which is the same on every rank.
  for (Bucket& bucket : buckets_) {
    if (bucket.reduced) continue;
    if (bucket.final_parameters < static_cast<int>(bucket.parameters.size())) break;
    reduce(bucket);
  }
}

void GradientBuffer::finish() {
  for (Bucket& bucket : buckets_) {
    if (!bucket.reduced) reduce(bucket);
  }
  for (const comm::Work& work : pending_) work.wait(runtime_.stream());
  pending_.clear();
}

void GradientBuffer::complete(Parameter& parameter) {
  Stream& stream = runtime_.stream();
  const kernels::Table& kernels = kernels::table(stream);
  Parameter::Use& first = parameter.uses[0];
  if (!first.started) kernels.fill({first.grad, 0}, stream);
  for (size_t u = 1; u < parameter.uses.size(); ++u) {
    const Parameter::Use& use = parameter.uses[u];
    if (use.started) kernels.add({first.grad, use.grad, first.grad}, stream);
  }
}

void GradientBuffer::reduce(Bucket& bucket) {
  MG_ASSERT(!bucket.reduced);
  for (Parameter* p : bucket.parameters) complete(*p);
  bucket.reduced = true;
  const auto index = &bucket - buckets_.data();
  pending_.push_back(group_.all_reduce(buffer_.slice(0, bucket.begin, bucket.end - bucket.begin),
                                       comm::Reduce::sum, runtime_.stream(),
                                       fmt::format("gradients, bucket {}", index)));
}

}  // namespace megatron::parallel
