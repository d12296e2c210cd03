#include "kernels/meta/table.h"

#include "kernels/check.h"
#include "kernels/cpu/table.h"
#include "kernels/cuda_scratch/table.h"

namespace megatron::kernels {
namespace {

const Table& scratch_table(DeviceKind kind) {
  static const Table none;
  if (kind == DeviceKind::cuda) return cuda_scratch_table();
  return kind == DeviceKind::cpu ? cpu_scratch_table() : none;
}

// Asks for the scratch of the device that the run is planned for.
template <auto member, class Args>
void ask(const Args& args, Stream& stream) {
  const auto scratch = scratch_table(stream.plan().kind).*member;
  if (scratch != nullptr) scratch(args, stream);
}

template <auto member>
struct Entry;

template <class Args, void (*Table::*member)(const Args&, Stream&)>
struct Entry<member> {
  static void run(const Args& args, Stream& stream) {
    check(args);
    ask<member>(args, stream);
  }
};

template <auto member>
constexpr auto planned = Entry<member>::run;

template <auto member, NormKind kind, class Args>
void planned_norm(const Args& args, Stream& stream) {
  check(args, kind);
  ask<member>(args, stream);
}

}  // namespace

const Table& meta_table() {
  static const Table table = {
      .gemm = planned<&Table::gemm>,
      .add_rms_norm = planned_norm<&Table::add_rms_norm, NormKind::rms, AddNormArgs>,
      .add_rms_norm_backward =
          planned_norm<&Table::add_rms_norm_backward, NormKind::rms, AddNormBackwardArgs>,
      .add_layer_norm = planned_norm<&Table::add_layer_norm, NormKind::layer, AddNormArgs>,
      .add_layer_norm_backward =
          planned_norm<&Table::add_layer_norm_backward, NormKind::layer, AddNormBackwardArgs>,
      .activation = planned<&Table::activation>,
      .activation_backward = planned<&Table::activation_backward>,
      .rope = planned<&Table::rope>,
      .attention = planned<&Table::attention>,
      .attention_backward = planned<&Table::attention_backward>,
      .softmax = planned<&Table::softmax>,
      .softmax_backward = planned<&Table::softmax_backward>,
      .embedding = planned<&Table::embedding>,
      .embedding_backward = planned<&Table::embedding_backward>,
      .cross_entropy = planned<&Table::cross_entropy>,
      .vocabulary_stats = planned<&Table::vocabulary_stats>,
      .vocabulary_cross_entropy = planned<&Table::vocabulary_cross_entropy>,
      .draw = planned<&Table::draw>,
      .dropout = planned<&Table::dropout>,
      .add = planned<&Table::add>,
      .copy = planned<&Table::copy>,
      .fill = planned<&Table::fill>,
      .column_sum = planned<&Table::column_sum>,
      .sum = planned<&Table::sum>,
      .sum_of_squares = planned<&Table::sum_of_squares>,
      .grad_scale = planned<&Table::grad_scale>,
      .adam = planned<&Table::adam>,
      .sgd = planned<&Table::sgd>,
      .lion = planned<&Table::lion>,
      .muon_momentum = planned<&Table::muon_momentum>,
      .unit_norm = planned<&Table::unit_norm>,
      .weighted_sum = planned<&Table::weighted_sum>,
  };
  return table;
}

}  // namespace megatron::kernels
