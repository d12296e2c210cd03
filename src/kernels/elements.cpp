#include "kernels/elements.h"

#include "kernels/check_rules.h"

namespace megatron::kernels {

void check_elements(const char* kernel, ElementLayout layout, const char* broken,
                    const CheckedElement* list, size_t count) {
  Rules rules(kernel);
  for (size_t i = 0; i < count; ++i) rules.add(list[i].name, *list[i].tensor);
  rules.require_one_device();
  if (broken != nullptr) rules.require(false, broken);
  size_t of_type = 0;
  while (list[of_type].wide) ++of_type;
  const Tensor& first = *list[of_type].tensor;
  rules.defined(first, list[of_type].name);
  rules.require(is_float_type(first), "of a floating type");
  for (size_t i = 0; i < count; ++i) {
    const Tensor& t = *list[i].tensor;
    if (list[i].optional && !t.defined()) continue;
    rules.require(t.defined() && t.shape() == first.shape(), "all of one shape");
    rules.require(t.dtype() == (list[i].wide ? accumulator(first.dtype()) : first.dtype()),
                  "of one type, wide ones f32 (f64)");
    if (layout == ElementLayout::contiguous) {
      rules.require(t.is_contiguous(), "contiguous");
    } else {
      rules.require(t.rank() == 2 && last_is_dense(t), "[T,N], last dim contiguous");
    }
  }
}

}  // namespace megatron::kernels
