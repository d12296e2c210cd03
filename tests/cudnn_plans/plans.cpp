// cudnn_plans DEVICE.json [all]: compiles cuDNN's plans of attention, forward and backward, for the
// shapes of models that are trained, on a machine without a GPU (DEVICE.json describes one).
// Backward is compiled deterministic and in any order (--allow-nondeterministic), in parts of both
// sizes that a run chooses from (--attention-workspace-mib). Fails if there is no plan, or no
// deterministic one, within the scratch memory that a run plans for it, or if the plan in any order
// keeps the gradients of all scores like the deterministic one.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>

#include "device/cuda/libraries.h"
#include "kernels/cuda/attention/cudnn/attention_graph.h"
#include "kernels/cuda/attention/cudnn/plan.h"

namespace megatron::kernels::cuda {
namespace {

struct Model {
  const char* name;
  int64_t heads, kv_heads, width;
};
constexpr Model kGpt124M{"GPT-2 124M", 12, 12, 64}, kGpt1558M{"GPT-2 1558M", 25, 25, 64};
constexpr Model kLlama1B{"Llama 1B", 32, 8, 64}, kLlama3B{"Llama 3B", 24, 8, 128};
constexpr Model kLlama8B{"Llama 8B", 32, 8, 128};

struct Shape {
  Model model;
  int64_t length;
  DType type;
};

std::vector<Shape> shapes(bool all) {
  if (!all) {
    return {{kGpt124M, 1024, DType::bf16},
            {kGpt1558M, 1024, DType::f16},
            {kLlama1B, 8192, DType::bf16},
            {kLlama8B, 4096, DType::bf16}};
  }
  std::vector<Shape> list;
  for (const Model& model : {kGpt124M, kGpt1558M, kLlama1B, kLlama3B, kLlama8B}) {
    for (const int64_t length : {1024, 4096, 8192}) {
      for (const DType type : {DType::bf16, DType::f16}) list.push_back({model, length, type});
    }
  }
  return list;
}

// As in the models: q, k and v are parts of one product's result, and so are their gradients.
AttentionBackwardArgs call(const Shape& shape, Runtime& runtime) {
  const auto& [name, heads, kv_heads, width] = shape.model;
  Arena& arena = runtime.arena(MemoryClass::activations);
  const int64_t samples = std::max<int64_t>(1, 4096 / shape.length);
  const auto tensor = [&](int64_t count) {
    return Tensor::empty(arena, {samples, shape.length, count, width}, shape.type, "attention");
  };
  const Tensor qkv = tensor(heads + 2 * kv_heads), gradients = tensor(heads + 2 * kv_heads);
  AttentionBackwardArgs args;
  args.q = qkv.slice(2, 0, heads);
  args.k = qkv.slice(2, heads, kv_heads);
  args.v = qkv.slice(2, heads + kv_heads, kv_heads);
  args.out = tensor(heads);
  args.dout = tensor(heads);
  args.lse = Tensor::empty(arena, {samples, heads, shape.length}, DType::f32, "lse");
  args.dq = gradients.slice(2, 0, heads);
  args.dk = gradients.slice(2, heads, kv_heads);
  args.dv = gradients.slice(2, heads + kv_heads, kv_heads);
  return args;
}

class Compiler {
 public:
  explicit Compiler(const std::string& description) : device_(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR) {
    device_.set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                static_cast<int64_t>(description.size()), description.data());
    device_.finalize();
  }

  bool compiles(const Shape& shape, const AttentionArgs& args) {
    if (!library_takes(args)) return tell(name_of(shape, "forward"), "is not taken");
    const LibraryAttentionPart part = library_part(args);
    return compiles(name_of(shape, "forward"), cudnn::attention_graph(cudnn::shape_of(args, part)),
                    part, false);
  }
  bool compiles(const Shape& shape, const AttentionBackwardArgs& args,
                const LibraryAttentionPart& part, bool any_order) {
    const std::string name = name_of(shape, any_order ? "backward nondeterministic" : "backward");
    if (!library_takes(args, any_order)) return tell(name, "is not taken");
    const auto graph =
        any_order ? cudnn::attention_backward_graph_in_any_order : cudnn::attention_backward_graph;
    return compiles(name, graph(cudnn::shape_of(args, part)), part, any_order);
  }

 private:
  static std::string name_of(const Shape& shape, const char* pass) {
    return fmt::format("{} length {} {} {}", shape.model.name, shape.length,
                       megatron::name(shape.type), pass);
  }

  bool compiles(const std::string& name, std::unique_ptr<cudnn::Graph> graph,
                const LibraryAttentionPart& part, bool any_order) {
    const auto begin = std::chrono::steady_clock::now();
    const auto plan =
        cudnn::Plan::make(std::move(graph), {.library = nullptr, .device = &device_},
                          {.least = part.ordered, .most = part.workspace, .any_order = any_order});
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    if (plan == nullptr) return tell(name, "has no plan within its scratch memory");
    fmt::print("{}: {} samples and {} key heads at a time, {} of {} bytes, {:.1f} s\n", name,
               part.samples, part.kv_heads, plan->workspace(), part.workspace, seconds.count());
    std::fflush(stdout);
    return true;
  }

  static bool tell(const std::string& name, const char* what) {
    fmt::print("{} {}\n", name, what);
    return false;
  }

  cudnn::Descriptor device_;
};

int run(const std::string& description, bool all) {
  using megatron::cuda::NvidiaLibrary;
  for (const NvidiaLibrary library : {NvidiaLibrary::cudnn, NvidiaLibrary::nvrtc}) {
    const CudaLibrary& found = megatron::cuda::opened(library);
    fmt::print("{} {}: {}{}\n", found.name, found.version, found.path, found.why_not);
    if (!found.why_not.empty()) return 1;
  }
  Compiler compiler(description);
  Runtime runtime({DeviceKind::meta}, 1);
  int plans = 0, failures = 0;
  for (const Shape& shape : shapes(all)) {
    const AttentionBackwardArgs backward = call(shape, runtime);
    AttentionArgs forward;
    forward.q = backward.q;
    forward.k = backward.k;
    forward.v = backward.v;
    forward.out = backward.out;
    forward.lse = backward.lse;
    if (!compiler.compiles(shape, forward)) ++failures;
    ++plans;
    for (const bool any_order : {false, true}) {
      std::optional<int64_t> heads;  // heads of a part of the smaller size
      for (const int64_t most : {int64_t{768} << 20, int64_t{1280} << 20}) {
        const LibraryAttentionPart part = library_part(backward, most, any_order);
        if (heads == part.samples * part.kv_heads) continue;
        heads = part.samples * part.kv_heads;
        ++plans;
        if (!compiler.compiles(shape, backward, part, any_order)) ++failures;
      }
    }
  }
  fmt::print("{} of {} plans failed\n", failures, plans);
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace megatron::kernels::cuda

int main(int count, char** arguments) try {
  if (count < 2) {
    fmt::print("usage: cudnn_plans DEVICE.json [all]\n");
    return 2;
  }
  std::ifstream file(arguments[1]);
  const std::string description(std::istreambuf_iterator<char>(file), {});
  return megatron::kernels::cuda::run(description,
                                      count > 2 && std::strcmp(arguments[2], "all") == 0);
} catch (const std::exception& error) {
  fmt::print("{}\n", error.what());
  return 1;
}
