#include "nn/linear.h"

#include <numeric>

#include "base/error.h"
#include "ops/columns.h"
#include "ops/elementwise.h"

namespace megatron::nn {

// Adds b a x to outputs. Parameters <name>.0.weight (a) [rank,in] and <name>.1.weight (b)
// [out,rank].
struct ColumnLinear::Addition {
  Addition(Builder& builder, const std::string& name, int64_t in, std::vector<int64_t> blocks,
           int64_t rank, parallel::Init init)
      : a(builder, name + ".0", in, rank, false, init),
        b(builder, name + ".1", rank, std::move(blocks), false, init) {}
  ReplicatedLinear a;
  ColumnLinear b;
};

ColumnLinear::ColumnLinear(Builder& builder, const std::string& name, int64_t in,
                           std::vector<int64_t> blocks, bool bias, parallel::Init init)
    : tensor_(builder.tensor()) {
  const int64_t out = std::accumulate(blocks.begin(), blocks.end(), int64_t{0});
  const parallel::Division division{.axis = 0, .blocks = blocks};
  weight_ = builder.add(name + ".weight", {out, in}, init, {.divisions = {division}});
  builder.quantize(*weight_.parameter, {false, true, true});
  if (bias) bias_ = builder.add(name + ".bias", {out}, zeros(), {.divisions = {division}});
  adapter_ = builder.add_adapter(*weight_.parameter);
  if (builder.shared() == nullptr) return;
  const auto& additions = builder.shared()->additions;
  if (const auto found = additions.find(name); found != additions.end())
    add_additions(builder, found->second, in, std::move(blocks), init);
}

void ColumnLinear::add_additions(Builder& builder,
                                 const Builder::SharedModule::Additions& additions, int64_t in,
                                 std::vector<int64_t> blocks, parallel::Init init) {
  const Builder::SharedModule& module = *builder.shared();
  const Builder::SharedModule own{.layers = {module.layers.at(module.use)}};
  const Builder::Sharing of_this_use(builder, &own);
  const size_t count = additions.names.size();
  MG_ASSERT(count == 1 || count == blocks.size());
  for (size_t i = 0; i < count; ++i)
    additions_.push_back(std::make_shared<const Addition>(
        builder, additions.names[i], in, count == 1 ? blocks : std::vector{blocks[i]},
        additions.rank, init));
}

Var ColumnLinear::operator()(Tape& tape, const Var& x) const {
  const Var y = parallel::column_linear(tape, x, weight_, bias_, tensor_, adapter_);
  if (additions_.empty()) return y;
  Var sum;
  for (const auto& addition : additions_) {
    const Var part = addition->b(tape, addition->a(tape, x));
    sum = sum.value.defined() ? ops::join_columns(tape, sum, part) : part;
  }
  return ops::add(tape, y, sum);
}

RowLinear::RowLinear(Builder& builder, const std::string& name, int64_t in, int64_t out, bool bias,
                     parallel::Init init)
    : tensor_(builder.tensor()),
      weight_(builder.add(name + ".weight", {out, in}, init,
                          {.divisions = {{.axis = 1, .blocks = {in}}}})) {
  builder.quantize(*weight_.parameter, {true, true, false});
  if (bias) bias_ = builder.add(name + ".bias", {out}, zeros());
  adapter_ = builder.add_adapter(*weight_.parameter);
}

}  // namespace megatron::nn
