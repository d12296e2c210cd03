#include "kernels/cuda/attention/cudnn/plan.h"

#include <algorithm>
#include <array>

namespace megatron::kernels::cuda::cudnn {
namespace {

std::vector<cudnnBackendDescriptor_t> handles(const std::deque<Descriptor>& descriptors) {
  std::vector<cudnnBackendDescriptor_t> list;
  for (const Descriptor& descriptor : descriptors) list.push_back(descriptor.get());
  return list;
}

bool deterministic(const Descriptor& choice) {
  const Descriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  cudnnBackendDescriptor_t handle = engine.get();
  choice.get(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &handle);
  std::array<cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_TYPE_COUNT> notes{};
  const int64_t count = engine.get(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                   CUDNN_NUMERICAL_NOTE_TYPE_COUNT, notes.data());
  return std::find(notes.begin(), notes.begin() + count, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) ==
         notes.begin() + count;
}

}  // namespace

Plan::Plan(std::unique_ptr<Graph> graph, const Target& target)
    : graph_(std::move(graph)),
      operations_(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR),
      compiled_(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) {
  const std::vector<cudnnBackendDescriptor_t> list = handles(graph_->operations());
  operations_.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                  static_cast<int64_t>(list.size()), list.data());
  if (target.library != nullptr) operations_.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, target.library);
  operations_.finalize();
}

std::vector<Descriptor> Plan::choices([[maybe_unused]] const Target& target) const {
  Descriptor heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, operations_)
      .set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
#if CUDNN_VERSION >= 90800
  if (target.device != nullptr) heuristics.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, *target.device);
#endif
  std::vector<Descriptor> found;
  if (heuristics.try_finalize() != CUDNN_STATUS_SUCCESS) return found;
  const int64_t most =
      heuristics.get(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, nullptr);
  std::vector<cudnnBackendDescriptor_t> list;
  for (int64_t i = 0; i < most; ++i)
    list.push_back(found.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR).get());
  const int64_t count = heuristics.get(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                       most, list.data());
  found.erase(found.begin() + std::min(most, count), found.end());
  return found;
}

std::unique_ptr<Plan> Plan::make(std::unique_ptr<Graph> graph, const Target& target,
                                 const Limits& limits) {
  std::unique_ptr<Plan> plan(new Plan(std::move(graph), target));
  for (const Descriptor& choice : plan->choices(target)) {
    if (!limits.any_order && !deterministic(choice)) continue;
    Descriptor compiled(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    compiled.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, choice);
    if (target.library != nullptr) compiled.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, target.library);
#if CUDNN_VERSION >= 90800
    if (target.device != nullptr)
      compiled.set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, *target.device);
#endif
    const cudnnStatus_t made = compiled.try_finalize();
    // A lack of memory is an error: the free memory must not decide which plan computes a run.
    if (lacks_memory(made)) check(made, "cudnnBackendFinalize of a plan of attention");
    if (made != CUDNN_STATUS_SUCCESS) continue;
    const int64_t workspace = compiled.get_int64(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
    if (workspace < limits.least || workspace > limits.most) continue;
    plan->workspace_ = workspace;
    plan->compiled_ = std::move(compiled);
    return plan;
  }
  return nullptr;
}

void Plan::run(cudnnHandle_t library, const std::map<int64_t, void*>& pointers,
               void* workspace) const {
  std::vector<int64_t> ids;
  std::vector<void*> addresses;
  for (const auto& [id, address] : pointers) {
    ids.push_back(id);
    addresses.push_back(address);
  }
  Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, std::span<const int64_t>(ids))
      .set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, std::span<void* const>(addresses))
      .set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, std::span<void* const>(&workspace, 1))
      .finalize();
  check(cudnnBackendExecute(library, compiled_.get(), pack.get()), "cudnnBackendExecute");
}

}  // namespace megatron::kernels::cuda::cudnn
