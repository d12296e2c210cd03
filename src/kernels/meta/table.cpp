#include "kernels/meta/table.h"

#include "kernels/cpu/table.h"
#include "kernels/cuda_scratch/table.h"
#include "kernels/for_each_kernel.h"
#include "kernels/table.h"

namespace megatron::kernels {
namespace {

const Table& scratch_table(DeviceKind kind) {
  static const Table none;
  if (kind == DeviceKind::cuda) return cuda_scratch_table();
  return kind == DeviceKind::cpu ? cpu_scratch_table() : none;
}

// Requests the scratch memory of the device for which the run is planned.
template <auto member, class Args>
void ask(const Args& args, Stream& stream) {
  const auto scratch = scratch_table(stream.target().kind).*member;
  if (scratch != nullptr) scratch(args, stream);
}

template <auto member>
struct MetaEntry;

template <class Args, void (*Table::*member)(const Args&, Stream&)>
struct MetaEntry<member> {
  static void run(const Args& args, Stream& stream) {
    check_call<member>(args);
    ask<member>(args, stream);
  }
};

}  // namespace

const Table& meta_table() {
  static const Table table = table_of<MetaEntry>();
  return table;
}

}  // namespace megatron::kernels
