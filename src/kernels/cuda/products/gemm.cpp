#include "kernels/cuda_scratch/gemm.h"

#include <algorithm>
#include <array>

#include "base/divide.h"
#include "base/error.h"
#include "device/cuda/runtime_call.h"
#include "device/cuda/stream.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/numbers.h"
#include "kernels/cuda/partial_rows.h"
#include "kernels/cuda/products/codes.h"
#include "kernels/cuda/products/double_gemm.h"
#include "kernels/cuda/products/product_plans.h"
#include "kernels/cuda/table.h"
#include "kernels/epilogue.h"
#include "kernels/table.h"

namespace megatron::kernels::cuda {
namespace {

using megatron::cuda::handle_of;

// Row stride of a matrix. That of a single row is irrelevant, so its width is used.
int64_t row_stride(const Tensor& t) { return t.size(-2) == 1 ? t.size(-1) : t.stride(-2); }

// The largest power of two up to 16 that divides the address.
uint32_t alignment(const void* p) {
  const auto address = reinterpret_cast<uintptr_t>(p);
  return static_cast<uint32_t>(std::min<uintptr_t>(16, address & -address));
}

// The first address in the workspace that is a multiple of kWorkspaceAlignment.
void* aligned(const Tensor& workspace) {
  constexpr int64_t kUnit = kWorkspaceAlignment;
  const auto address = reinterpret_cast<intptr_t>(workspace.address());
  return reinterpret_cast<void*>(round_up(address, kUnit));
}

struct Call {
  Product product;
  ProductPointers pointers;
};

// Makes the operands of a product with K = 0: zeros [M,1] and [1,N], shared by the whole batch.
void put_zeros(const Tensor& zeros, Call& call, Stream& stream) {
  megatron::cuda::check(
      cudaMemsetAsync(zeros.address(), 0, static_cast<size_t>(zeros.bytes()), handle_of(stream)),
      "cudaMemsetAsync of a product's zeros");
  Product& p = call.product;
  call.pointers.a = call.pointers.b = zeros.address();
  p.k = 1;
  p.row_a = p.transpose_a ? p.m : 1;
  p.row_b = p.transpose_b ? 1 : p.n;
  p.batch_a = p.batch_b = 0;
}

const Tensor& dense(const Tensor& given, const Tensor& room, Stream& stream) {
  if (!room.defined()) return given;
  copy({.x = given, .out = room}, stream);
  return room;
}

Call prepare(const GemmArgs& args, const GemmScratch& scratch, Stream& stream) {
  Call call;
  Product& p = call.product;
  const Tensor& out = args.out;
  const bool batched = out.rank() == 3;
  p.batch = batched ? out.size(0) : 1;
  p.m = out.size(-2);
  p.n = out.size(-1);
  p.k = args.a.size(args.transpose_a ? -2 : -1);
  p.transpose_a = args.transpose_a;
  p.transpose_b = args.transpose_b;
  p.accumulate = args.beta == 1;
  p.in = args.a.dtype();
  p.out = out.dtype();
  p.row_out = row_stride(out);
  if (p.batch > 1) p.batch_out = out.stride(0);
  call.pointers.out = out.address();
  call.pointers.workspace = aligned(scratch.workspace);
  p.workspace = scratch.workspace.bytes() - kWorkspaceAlignment;
  p.any_order = stream.nondeterministic();
  if (args.bias.defined()) {
    p.bias = true;
    call.pointers.bias = dense(args.bias, scratch.bias, stream).address();
  }
  if (p.k == 0) {
    put_zeros(scratch.zeros, call, stream);
  } else {
    const Tensor &a = dense(args.a, scratch.a, stream), &b = dense(args.b, scratch.b, stream);
    call.pointers.a = a.address();
    call.pointers.b = b.address();
    p.row_a = row_stride(a);
    p.row_b = row_stride(b);
    if (p.batch > 1) {
      p.batch_a = a.stride(0);
      p.batch_b = b.stride(0);
    }
  }
  if (scratch.factors.defined()) {
    p.scaled = true;
    call.pointers.factors = static_cast<const float*>(scratch.factors.address());
    product_factors(args, scratch.factors, stream);
  }
  p.align_a = alignment(call.pointers.a);
  p.align_b = alignment(call.pointers.b);
  p.align_out = alignment(call.pointers.out);
  return call;
}

// True if the library may fuse the epilogue into the product. It requires rows of aux (its columns)
// of a multiple of 8 values. The accuracy of its gelu is undocumented, so this program's epilogues
// are used in fp32.
bool may_fuse(const GemmArgs& args) {
  if (args.out.elements() == 0 || args.a.elements() == 0) return false;
  if (args.epilogue != Epilogue::none && args.a.dtype() == DType::f32) return false;
  // cuBLASLt has a single pointer for the bias and its gradient.
  if (args.bias.defined() && args.bias_gradient.out.defined()) return false;
  if (!args.aux.defined()) return true;
  return args.aux.size(1) % 8 == 0 && alignment(args.aux.address()) == 16;
}

// Computes product and epilogue in one call. Returns false if the library does not support that.
bool fuse(const GemmArgs& args, const GemmScratch& scratch, Stream& stream) {
  Call call = prepare(args, scratch, stream);
  Product& p = call.product;
  p.epilogue = args.epilogue;
  p.aux = args.aux.defined();
  p.bias_gradient = args.bias_gradient.out.defined();
  if (p.aux) call.pointers.aux = args.aux.address();
  const Tensor& sums = args.bias_gradient.out;
  const Tensor& written = scratch.bias_gradient.defined() ? scratch.bias_gradient : sums;
  if (p.bias_gradient) call.pointers.bias = written.address();
  if (!ProductPlans::of(stream).run_if_there(p, call.pointers)) return false;
  if (scratch.bias_gradient.defined()) {
    const std::array<int64_t, 2> row{sums.elements(), 1};
    add_partial_rows(written.as_strided({1, sums.elements()}, row), args.bias_gradient, stream);
  }
  return true;
}

bool fused(const GemmArgs& args, Stream& stream) {
  const GemmScratch scratch = gemm_scratch(args, stream);
  return may_fuse(args) && fuse(args, scratch, stream);
}

}  // namespace

// Uses cuBLASLt; double_sums uses this program's own kernel. Supports f32 (no TF32), bf16 and f16
// with f32 sums, and f64 with double_sums only, else throws Error. If a call's sums are split over
// K, the parts are f32 and are added in a fixed order, so that the same call gives the same bits in
// every run on one kind of GPU with one version of cuBLASLt. The contract's promise for the forward
// form does not hold: cuBLASLt uses other kernels for other sizes, so an element's bits may depend
// on the number of rows and columns, and on whether tensors are aligned to 16 bytes. Epilogues are
// cuBLASLt's if it can fuse them; if not, this program's own kernels follow the product, with a
// rounding in between. cuBLASLt accepts an aux whose rows are multiples of 8 values, aligned to 16
// bytes.
void gemm(const GemmArgs& args, Stream& stream) {
  if (args.a.dtype() == DType::f64 && !args.double_sums) refuse_type("gemm", DType::f64);
  if (has_epilogue(args)) {
    const bool done = !args.double_sums && fused(args, stream);
    ++(done ? stream.calls().epilogues_fused : stream.calls().epilogues_separate);
    if (!done) gemm_by_parts(args, cuda_table(), stream);
    return;
  }
  if (args.out.elements() == 0) return;
  if (args.double_sums) return double_gemm(args, stream);
  const GemmScratch scratch = gemm_scratch(args, stream);
  const Call call = prepare(args, scratch, stream);
  ProductPlans::of(stream).run(call.product, call.pointers);
}

// Uses cuBLASLt, whose products of codes need a compute capability: 8.9 with scales of tensors, 9.0
// with vectors_128 and squares_128, 10.0 and later with mx_32 and nv_16. Elsewhere, and where it
// has no algorithm, this program's own kernel.
void coded_gemm(const CodedGemmArgs& args, Stream& stream) {
  if (args.out.elements() == 0) return;
  const GemmArgs product = product_of_codes(args);
  const GemmScratch scratch = gemm_scratch(product, stream);
  Call call = prepare(product, scratch, stream);
  Product& p = call.product;
  p.a_format = args.a.format;
  p.b_format = args.b.format;
  p.a_layout = args.a.layout;
  p.b_layout = args.b.layout;
  p.k = p.row_a = p.row_b = args.a.depth();
  if (p.k == 0) return multiply_codes(args, stream);
  call.pointers.a_scales = args.a.scales.defined() ? args.a.scales.address() : nullptr;
  call.pointers.b_scales = args.b.scales.defined() ? args.b.scales.address() : nullptr;
  if (!ProductPlans::of(stream).run_if_there(call.product, call.pointers))
    multiply_codes(args, stream);
}

}  // namespace megatron::kernels::cuda
