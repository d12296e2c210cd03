#include "kernels/observer.h"

#include <vector>

#include "kernels/for_each_kernel.h"

namespace megatron::kernels {
namespace {

template <auto member>
struct ObservedEntry;

template <class Args, void (*Table::*member)(const Args&, Stream&)>
struct ObservedEntry<member> {
  static void run(const Args& args, Stream& stream) {
    auto& observer = static_cast<Observer&>(*stream.watcher());
    std::vector<Operand> operands;
    Args seen = args;
    visit(seen, [&](std::string_view operand, Access access, const Tensor& tensor) {
      if (tensor.defined()) operands.push_back({operand, access, tensor});
    });
    Call call{.kernel = name_of(member),
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

}  // namespace

const Table& table(Stream& stream) {
  if (stream.watcher() == nullptr) return table(stream.device().kind);
  static const Table observed = table_of<ObservedEntry>();
  return observed;
}

}  // namespace megatron::kernels
