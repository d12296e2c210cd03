#include "base/error.h"
#include "comm/arguments.h"
#include "comm/traffic.h"

namespace megatron::comm {

namespace {

class Simulated final : public Group {
 public:
  Simulated(int rank, int size) : rank_(rank), size_(size) {
    MG_ASSERT(size >= 1 && rank >= 0 && rank < size);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  Work make(GroupCall c, Stream&) override {
    check_call(c, size_);
    return {Event(), c.tensors()};
  }

  void barrier(std::string_view) override {}
  bool immediate() const override { return true; }

  // The others' keys are unknown: the ranks of a colour are assumed to be consecutive in the order
  // of their keys, and this one to be the key-th if there are that many.
  std::unique_ptr<Group> split(int, int key, int members) override {
    MG_ASSERT(members >= 1 && members <= size_);
    return simulated(key >= 0 && key < members ? key : 0, members);
  }

 private:
  int rank_, size_;
};

}  // namespace

std::unique_ptr<Group> simulated(int rank, int size) {
  return std::make_unique<Simulated>(rank, size);
}

double sent_bytes(const Traffic& traffic) {
  const std::string_view c = traffic.collective;
  const double bytes = static_cast<double>(traffic.bytes);
  const double others = static_cast<double>(traffic.ranks - 1) / traffic.ranks;
  if (c == "all_reduce") return 2 * others * bytes;
  if (c == "all_gather" || c == "reduce_scatter") return others * bytes;
  if (c == "all_to_all") return static_cast<double>(traffic.to_others);
  if (c == "broadcast" || c == "send") return bytes;
  MG_ASSERT(c == "recv" || c == "barrier" || c == "split");
  return 0;
}

}  // namespace megatron::comm
