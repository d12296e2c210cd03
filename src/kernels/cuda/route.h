// CUDA's routing of tokens to experts; contracts in kernels/route.h and kernels/router_loss.h.
#pragma once

#include "device/stream.h"
#include "kernels/route.h"
#include "kernels/router_loss.h"

namespace megatron::kernels::cuda {

void route(const RouteArgs& args, Stream& stream);
void route_backward(const RouteBackwardArgs& args, Stream& stream);
void expert_counts(const ExpertCountsArgs& args, Stream& stream);
void expert_shares(const ExpertSharesArgs& args, Stream& stream);
void expert_bias(const ExpertBiasArgs& args, Stream& stream);

void router_sums(const RouterSumsArgs& args, Stream& stream);
void router_loss_backward(const RouterLossBackwardArgs& args, Stream& stream);

}  // namespace megatron::kernels::cuda
