#include "parallel/collectives.h"

#include <fmt/core.h>

#include "base/error.h"

namespace megatron::parallel {
namespace {

Tensor make(Tape& tape, MemoryClass memory, Shape shape, DType dtype, std::string_view label) {
  return Tensor::empty(tape.runtime().arena(memory), shape, dtype, label);
}

Tensor copied(Tape& tape, const Tensor& x, MemoryClass memory, std::string_view label) {
  const Tensor copy = make(tape, memory, x.shape(), x.dtype(), label);
  tape.kernels().copy({.x = x, .out = copy}, tape.stream());
  return copy;
}

int64_t share_of_rows(const Tensor& x, const comm::Group& group) {
  MG_CHECK(x.size(0) % group.size() == 0, "{} rows cannot be divided evenly among {} ranks",
           x.size(0), group.size());
  return x.size(0) / group.size();
}

struct SumAttributes {
  TensorParallel tp;
  std::string_view name;
};

void sum_of_parts_dgrad(Backward& backward) {
  if (!backward.needs(0)) return;
  const auto& [tp, name] = backward.attributes<SumAttributes>();
  const Tensor& dy = backward.gradient(0);
  if (!tp.divides_tokens()) return backward.set(0, dy);
  backward.set(0, gathered_rows(backward.tape(), dy, *tp.group, fmt::format("{}, gradient", name),
                                MemoryClass::communication));
}

void whole_rows_dgrad(Backward& backward) {
  if (!backward.needs(0)) return;
  const auto& [tp, name] = backward.attributes<SumAttributes>();
  const std::string call = fmt::format("{}, gradient", name);
  const Tensor& dy = backward.gradient(0);
  if (tp.divides_tokens())
    return backward.set(0, scattered_rows(backward.tape(), dy, *tp.group, call));
  const Tensor sum = backward.empty(dy.shape(), dy.dtype(), call);
  backward.kernels().copy({.x = dy, .out = sum}, backward.stream());
  sum_in_place(backward.tape(), sum, *tp.group, call);
  backward.set(0, sum);
}

void gather_rows_dgrad(Backward& backward) {
  if (!backward.needs(0)) return;
  const Tensor& dy = backward.gradient(0);
  const Slice rows = backward.attributes<TensorParallel>().tokens(dy.size(0));
  backward.set(0, dy.slice(0, rows.global_begin, rows.size));
}

void gather_columns_dgrad(Backward& backward) {
  if (!backward.needs(0)) return;
  backward.set(
      0, own_columns(backward.tape(), backward.gradient(0), *backward.attributes<comm::Group*>()));
}

}  // namespace

Tensor communication_buffer(Tape& tape, Shape shape, DType dtype, std::string_view label) {
  return make(tape, MemoryClass::communication, shape, dtype, label);
}

Tensor contiguous(Tape& tape, const Tensor& x, std::string_view label) {
  return x.is_contiguous() ? x : copied(tape, x, MemoryClass::communication, label);
}

void sum_in_place(Tape& tape, const Tensor& x, comm::Group& group, std::string_view call) {
  group.all_reduce(x, comm::Reduce::sum, tape.stream(), call).wait(tape.stream());
}

Tensor gathered_rows(Tape& tape, const Tensor& x, comm::Group& group, std::string_view call,
                     MemoryClass memory) {
  const Tensor all = make(tape, memory, {group.size() * x.size(0), x.size(1)}, x.dtype(), call);
  group.all_gather(contiguous(tape, x, call), all, tape.stream(), call).wait(tape.stream());
  return all;
}

Tensor scattered_rows(Tape& tape, const Tensor& x, comm::Group& group, std::string_view call) {
  const Tensor own = tape.empty({share_of_rows(x, group), x.size(1)}, x.dtype(), call);
  group.reduce_scatter(contiguous(tape, x, call), own, comm::Reduce::sum, tape.stream(), call)
      .wait(tape.stream());
  return own;
}

Tensor gathered_columns(Tape& tape, const Tensor& x, int64_t total, comm::Group& group,
                        std::string_view call) {
  const int64_t rows = x.size(0), share = share_of(total, group.size(), 0).size;
  MG_ASSERT(x.size(1) == share_of(total, group.size(), group.rank()).size);
  const kernels::Table& kernels = tape.kernels();
  Tensor given = x;
  if (x.size(1) < share || !x.is_contiguous()) {
    given = communication_buffer(tape, {rows, share}, x.dtype(), call);
    if (x.size(1) < share) kernels.fill({.out = given, .value = 0}, tape.stream());
    kernels.copy({.x = x, .out = given.slice(1, 0, x.size(1))}, tape.stream());
  }
  const Tensor parts = communication_buffer(tape, {group.size(), rows, share}, x.dtype(), call);
  group.all_gather(given, parts, tape.stream(), call).wait(tape.stream());
  const Tensor all = tape.empty({rows, total}, x.dtype(), call);
  for (int rank = 0; rank < group.size(); ++rank) {
    const Slice of_rank = share_of(total, group.size(), rank);
    if (of_rank.size == 0) break;
    kernels.copy({.x = parts.select(0, rank).slice(1, 0, of_rank.size),
                  .out = all.slice(1, of_rank.global_begin, of_rank.size)},
                 tape.stream());
  }
  return all;
}

Tensor own_columns(Tape& tape, const Tensor& x, const comm::Group& group) {
  const Slice own = share_of(x.size(1), group.size(), group.rank());
  return copied(tape, x.slice(1, own.global_begin, own.size), MemoryClass::activations,
                "own columns");
}

Var sum_of_parts(Tape& tape, const Var& partial, const TensorParallel& tp, std::string_view name) {
  Tensor sum = partial.value;
  if (tp.divides_tokens()) {
    sum = scattered_rows(tape, partial.value, *tp.group, name);
  } else {
    sum_in_place(tape, sum, *tp.group, name);
  }
  Node node{.name = name, .inputs = {partial.id}, .dgrad = sum_of_parts_dgrad};
  node.attributes = SumAttributes{tp, name};
  return tape.record_one(std::move(node), sum);
}

Var whole_rows(Tape& tape, const Var& x, const TensorParallel& tp, std::string_view name) {
  if (alone(tp.group)) return x;
  Node node{.name = name, .inputs = {x.id}, .dgrad = whole_rows_dgrad};
  node.attributes = SumAttributes{tp, name};
  return tape.record_one(
      std::move(node), tp.divides_tokens()
                           ? gathered_rows(tape, x.value, *tp.group, name, MemoryClass::activations)
                           : x.value);
}

Var gather_rows(Tape& tape, const Var& x, const TensorParallel& tp, std::string_view name) {
  if (!tp.divides_tokens()) return x;
  Node node{.name = name, .inputs = {x.id}, .dgrad = gather_rows_dgrad};
  node.attributes = tp;
  return tape.record_one(std::move(node),
                         gathered_rows(tape, x.value, *tp.group, name, MemoryClass::activations));
}

Var gather_columns(Tape& tape, const Var& x, int64_t total, comm::Group& group,
                   std::string_view name) {
  Node node{.name = name, .inputs = {x.id}, .dgrad = gather_columns_dgrad};
  node.attributes = &group;
  return tape.record_one(std::move(node), gathered_columns(tape, x.value, total, group, name));
}

void PendingSum::begin(Tape& tape, const Tensor& of, const TensorParallel& tp,
                       std::string_view call) {
  comm::Group& group = overlapped(tp);
  partial = of;
  if (tp.divides_tokens()) {
    result = tape.empty({share_of_rows(of, group), of.size(1)}, of.dtype(), call);
    work = group.reduce_scatter(partial, result, comm::Reduce::sum, tape.stream(), call);
  } else {
    result = of;
    work = group.all_reduce(result, comm::Reduce::sum, tape.stream(), call);
  }
  if (tp.async == nullptr) wait(tape.stream());
}

void PendingSum::wait(Stream& stream) {
  work.wait(stream);
  work = {};
  partial = {};
}

}  // namespace megatron::parallel
