#include "training/whole_on_one.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <map>

#include "base/error.h"
#include "checkpoint/held_tensor.h"

namespace megatron::training {
namespace {

// Fills with the lowest value, so that the maximum over ranks is the value of the ranks that hold
// the element.
template <class T>
void fill_lowest(const Tensor& t) {
  if constexpr (sizeof(T) == 2) {
    std::ranges::fill(t.span<T>(), T(-std::numeric_limits<float>::infinity()));
  } else {
    std::ranges::fill(t.span<T>(), -std::numeric_limits<T>::infinity());
  }
}

void fill_lowest(const Tensor& t) {
  switch (t.dtype()) {
    case DType::f64: return fill_lowest<double>(t);
    case DType::f32: return fill_lowest<float>(t);
    case DType::bf16: return fill_lowest<bf16>(t);
    case DType::f16: return fill_lowest<f16>(t);
    default: MG_ASSERT(false);
  }
}

// Elements [begin, begin + value.elements()) of a parameter.
struct Piece {
  const parallel::ParameterSpec* placed = nullptr;
  int64_t begin = 0;
  Tensor value;
};
using Pieces = std::map<std::string, std::vector<Piece>>;  // by canonical tensor

Pieces pieces_of(std::span<const parallel::Shard> shards) {
  Pieces pieces;
  for (const parallel::Shard& shard : shards)
    for (const parallel::CanonicalTensor& part : shard.placed->placement.tensors)
      if (shard.size() > 0) pieces[part.name].push_back({shard.placed, shard.begin, shard.value});
  return pieces;
}

Pieces pieces_of(std::span<parallel::ParameterSpec* const> parameters) {
  Pieces pieces;
  for (const parallel::ParameterSpec* placed : parameters)
    for (const parallel::CanonicalTensor& part : placed->placement.tensors)
      pieces[part.name].push_back({placed, 0, placed->parameter.value});
  return pieces;
}

// Copies a piece into its place in a canonical tensor on the host or, if `back`, from there into
// the piece.
void copy_runs(const Piece& piece, const std::string& name, const Tensor& canonical, bool back) {
  const int64_t size = size_of(canonical.dtype());
  const Tensor value = on_host(piece.value);
  auto* const whole = static_cast<std::byte*>(canonical.raw());
  auto* const mine = static_cast<std::byte*>(value.raw());
  const int64_t end = piece.begin + piece.value.elements();
  parallel::for_each_run(*piece.placed, [&](const parallel::CanonicalTensor& part, int64_t there,
                                            int64_t local, int64_t count) {
    const int64_t first = std::max(local, piece.begin), last = std::min(local + count, end);
    if (part.name != name || first >= last) return;
    std::byte* const a = whole + (there + first - local) * size;
    std::byte* const b = mine + (first - piece.begin) * size;
    std::memcpy(back ? b : a, back ? a : b, static_cast<size_t>((last - first) * size));
  });
  if (back && !value.same_storage(piece.value)) copy_bytes_from(piece.value, bytes_of(value));
}

// Returns the whole model on rank 0, and null on others.
std::unique_ptr<models::Stage> gathered(const TrainedModel& trained, const models::Model& model,
                                        DType type, comm::Group& world) {
  Runtime& runtime = trained.runtime;
  Runtime shapes_only({DeviceKind::meta, 0}, 1);
  const auto undivided = model.build(shapes_only, type, 0);
  std::unique_ptr<models::Stage> whole;
  if (world.rank() == 0) {
    whole = model.build(runtime, type, 0);
  }
  Pieces held = pieces_of(trained.shards()), wanted;
  for (nn::ModuleState* state : trained.step.states())
    held.merge(pieces_of(std::array{&state->placed}));
  if (whole != nullptr) wanted = pieces_of(models::tensors_of(*whole));
  const bool has_data = runtime.device().has_data();
  runtime.stream().synchronize();
  for (const checkpoint::WholeTensor& tensor :
       checkpoint::whole_tensors(models::tensors_of(*undivided))) {
    const Tensor canonical =
        Tensor::empty(runtime.arena(MemoryClass::activations), {tensor.shape.elements()},
                      tensor.dtype, "samples.tensor");
    const Tensor here = on_host(canonical, false);  // `canonical` itself unless it is on a GPU
    const bool apart = !here.same_storage(canonical);
    if (has_data) {
      fill_lowest(here);
      for (const Piece& piece : held[tensor.name]) copy_runs(piece, tensor.name, here, false);
      if (apart) copy_bytes_from(canonical, bytes_of(here));
    }
    world.all_reduce(canonical, comm::Reduce::max, runtime.stream(), "samples.tensor")
        .wait(runtime.stream());
    runtime.stream().synchronize();
    if (!has_data) continue;
    const Tensor summed = on_host(canonical);
    for (const Piece& piece : wanted[tensor.name]) copy_runs(piece, tensor.name, summed, true);
  }
  return whole;
}

}  // namespace

void on_first_rank(TrainedModel& trained, const models::Model& model, DType type,
                   comm::Group& world, const std::function<void(const models::Stage& whole)>& use) {
  if (trained.ranks.tensor().size() == 1 && trained.ranks.pipeline().stages == 1 &&
      trained.ranks.pipeline().chunks == 1) {
    trained.step.data_parallel().gather_all();
    const models::HighPrecision plain(trained.parts.chunks());
    if (world.rank() == 0) use(trained.parts.whole());
    return;
  }
  const auto whole = gathered(trained, model, type, world);
  if (whole != nullptr) use(*whole);
}

}  // namespace megatron::training
