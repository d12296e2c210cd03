#include "parallel/collectives.h"

#include "base/error.h"
#include "parallel/exchange.h"

namespace megatron::parallel {
namespace {

// What each does on tensors; the backward of one is the forward of another.
using Move = Tensor (*)(Tape&, const Tensor&, comm::Group&);

struct CollectiveAttributes {
  comm::Group* group;
  Move backward;
};

void collective_dgrad(Backward& backward) {
  if (!backward.needs(0)) return;
  const auto& [group, move] = backward.attributes<CollectiveAttributes>();
  backward.set(0, move(backward.tape(), backward.gradient(0), *group));
}

Tensor same(Tape&, const Tensor& x, comm::Group&) { return x; }

Var record(Tape& tape, std::string_view name, const Var& x, comm::Group* group, Move forward,
           Move backward) {
  if (alone(group)) return x;
  Node node{.name = name, .inputs = {x.id}, .dgrad = collective_dgrad};
  node.attributes = CollectiveAttributes{group, backward};
  return tape.record_one(std::move(node), forward(tape, x.value, *group));
}

Tensor all_columns(Tape& tape, const Tensor& x, comm::Group& group, std::string_view call) {
  return gathered_columns(tape, x, x.size(1) * group.size(), group, call);
}

Tensor all_rows(Tape& tape, const Tensor& x, comm::Group& group, std::string_view call) {
  return gathered_rows(tape, x, group, call, MemoryClass::activations);
}

Tensor split_columns(Tape& tape, const Tensor& x, comm::Group& group) {
  MG_CHECK(x.size(1) % group.size() == 0, "{} columns cannot be divided evenly among {} ranks",
           x.size(1), group.size());
  return own_columns(tape, x, group);
}

Tensor split_rows(Tape& tape, const Tensor& x, comm::Group& group) {
  return own_rows(tape, x, group);
}

}  // namespace

Var copy_to(Tape& tape, const Var& x, comm::Group* group) {
  return record(tape, "copy_to", x, group, same, [](Tape& t, const Tensor& dy, comm::Group& g) {
    return summed(t, dy, g, "copy_to, gradient");
  });
}

Var reduce_from(Tape& tape, const Var& x, comm::Group* group) {
  return record(
      tape, "reduce_from", x, group,
      [](Tape& t, const Tensor& in, comm::Group& g) { return summed(t, in, g, "reduce_from"); },
      same);
}

Var scatter_to(Tape& tape, const Var& x, comm::Group* group) {
  return record(tape, "scatter_to", x, group, split_columns,
                [](Tape& t, const Tensor& dy, comm::Group& g) {
                  return all_columns(t, dy, g, "scatter_to, gradient");
                });
}

Var gather_from(Tape& tape, const Var& x, comm::Group* group) {
  return record(
      tape, "gather_from", x, group,
      [](Tape& t, const Tensor& in, comm::Group& g) {
        return all_columns(t, in, g, "gather_from");
      },
      split_columns);
}

Var sequence_scatter(Tape& tape, const Var& x, comm::Group* group) {
  return record(
      tape, "sequence_scatter", x, group,
      [](Tape& t, const Tensor& in, comm::Group& g) {
        return scattered_rows(t, in, g, "sequence_scatter");
      },
      [](Tape& t, const Tensor& dy, comm::Group& g) {
        return all_rows(t, dy, g, "sequence_scatter, gradient");
      });
}

Var sequence_gather(Tape& tape, const Var& x, comm::Group* group) {
  return record(
      tape, "sequence_gather", x, group,
      [](Tape& t, const Tensor& in, comm::Group& g) {
        return all_rows(t, in, g, "sequence_gather");
      },
      [](Tape& t, const Tensor& dy, comm::Group& g) {
        return scattered_rows(t, dy, g, "sequence_gather, gradient");
      });
}

Var sequence_split(Tape& tape, const Var& x, comm::Group* group) {
  return record(tape, "sequence_split", x, group, split_rows,
                [](Tape& t, const Tensor& dy, comm::Group& g) {
                  return all_rows(t, dy, g, "sequence_split, gradient");
                });
}

}  // namespace megatron::parallel
