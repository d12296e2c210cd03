#include "kernels/cuda/attention/library_attention.h"

#include <array>
#include <map>
#include <memory>

#include "base/error.h"
#include "base/log.h"
#include "device/cuda/out_of_memory.h"
#include "device/cuda/stream.h"
#include "kernels/cuda/attention/cudnn/attention_graph.h"
#include "kernels/cuda/attention/cudnn/attention_run.h"
#include "kernels/cuda/attention/cudnn_library.h"
#include "kernels/cuda/kernels.h"

namespace megatron::kernels::cuda {
namespace {

using cudnn::AttentionShape;
using cudnn::Plan;

// Warns that this program's own kernels compute a training call, with cuDNN's last error.
void tell_of_no_plan(const AttentionShape& s, const char* pass, const std::string& why) {
  log::warning(
      "cuDNN {} does not support {} of attention in {} with {} heads of {} over {} and {} tokens "
      "({}); this program's own, slower kernels are used",
      cudnnGetVersion(), pass, s.type == CUDNN_DATA_BFLOAT16 ? "bf16" : "fp16", s.heads, s.width,
      s.queries, s.keys, why.empty() ? "no plan fits in the scratch memory" : why);
}

std::string last_words() {
  std::array<char, 512> words{};
  cudnnGetLastErrorString(words.data(), words.size());
  return words.data();
}

// cuDNN and its plans, kept for a stream.
class AttentionPlans {
 public:
  static AttentionPlans& of(Stream& stream) {
    static constexpr char kKey = 0;
    megatron::cuda::CudaStream& cuda = megatron::cuda::cuda_stream(stream);
    const cudaStream_t handle = cuda.handle();
    std::shared_ptr<void>& state = cuda.state(&kKey);
    if (state == nullptr) state = std::make_shared<AttentionPlans>(handle);
    return *static_cast<AttentionPlans*>(state.get());
  }

  explicit AttentionPlans(cudaStream_t stream) {
    cudnnHandle_t made = nullptr;
    cudnn::check(cudnnCreate(&made), "cudnnCreate");
    library_.reset(made);
    cudnn::check(cudnnSetStream(made, stream), "cudnnSetStream");
  }

  cudnnHandle_t library() const { return library_.get(); }

  // Returns null if cuDNN has no plan.
  const Plan* forward(const AttentionShape& shape, const LibraryAttentionPart& part) {
    return find(forward_, "forward", shape, cudnn::attention_graph,
                {.least = 0, .most = part.workspace});
  }
  const Plan* backward(const AttentionShape& shape, const LibraryAttentionPart& part,
                       bool any_order) {
    if (any_order)
      return find(backward_in_any_order_, "backward in any order", shape,
                  cudnn::attention_backward_graph_in_any_order,
                  {.least = 0, .most = part.workspace, .any_order = true});
    return find(backward_, "backward", shape, cudnn::attention_backward_graph,
                {.least = part.ordered, .most = part.workspace});
  }

 private:
  using Known = std::map<AttentionShape, std::unique_ptr<Plan>>;

  template <class MakeGraph>
  const Plan* find(Known& known, const char* pass, const AttentionShape& shape,
                   const MakeGraph& graph, const cudnn::Limits& limits) {
    const auto found = known.find(shape);
    if (found != known.end()) return found->second.get();
    std::unique_ptr<Plan> plan;
    try {
      plan = Plan::make(graph(shape), {.library = library(), .device = nullptr}, limits);
      if (plan == nullptr) tell_of_no_plan(shape, pass, last_words());
    } catch (const megatron::cuda::OutOfMemory&) {
      throw;
    } catch (const Error& error) {  // a graph that this cuDNN version or device does not support
      tell_of_no_plan(shape, pass, error.what());
    }
    return known.emplace(shape, std::move(plan)).first->second.get();
  }

  struct Destroy {
    void operator()(cudnnHandle_t library) const { cudnnDestroy(library); }
  };
  std::unique_ptr<std::remove_pointer_t<cudnnHandle_t>, Destroy> library_;
  Known forward_, backward_, backward_in_any_order_;
};

}  // namespace

bool library_attention(const AttentionArgs& args, Stream& stream) {
  if (!library_takes(args) || !has_cudnn()) return false;
  const LibraryAttentionPart part = library_part(args);
  AttentionPlans& plans = AttentionPlans::of(stream);
  const Plan* const plan = plans.forward(cudnn::shape_of(args, part), part);
  if (plan == nullptr) return false;
  const LibraryAttentionScratch scratch = library_attention_scratch(args, stream);
  cudnn::run_attention(*plan, plans.library(), args, part, scratch);
  return true;
}

bool library_attention_backward(const AttentionBackwardArgs& args, Stream& stream) {
  const bool any_order = stream.nondeterministic();
  if (!library_takes(args, any_order) || !has_cudnn()) return false;
  const LibraryAttentionPart part = library_part(args, stream.attention_workspace(), any_order);
  AttentionPlans& plans = AttentionPlans::of(stream);
  const Plan* const plan = plans.backward(cudnn::shape_of(args, part), part, any_order);
  if (plan == nullptr) return false;
  const LibraryAttentionScratch scratch = library_attention_scratch(args, stream);
  cudnn::run_attention(*plan, plans.library(), args, part, scratch,
                       [&](const Tensor& sums) { fill({.out = sums, .value = 0}, stream); });
  return true;
}

}  // namespace megatron::kernels::cuda
