#include "nn/linear.h"

#include <numeric>

namespace megatron::nn {

ColumnLinear::ColumnLinear(Builder& builder, const std::string& name, int64_t in,
                           std::vector<int64_t> blocks, bool bias, parallel::Init init)
    : tensor_(builder.tensor()) {
  const int64_t out = std::accumulate(blocks.begin(), blocks.end(), int64_t{0});
  const parallel::Division division{.axis = 0, .blocks = std::move(blocks)};
  weight_ = builder.add(name + ".weight", {out, in}, init, {.divisions = {division}});
  if (bias) bias_ = builder.add(name + ".bias", {out}, zeros(), {.divisions = {division}});
  adapter_ = builder.add_adapter(*weight_.parameter);
}

RowLinear::RowLinear(Builder& builder, const std::string& name, int64_t in, int64_t out, bool bias,
                     parallel::Init init)
    : tensor_(builder.tensor()),
      weight_(builder.add(name + ".weight", {out, in}, init,
                          {.divisions = {{.axis = 1, .blocks = {in}}}})) {
  if (bias) bias_ = builder.add(name + ".bias", {out}, zeros());
  adapter_ = builder.add_adapter(*weight_.parameter);
}

}  // namespace megatron::nn
