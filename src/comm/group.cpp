#include "comm/group.h"

#include <utility>

#include "base/error.h"

namespace megatron::comm {

std::string_view name(Operation operation) {
  switch (operation) {
    case Operation::all_reduce: return "all_reduce";
    case Operation::all_gather: return "all_gather";
    case Operation::reduce_scatter: return "reduce_scatter";
    case Operation::all_to_all: return "all_to_all";
    case Operation::broadcast: return "broadcast";
    case Operation::send: return "send";
    case Operation::recv: return "recv";
  }
  MG_ASSERT(false);
}

std::vector<Tensor> GroupCall::tensors() const {
  return out.defined() ? std::vector{in, out} : std::vector{in};
}

Work Group::all_reduce(Tensor t, Reduce op, Stream& stream, std::string_view call) {
  return make({Operation::all_reduce, call, std::move(t), {}, op}, stream);
}

Work Group::all_gather(Tensor in, Tensor out, Stream& stream, std::string_view call) {
  return make({Operation::all_gather, call, std::move(in), std::move(out)}, stream);
}

Work Group::reduce_scatter(Tensor in, Tensor out, Reduce op, Stream& stream,
                           std::string_view call) {
  return make({Operation::reduce_scatter, call, std::move(in), std::move(out), op}, stream);
}

Work Group::all_to_all(Tensor in, Tensor out, std::span<const int64_t> send_counts,
                       std::span<const int64_t> receive_counts, Stream& stream,
                       std::string_view call) {
  return make({.operation = Operation::all_to_all,
               .name = call,
               .in = std::move(in),
               .out = std::move(out),
               .send_counts = send_counts,
               .receive_counts = receive_counts},
              stream);
}

Work Group::broadcast(Tensor t, int root, Stream& stream, std::string_view call) {
  return make({.operation = Operation::broadcast, .name = call, .in = std::move(t), .peer = root},
              stream);
}

Work Group::send(Tensor t, int to, Stream& stream, std::string_view call) {
  return make({.operation = Operation::send, .name = call, .in = std::move(t), .peer = to}, stream);
}

Work Group::recv(Tensor t, int from, Stream& stream, std::string_view call) {
  return make({.operation = Operation::recv, .name = call, .in = std::move(t), .peer = from},
              stream);
}

}  // namespace megatron::comm
