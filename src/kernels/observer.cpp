#include "kernels/observer.h"

#include <type_traits>
#include <vector>

#include "kernels/for_each_kernel.h"

namespace megatron::kernels {
namespace {

template <auto member>
constexpr std::string_view name_of() {
  std::string_view name;
  for_each_kernel([&name](const auto& kernel) {
    if constexpr (std::is_same_v<Kernel<member>, std::remove_cvref_t<decltype(kernel)>>)
      name = kernel.name;
  });
  return name;
}

template <auto member>
struct Entry;

template <class Args, void (*Table::*member)(const Args&, Stream&)>
struct Entry<member> {
  static void run(const Args& args, Stream& stream) {
    auto& observer = static_cast<Observer&>(*stream.watcher());
    std::vector<Operand> operands;
    Args seen = args;
    visit(seen, [&](std::string_view operand, Access access, const Tensor& tensor) {
      if (tensor.defined()) operands.push_back({operand, access, tensor});
    });
    Call call{.kernel = name_of<member>(),
              .cost = cost_of(args),
              .form = form_of(args),
              .operands = operands};
    call.again = [&args] { return again(args); };
    observer.before(call);
    (table(stream.device().kind).*member)(args, stream);
    observer.after(call);
  }

  static Call::Again again(const Args& args) {
    Args form = args;
    std::vector<bool> defined;
    visit(form, [&](std::string_view, Access, Tensor& tensor) {
      defined.push_back(tensor.defined());
      tensor = {};
    });
    return [form, defined](std::span<const Tensor> tensors, Stream& stream) {
      Args filled = form;
      size_t operand = 0, next = 0;
      visit(filled, [&](std::string_view, Access, Tensor& tensor) {
        if (defined[operand++]) tensor = tensors[next++];
      });
      (table(stream.device().kind).*member)(filled, stream);
    };
  }
};

Table observe(const Table& plain) {
  Table observed;
  for_each_kernel([&](const auto& kernel) {
    constexpr auto member = std::remove_cvref_t<decltype(kernel)>::member;
    if (plain.*member != nullptr) observed.*member = Entry<member>::run;
  });
  return observed;
}

}  // namespace

const Table& observed_table(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::reference: {
      static const Table table = observe(kernels::table(DeviceKind::reference));
      return table;
    }
    case DeviceKind::cpu: {
      static const Table table = observe(kernels::table(DeviceKind::cpu));
      return table;
    }
    default: {
      static const Table table = observe(kernels::table(DeviceKind::meta));
      return table;
    }
  }
}

const Table& table(Stream& stream) {
  const DeviceKind kind = stream.device().kind;
  return stream.watcher() == nullptr ? table(kind) : observed_table(kind);
}

}  // namespace megatron::kernels
