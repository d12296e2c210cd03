// Updates whose state is in host memory.
#include <algorithm>

#include "base/error.h"
#include "kernels/table.h"
#include "optim/optimizer.h"

namespace megatron::optim {
namespace {

constexpr int64_t kPiece = int64_t{1} << 20;  // elements

// Device copy of a piece of state for one update.
class Visit {
 public:
  Visit(const Tensor& host, Runtime& runtime)
      : host_(host),
        device_(Tensor::empty(runtime.arena(MemoryClass::optimizer), host.shape(), host.dtype(),
                              "offload.piece")),
        runtime_(runtime) {
    copy(host_, device_);
  }
  const Tensor& device() const { return device_; }
  void back() { copy(device_, host_); }

 private:
  void copy(const Tensor& from, const Tensor& to) {
    kernels::table(runtime_.stream()).copy({.x = from, .out = to}, runtime_.stream());
  }

  Tensor host_, device_;
  Runtime& runtime_;
};

}  // namespace

// Muon's matrices are updated whole; the other rules treat each element independently.
void Optimizer::update_offloaded(const Entry& entry) {
  const int64_t elements = entry.value.elements();
  const int64_t most = entry.rule == muon_.get() ? elements : kPiece;
  for (int64_t begin = 0; begin == 0 || begin < elements; begin += most) {
    const int64_t size = std::min(most, elements - begin);
    const auto part = [&](const Tensor& t) {
      return !t.defined() || size == elements ? t : t.view({elements}).slice(0, begin, size);
    };
    std::vector<Visit> visits;
    const auto bring = [&](const Tensor& state) {
      return state.defined() ? visits.emplace_back(part(state), runtime_).device() : state;
    };
    Entry piece = entry;
    piece.value = part(entry.value);
    Target& target = piece.target;
    target.begin += begin;
    target.gradient = part(target.gradient);
    target.weight.remainder = bring(target.weight.remainder);
    piece.master = bring(entry.master);
    target.weight.value = entry.master.defined() ? piece.master : piece.value;
    for (Tensor& state : target.states) state = bring(state);
    update(piece);
    for (Visit& visit : visits) visit.back();
    if (most == 0) break;
  }
}

}  // namespace megatron::optim
