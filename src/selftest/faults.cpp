#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/fields.h"
#include "selftest/environment.h"

namespace megatron::selftest {
namespace {

// Passes everything on but for all_reduce.
class WithoutAllReduce final : public comm::Group {
 public:
  explicit WithoutAllReduce(comm::Group& group) : group_(group) {}
  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
  comm::Work all_reduce(Tensor, comm::Reduce, Stream&, std::string_view) override { return {}; }
  comm::Work all_gather(Tensor in, Tensor out, Stream& stream, std::string_view call) override {
    return group_.all_gather(in, out, stream, call);
  }
  comm::Work reduce_scatter(Tensor in, Tensor out, comm::Reduce op, Stream& stream,
                            std::string_view call) override {
    return group_.reduce_scatter(in, out, op, stream, call);
  }
  comm::Work all_to_all(Tensor in, Tensor out, std::span<const int64_t> send_counts,
                        std::span<const int64_t> receive_counts, Stream& stream,
                        std::string_view call) override {
    return group_.all_to_all(in, out, send_counts, receive_counts, stream, call);
  }
  comm::Work broadcast(Tensor t, int root, Stream& stream, std::string_view call) override {
    return group_.broadcast(t, root, stream, call);
  }
  comm::Work send(Tensor t, int to, Stream& stream, std::string_view call) override {
    return group_.send(t, to, stream, call);
  }
  comm::Work recv(Tensor t, int from, Stream& stream, std::string_view call) override {
    return group_.recv(t, from, stream, call);
  }
  void barrier(std::string_view call) override { group_.barrier(call); }
  std::unique_ptr<comm::Group> split(int color, int key, int members) override {
    return group_.split(color, key, members);
  }

 private:
  comm::Group& group_;
};

void doubled_embedding_backward(const kernels::EmbeddingBackwardArgs& args, Stream& stream) {
  kernels::table(stream).embedding_backward(args, stream);
  kernels::EmbeddingBackwardArgs again = args;
  again.dtable.beta = 1;
  kernels::table(stream).embedding_backward(again, stream);
}

void shifted_rope(const kernels::RopeArgs& args, Stream& stream) {
  kernels::RopeArgs shifted = args;
  shifted.interleaved = !args.interleaved;
  kernels::table(stream).rope(shifted, stream);
}

void shifted_cross_entropy(const kernels::CrossEntropyArgs& args, Stream& stream) {
  kernels::CrossEntropyArgs shifted = args;
  shifted.labels = Tensor::empty(stream.scratch(), args.labels.shape(), DType::i32, "labels");
  const std::span<const int32_t> from = args.labels.span<int32_t>();
  const std::span<int32_t> to = shifted.labels.span<int32_t>();
  for (size_t i = 0; i < to.size(); ++i)
    to[i] = std::max(from[(i + 1) % from.size()], 0);  // one that is not read may be -100
  kernels::table(stream).cross_entropy(shifted, stream);
}

Environment with_kernels(void (*change)(kernels::Table&)) {
  auto tables = std::make_shared<std::map<DeviceKind, kernels::Table>>();
  for (const DeviceKind kind : {DeviceKind::reference, DeviceKind::cpu}) {
    change(tables->emplace(kind, kernels::table(kind)).first->second);
  }
  Environment environment;
  environment.table = [tables](DeviceKind kind) { return &tables->at(kind); };
  return environment;
}

}  // namespace

std::vector<std::string> fault_names() {
  return {"dropped-all-reduce", "doubled-gradient", "shifted-rope-pairing", "off-by-one-label"};
}

Environment faulty_environment(const std::string& fault) {
  if (fault == "dropped-all-reduce") {
    Environment environment;
    environment.wrap = [](comm::Group& group) { return std::make_unique<WithoutAllReduce>(group); };
    return environment;
  }
  if (fault == "doubled-gradient") {
    return with_kernels(
        [](kernels::Table& table) { table.embedding_backward = doubled_embedding_backward; });
  }
  if (fault == "shifted-rope-pairing")
    return with_kernels([](kernels::Table& table) { table.rope = shifted_rope; });
  if (fault == "off-by-one-label") {
    return with_kernels([](kernels::Table& table) { table.cross_entropy = shifted_cross_entropy; });
  }
  const std::string near = nearest(fault, fault_names());
  fail("there is no fault '{}'{}", fault,
       near.empty() ? "" : fmt::format("; did you mean '{}'?", near));
}

}  // namespace megatron::selftest
