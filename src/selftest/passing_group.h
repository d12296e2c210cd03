// A group that forwards every call to another one: the base class of deliberate faults.
#pragma once

#include <memory>
#include <utility>

#include "comm/group.h"

namespace megatron::selftest {

// class Dropped final : public PassingGroup<Dropped> { using PassingGroup::PassingGroup; ... }
// overrides the calls that it changes. Groups split from it have the same class.
template <class Derived>
class PassingGroup : public comm::Group {
 public:
  explicit PassingGroup(comm::Group& borrowed) : group_(borrowed) {}
  explicit PassingGroup(std::unique_ptr<comm::Group> owned)
      : owned_(std::move(owned)), group_(*owned_) {}

  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
  comm::Work all_reduce(Tensor t, comm::Reduce op, Stream& stream, std::string_view call) override {
    return group_.all_reduce(t, op, stream, call);
  }
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
    return std::make_unique<Derived>(group_.split(color, key, members));
  }
  void set_name(std::string_view name) override { group_.set_name(name); }
  double seconds() const override { return group_.seconds(); }
  bool immediate() const override { return group_.immediate(); }
  void give_up() override { group_.give_up(); }
  comm::Doing* doing() override { return group_.doing(); }

 private:
  std::unique_ptr<comm::Group> owned_;
  comm::Group& group_;
};

}  // namespace megatron::selftest
