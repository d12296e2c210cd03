#include "kernels/cuda/attention/cudnn/attention_run.h"

#include <limits>

#include "kernels/cuda/attention/cudnn/attention_graph.h"

namespace megatron::kernels::cuda::cudnn {
namespace {

// Indices of a part's first sample, head and key head.
struct Place {
  int64_t sample, head, key_head;

  void* of_queries(const Tensor& t) const { return at(t, head); }
  void* of_keys(const Tensor& t) const { return at(t, key_head); }
  void* of_rows(const Tensor& lse) const {
    return static_cast<float*>(lse.address()) + sample * lse.stride(0) + head * lse.stride(1);
  }

 private:
  void* at(const Tensor& t, int64_t first_head) const {
    const int64_t offset = sample * t.stride(0) + first_head * t.stride(2);
    return static_cast<std::byte*>(t.address()) + offset * size_of(t.dtype());
  }
};

template <class Run>
void for_parts(const Tensor& q, const Tensor& k, const LibraryAttentionPart& part, const Run& run) {
  const int64_t group = q.size(2) / k.size(2);
  for (int64_t sample = 0; sample < q.size(0); sample += part.samples) {
    for (int64_t head = 0; head < k.size(2); head += part.kv_heads)
      run(Place{.sample = sample, .head = head * group, .key_head = head});
  }
}

// Versions before 9.10 need the lowest finite number, later ones accept -infinity.
float hidden_score() {
  using Limits = std::numeric_limits<float>;
  return cudnnGetVersion() < 91000 ? Limits::lowest() : -Limits::infinity();
}

struct Scalars {
  float scale, hidden = hidden_score(), one = 1;
};

}  // namespace

void run_attention(const Plan& plan, cudnnHandle_t library, const AttentionArgs& args,
                   const LibraryAttentionPart& part, const LibraryAttentionScratch& scratch) {
  Scalars scalars{.scale = static_cast<float>(args.scale)};
  for_parts(args.q, args.k, part, [&](const Place& at) {
    std::map<int64_t, void*> pointers{{kQ, at.of_queries(args.q)},  {kK, at.of_keys(args.k)},
                                      {kV, at.of_keys(args.v)},     {kOut, at.of_queries(args.out)},
                                      {kLse, at.of_rows(args.lse)}, {kScale, &scalars.scale}};
    if (args.causal) pointers[kHidden] = &scalars.hidden;
    plan.run(library, pointers, scratch.workspace.address());
  });
}

void run_attention(const Plan& plan, cudnnHandle_t library, const AttentionBackwardArgs& args,
                   const LibraryAttentionPart& part, const LibraryAttentionScratch& scratch,
                   FunctionRef<void(const Tensor&)> zero) {
  Scalars scalars{.scale = static_cast<float>(args.scale)};
  for_parts(args.q, args.k, part, [&](const Place& at) {
    std::map<int64_t, void*> pointers{
        {kQ, at.of_queries(args.q)},   {kK, at.of_keys(args.k)},
        {kV, at.of_keys(args.v)},      {kOut, at.of_queries(args.out)},
        {kLse, at.of_rows(args.lse)},  {kDout, at.of_queries(args.dout)},
        {kDq, at.of_queries(args.dq)}, {kDk, at.of_keys(args.dk)},
        {kDv, at.of_keys(args.dv)},    {kDelta, scratch.delta.address()},
        {kScale, &scalars.scale},      {kOne, &scalars.one}};
    if (scratch.dq_sums.defined()) {
      zero(scratch.dq_sums);
      pointers[kDqSums] = scratch.dq_sums.address();
    }
    if (args.causal) pointers[kHidden] = &scalars.hidden;
    plan.run(library, pointers, scratch.workspace.address());
  });
}

}  // namespace megatron::kernels::cuda::cudnn
