// Loops of element-wise kernels on the host, included once per instruction set, as simd-inl.h is.
#if defined(MEGATRON_KERNELS_CPU_FORMULA_LOOPS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef MEGATRON_KERNELS_CPU_FORMULA_LOOPS_INL_H
#undef MEGATRON_KERNELS_CPU_FORMULA_LOOPS_INL_H
#else
#define MEGATRON_KERNELS_CPU_FORMULA_LOOPS_INL_H
#endif

#include <array>
#include <utility>

#include "kernels/cpu/lanes-inl.h"
#include "kernels/cpu/rows_ahead.h"
#include "kernels/element_forms.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu {
namespace HWY_NAMESPACE {

// Rows of one operand, of T or, for a wide one, of f32.
struct OperandRows {
  std::byte* p = nullptr;
  int64_t stride = 0;  // bytes
  bool streamed = false;
};

template <class Form>
using Operands = std::array<OperandRows, Form::kInputs + Form::kOutputs>;  // inputs first

template <class Form, size_t operand>
HWY_INLINE VectorPair load_operand(const OperandRows& from, int64_t i, auto n) {
  const auto* p = reinterpret_cast<const Stored<Form, operand>*>(from.p) + i;
  if constexpr (Form::template kWide<operand>) {
    return load_pair_for<typename Form::T>(p, n);
  } else {
    return load_pair(p, n);
  }
}
template <class Form, size_t operand>
HWY_INLINE void store_operand(VectorPair v, const OperandRows& to, int64_t i, auto n) {
  using T = typename Form::T;
  if (Form::template kOptional<operand> && to.p == nullptr) return;
  if constexpr (Form::template kWide<operand>) {
    store_pair_for<T>(v, reinterpret_cast<float*>(to.p) + i, n);
  } else {
    store_pair(v, Output<T>{reinterpret_cast<T*>(to.p) + i, to.streamed}, n);
  }
}
template <class Form>
HWY_INLINE void store_values(Lanes a, Lanes b, const Operands<Form>& at, int64_t i, auto n) {
  store_operand<Form, Form::kInputs>({a.v, b.v}, at[Form::kInputs], i, n);
}
template <class Form>
HWY_INLINE void store_values(Pair<Lanes> a, Pair<Lanes> b, const Operands<Form>& at, int64_t i,
                             auto n) {
  constexpr size_t k = Form::kInputs;
  store_operand<Form, k>({a.first.v, b.first.v}, at[k], i, n);
  store_operand<Form, k + 1>({a.second.v, b.second.v}, at[k + 1], i, n);
}

// Prefetches the inputs of a loop over a row, one tensor after another.
template <class Form>
struct AheadInRow {
  HWY_INLINE void operator()(const Operands<Form>& at, int64_t i) const {
    [&]<size_t... k>(std::index_sequence<k...>) HWY_ATTR {
      (prefetch(at[k].p + (i + kElementsAhead<Stored<Form, k>>)*sizeof(Stored<Form, k>),
                kPairBytes<Stored<Form, k>>),
       ...);
    }(std::make_index_sequence<Form::kInputs>());
  }
};

// Makes the compiler load from memory only once. It would load f32 again whenever a formula uses it
// again, which costs a quarter of the time with five tensors.
HWY_INLINE void keep_loaded([[maybe_unused]] VectorPair& v) {
#if HWY_ARCH_X86
  asm("" : "+v"(v.a.raw), "+v"(v.b.raw));
#endif
}

// Applies the formula to elements [begin, end) of one row.
template <class Form, class F, class Ahead>
HWY_INLINE void run_row(const F& formula, const Operands<Form>& at, int64_t begin, int64_t end,
                        const Ahead& ahead) {
  for_pairs(begin, end, [&](int64_t i, auto n) {
    ahead(at, i);
    [&]<size_t... k>(std::index_sequence<k...>) {
      VectorPair x[] = {load_operand<Form, k>(at[k], i, n)...};
      (keep_loaded(x[k]), ...);
      const auto first = formula(Lanes(x[k].a)...);  // in memory order
      const auto second = formula(Lanes(x[k].b)...);
      store_values<Form>(first, second, at, i, n);
    }(std::make_index_sequence<Form::kInputs>());
  });
}

// Applies the formula to all rows; a single row is itself divided into blocks.
template <class Form, class F, class Ahead = AheadInRow<Form>>
void run_rows(int64_t rows, int64_t width, const F& formula, const Operands<Form>& all,
              Stream& stream, const Ahead& ahead = {}) {
  if (rows == 1) {
    for_blocks(stream, width, kBlockElements,
               [&](int64_t begin, int64_t end) { run_row<Form>(formula, all, begin, end, ahead); });
    return;
  }
  for_blocks(stream, rows, rows_per_block(width), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      Operands<Form> at = all;
      for (OperandRows& operand : at) operand.p += row * operand.stride;
      run_row<Form>(formula, at, 0, width, ahead);
    }
  });
}

// Applies the formula of a kernel's arguments.
template <class Formula, class Args>
void run_elements(const Args& args, Stream& stream) {
  constexpr auto& elements = Args::kElements;
  const Tensor& first = args.*elements.list[elements.of_type()].tensor;
  for_storage_type(elements.kernel, first.dtype(), [&](auto type) {
    using Form = FormOf<decltype(type), Args>;
    bool contiguous = true;
    for (const Element<Args>& e : elements.list)
      contiguous &= !(args.*e.tensor).defined() || (args.*e.tensor).is_contiguous();
    Operands<Form> all;
    for (size_t k = 0; k < all.size(); ++k) {
      const Tensor& t = args.*elements.list[k].tensor;
      if (!t.defined()) continue;
      all[k].p = static_cast<std::byte*>(t.raw());
      all[k].stride = contiguous ? 0 : t.stride(0) * size_of(t.dtype());
      if (k < Form::kInputs || elements.list[k].is_wide) continue;
      all[k].streamed = is_streamed(t, contiguous ? kBlockElements : t.stride(0), {});
      for (size_t i = 0; i < Form::kInputs; ++i) all[k].streamed &= all[i].p != all[k].p;
    }
    const int64_t rows = contiguous ? 1 : first.size(0);
    run_rows<Form>(rows, contiguous ? first.elements() : first.size(1), Formula(args), all, stream);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace megatron::kernels::cpu
HWY_AFTER_NAMESPACE();

#endif
