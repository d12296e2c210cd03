#include "parallel/expert_tokens.h"

#include <fmt/core.h>

#include "parallel/collectives.h"

namespace megatron::parallel {
namespace {

struct ExpertTokensAttributes {
  ExpertRanks ranks;
  std::string_view name;
  std::string gradient() const { return fmt::format("{}, gradient", name); }
};

Tensor summed(Tape& tape, const Tensor& x, comm::Group& group, std::string_view call) {
  Tensor sum = tape.empty(x.shape(), x.dtype(), call);
  tape.kernels().copy({.x = x, .out = sum}, tape.stream());
  sum_in_place(tape, sum, group, call);
  return sum;
}

void to_experts_dgrad(Backward& backward) {
  if (!backward.needs(0)) return;
  const auto& a = backward.attributes<ExpertTokensAttributes>();
  const Tensor& dout = backward.gradient(0);
  Tape& tape = backward.tape();
  backward.set(0, a.ranks.gathers() ? scattered_rows(tape, dout, *a.ranks.group, a.gradient())
                                    : summed(tape, dout, *a.ranks.group, a.gradient()));
}

void from_experts_dgrad(Backward& backward) {
  if (!backward.needs(0)) return;
  const auto& a = backward.attributes<ExpertTokensAttributes>();
  const Tensor& dout = backward.gradient(0);
  if (!a.ranks.gathers()) return backward.set(0, dout);
  backward.set(0, gathered_rows(backward.tape(), dout, *a.ranks.group, a.gradient(),
                                MemoryClass::activations));
}

Var recorded(Tape& tape, const Var& x, Tensor value, const ExpertRanks& ranks,
             std::string_view name, void (*dgrad)(Backward&)) {
  Node node{.name = name, .inputs = {x.id}, .dgrad = dgrad};
  node.attributes = ExpertTokensAttributes{ranks, name};
  return tape.record_one(std::move(node), std::move(value));
}

}  // namespace

Var to_expert_ranks(Tape& tape, const Var& x, const ExpertRanks& ranks, std::string_view name) {
  if (ranks.group == nullptr) return x;
  return recorded(tape, x, to_expert_ranks(tape, x.value, ranks, name), ranks, name,
                  to_experts_dgrad);
}

Tensor to_expert_ranks(Tape& tape, const Tensor& x, const ExpertRanks& ranks,
                       std::string_view name) {
  if (!ranks.gathers()) return x;
  return gathered_rows(tape, x, *ranks.group, name, MemoryClass::activations);
}

Var from_expert_ranks(Tape& tape, const Var& partial, const ExpertRanks& ranks,
                      std::string_view name) {
  if (ranks.group == nullptr) return partial;
  Tensor sum = partial.value;
  if (ranks.gathers()) {
    sum = scattered_rows(tape, sum, *ranks.group, name);
  } else {
    sum_in_place(tape, sum, *ranks.group, name);
  }
  return recorded(tape, partial, std::move(sum), ranks, name, from_experts_dgrad);
}

}  // namespace megatron::parallel
