#include "autograd/offload.h"

#include <unordered_map>

namespace megatron {
namespace {

// Views a tensor as integers, so that a copy never interprets the values.
Tensor as_integers(const Tensor& t) {
  switch (size_of(t.dtype())) {
    case 8: return t.view_as(DType::i64);
    case 4: return t.view_as(DType::i32);
    default: return t.view_as(DType::i16);
  }
}

Tensor copied(const Tensor& t, MemoryClass memory_class, std::string_view label, Tape& tape) {
  Tensor copy = Tensor::empty(tape.runtime().arena(memory_class), t.shape(), t.dtype(), label);
  tape.kernels().copy({.x = as_integers(t), .out = as_integers(copy)}, tape.stream());
  return copy;
}

class HostCopy final : public Source {
 public:
  HostCopy(const Tensor& storage, Tape& tape)
      : host_(copied(storage, MemoryClass::offload, "offload", tape)) {}

  Tensor bring_back(size_t, Tape& tape) override {
    if (!back_.defined()) {
      back_ = copied(host_, MemoryClass::activations, "offload.back", tape);
      host_ = {};
    }
    return back_;
  }

 private:
  Tensor host_, back_;  // only one of them is defined
};

void bring_back(Backward& backward) {
  for (const auto& moved : backward.attributes<std::vector<std::weak_ptr<Source>>>())
    if (const std::shared_ptr<Source> source = moved.lock()) source->bring_back(0, backward.tape());
}

}  // namespace

Offloaded Offloaded::move(Tape& tape, size_t first) {
  Offloaded offloaded;
  std::unordered_map<const void*, std::shared_ptr<Source>> by_storage;
  tape.for_each_saved(first, [&](Saved& saved) {
    const Tensor& t = saved.tensor();
    if (!t.defined() || t.memory_class() != MemoryClass::activations || !is_floating(t.dtype()) ||
        t.elements() == 0)
      return;
    std::shared_ptr<Source>& source = by_storage[t.storage_id()];
    if (source == nullptr) {
      source = std::make_shared<HostCopy>(t.whole(), tape);
      offloaded.moved_.push_back(source);
    }
    saved = Saved(t, source);
  });
  return offloaded;
}

void Offloaded::bring_back_here(Tape& tape) const {
  if (!tape.recording()) return;
  Node node{.name = "offload", .dgrad = bring_back, .root = true};
  node.attributes = moved_;
  tape.record(std::move(node), {});
}

}  // namespace megatron
