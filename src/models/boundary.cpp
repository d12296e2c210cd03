#include "models/boundary.h"

#include <string>

#include "base/error.h"
#include "models/stage.h"

namespace megatron::models {

std::vector<TensorForm> boundary_forms(const Stage& stage, Edge edge, const BoundaryRows& rows,
                                       DType type) {
  std::vector<TensorForm> forms;
  for (const BoundaryTensor& t : stage.boundary(edge)) {
    if (t.of_encoder && rows.of_encoder == 0) continue;
    if (t.predicted && !rows.predicts) continue;
    const int64_t tokens = t.of_encoder ? rows.of_encoder : rows.tokens,
                  width = t.width == 0 ? stage.model()->hidden_size() : t.width;
    forms.push_back({.shape = {t.rows == 0 ? tokens : t.rows, width},
                     .type = t.wide ? kernels::accumulator(type) : type});
  }
  return forms;
}

parallel::Payload make_payload(std::span<const TensorForm> forms, Runtime& runtime,
                               std::string_view label) {
  parallel::Payload payload;
  for (const TensorForm& form : forms)
    payload.push_back(
        Tensor::empty(runtime.arena(MemoryClass::activations), form.shape, form.type, label));
  return payload;
}

Bundle entering(const Stage& stage, std::span<const Var> vars) {
  const std::span<const BoundaryTensor> boundary = stage.boundary(Edge::entry);
  const bool all = vars.size() == boundary.size();
  Bundle in;
  size_t i = 0;
  for (const BoundaryTensor& t : boundary)
    if (all || !(t.of_encoder || t.predicted)) in.set(t.name, vars[i++]);
  MG_ASSERT(i == vars.size());
  return in;
}

Bundle entering(const Stage& stage, const parallel::Payload& payload) {
  return entering(stage, std::vector<Var>(payload.begin(), payload.end()));
}

std::vector<Var> leaving(const Stage& stage, Tape& tape, const Bundle& out) {
  std::vector<Var> vars;
  for (const BoundaryTensor& t : stage.boundary(Edge::exit)) {
    if ((t.of_encoder || t.predicted) && !out.contains(t.name)) continue;
    vars.push_back(t.name == kHidden ? flowing(tape, out) : out[t.name]);
  }
  return vars;
}

parallel::Payload leaving_values(const Stage& stage, Tape& tape, const Bundle& out) {
  parallel::Payload values;
  for (Var& var : leaving(stage, tape, out)) values.push_back(std::move(var.value));
  return values;
}

}  // namespace megatron::models
