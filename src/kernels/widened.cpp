#include "kernels/widened.h"

#include <array>
#include <type_traits>
#include <vector>

#include "base/error.h"
#include "kernels/cpu/table.h"
#include "kernels/epilogue.h"
#include "kernels/for_each_kernel.h"
#include "kernels/meta/table.h"
#include "kernels/table.h"

namespace megatron::kernels {
namespace {

const Table& plain_table(DeviceKind kind) {
  return kind == DeviceKind::cpu ? cpu_table() : meta_table();
}

// visit() for arguments that are not modified.
template <class Args, class F>
void look_at(const Args& args, F&& f) {
  visit(const_cast<Args&>(args), [&](std::string_view, Access, const Tensor& t) { f(t); });
}

template <class Args>
bool has_f16(const Args& args) {
  bool found = false;
  look_at(args, [&](const Tensor& t) { found |= t.defined() && t.dtype() == DType::f16; });
  return found;
}

// True if the device, or the one for which a run on meta is planned, has no f16.
template <class Args>
bool widens(const Args& args, const Stream& stream) {
  return stream.target().kind != DeviceKind::cuda && has_f16(args);
}

// An f16 operand and its f32 copy.
struct Widened {
  Tensor narrow, wide;
  Access access;
};

// Makes an f32 copy of the operand. Dimensions of stride 0 are stored once and keep that stride.
Widened widen(const Tensor& narrow, Access access, Stream& stream) {
  Tensor once = narrow;
  for (int d = 0; d < narrow.rank(); ++d)
    if (narrow.stride(d) == 0 && narrow.elements() > 0) once = once.slice(d, 0, 1);
  Tensor wide = Tensor::empty(stream.scratch(), once.shape(), DType::f32, "widened");
  if (access != Access::write)
    plain_table(stream.device().kind).copy({.x = once, .out = wide}, stream);
  if (once.elements() == narrow.elements()) return {narrow, wide, access};
  std::array<int64_t, kMaxRank> strides{};
  for (int d = 0; d < narrow.rank(); ++d)
    strides[static_cast<size_t>(d)] = once.size(d) == narrow.size(d) ? wide.stride(d) : 0;
  const std::span all(strides.data(), static_cast<size_t>(narrow.rank()));
  return {narrow, wide.as_strided(narrow.shape(), all), access};
}

template <auto member, class Args>
void run_widened(const Args& args, Stream& stream) {
  const Table& plain = plain_table(stream.device().kind);
  std::vector<Widened> operands;
  Args wide = args;
  visit(wide, [&](std::string_view, Access access, Tensor& t) {
    if (!t.defined() || t.dtype() != DType::f16) return;
    operands.push_back(widen(t, access, stream));
    t = operands.back().wide;
  });
  (plain.*member)(wide, stream);
  for (const Widened& o : operands)
    if (o.access != Access::read) plain.copy({.x = o.wide, .out = o.narrow}, stream);
}

template <auto member>
struct WidenedEntry;

template <class Args, void (*Table::*member)(const Args&, Stream&)>
struct WidenedEntry<member> {
  static void run(const Args& args, Stream& stream) {
    if (!widens(args, stream)) return (plain_table(stream.device().kind).*member)(args, stream);
    check_call<member>(args);
    run_widened<member>(args, stream);
  }
};

// Statistics are computed from the stored sum, which is rounded first.
template <auto member>
void add_norm(const AddNormArgs& args, Stream& stream) {
  if (!widens(args, stream)) return (plain_table(stream.device().kind).*member)(args, stream);
  check_call<member>(args);
  AddNormArgs norm = args;
  if (args.sum.defined()) {
    if (args.residual.defined()) {
      run_widened<&Table::add>(AddArgs{args.x, args.residual, args.sum}, stream);
    } else {
      plain_table(stream.device().kind).copy({.x = args.x, .out = args.sum}, stream);
    }
    norm.x = args.sum;
    norm.residual = norm.sum = {};
  }
  run_widened<member>(norm, stream);
}

// Rows are only moved, so any 16-bit format works alike.
template <auto member, class Args>
void move_rows(const Args& args, Stream& stream) {
  const Table& plain = plain_table(stream.device().kind);
  if (!widens(args, stream)) return (plain.*member)(args, stream);
  check(args);
  Args rows = args;
  visit(rows, [](std::string_view, Access, Tensor& t) {
    if (t.defined() && t.dtype() == DType::f16) t = t.view_as(DType::bf16);
  });
  (plain.*member)(rows, stream);
}

// Each part is rounded to f16.
void gemm(const GemmArgs& args, Stream& stream) {
  if (!widens(args, stream) || !has_epilogue(args))
    return WidenedEntry<&Table::gemm>::run(args, stream);
  check(args);
  gemm_by_parts(args, widened_table(stream.device().kind), stream);
}

Table widened(const Table& plain) {
  Table t = table_of<WidenedEntry>();
  t.copy = plain.copy;
  t.fill = plain.fill;
  t.draw = plain.draw;
  t.gemm = gemm;
  t.add_rms_norm = add_norm<&Table::add_rms_norm>;
  t.add_layer_norm = add_norm<&Table::add_layer_norm>;
  t.embedding = move_rows<&Table::embedding>;
  t.take_rows = move_rows<&Table::take_rows>;
  return t;
}

}  // namespace

const Table& widened_table(DeviceKind kind) {
  MG_ASSERT(kind == DeviceKind::cpu || kind == DeviceKind::meta);
  static const Table cpu = widened(cpu_table()), meta = widened(meta_table());
  return kind == DeviceKind::cpu ? cpu : meta;
}

}  // namespace megatron::kernels
