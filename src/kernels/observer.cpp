#include "kernels/observer.h"

#include <algorithm>
#include <array>
#include <vector>

namespace megatron::kernels {
namespace {

// A text as a template argument.
template <size_t N>
struct Name {
  char text[N];
  consteval Name(const char (&from)[N]) { std::copy_n(from, N, text); }
};

template <Name name, auto member>
struct Entry;

template <Name name, class Args, void (*Table::*member)(const Args&, Stream&)>
struct Entry<name, member> {
  static void run(const Args& args, Stream& stream) {
    auto& observer = static_cast<Observer&>(*stream.watcher());
    std::vector<Operand> operands;
    Args seen = args;
    visit(seen, [&](std::string_view operand, Access access, const Tensor& tensor) {
      if (tensor.defined()) operands.push_back({operand, access, tensor});
    });
    Call call{
        .kernel = name.text, .cost = cost_of(args), .form = form_of(args), .operands = operands};
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

template <Name name, auto member>
void set(Table& observed, const Table& plain) {
  if (plain.*member != nullptr) observed.*member = Entry<name, member>::run;
}

Table observe(const Table& plain) {
  Table t;
  set<"gemm", &Table::gemm>(t, plain);
  set<"add_rms_norm", &Table::add_rms_norm>(t, plain);
  set<"add_rms_norm_backward", &Table::add_rms_norm_backward>(t, plain);
  set<"add_layer_norm", &Table::add_layer_norm>(t, plain);
  set<"add_layer_norm_backward", &Table::add_layer_norm_backward>(t, plain);
  set<"activation", &Table::activation>(t, plain);
  set<"activation_backward", &Table::activation_backward>(t, plain);
  set<"rope", &Table::rope>(t, plain);
  set<"attention", &Table::attention>(t, plain);
  set<"attention_backward", &Table::attention_backward>(t, plain);
  set<"softmax", &Table::softmax>(t, plain);
  set<"softmax_backward", &Table::softmax_backward>(t, plain);
  set<"embedding", &Table::embedding>(t, plain);
  set<"embedding_backward", &Table::embedding_backward>(t, plain);
  set<"cross_entropy", &Table::cross_entropy>(t, plain);
  set<"vocabulary_stats", &Table::vocabulary_stats>(t, plain);
  set<"vocabulary_cross_entropy", &Table::vocabulary_cross_entropy>(t, plain);
  set<"draw", &Table::draw>(t, plain);
  set<"dropout", &Table::dropout>(t, plain);
  set<"add", &Table::add>(t, plain);
  set<"copy", &Table::copy>(t, plain);
  set<"fill", &Table::fill>(t, plain);
  set<"column_sum", &Table::column_sum>(t, plain);
  set<"sum", &Table::sum>(t, plain);
  set<"sum_of_squares", &Table::sum_of_squares>(t, plain);
  set<"grad_scale", &Table::grad_scale>(t, plain);
  set<"adam", &Table::adam>(t, plain);
  set<"sgd", &Table::sgd>(t, plain);
  set<"lion", &Table::lion>(t, plain);
  set<"muon_momentum", &Table::muon_momentum>(t, plain);
  set<"unit_norm", &Table::unit_norm>(t, plain);
  set<"weighted_sum", &Table::weighted_sum>(t, plain);
  return t;
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
