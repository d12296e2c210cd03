// A group each of whose calls takes some time in which its caller's core is free, as over a slow
// link.
#pragma once

#include <chrono>
#include <memory>
#include <thread>

#include "comm/group.h"

namespace megatron::testing {

// Groups split from it delay as well.
class Delaying final : public comm::Group {
 public:
  using Duration = std::chrono::duration<double, std::milli>;

  // Takes the group over.
  Delaying(std::unique_ptr<comm::Group> group, Duration delay)
      : owned_(std::move(group)), group_(*owned_), delay_(delay) {}
  // Borrows it.
  Delaying(comm::Group& group, Duration delay) : group_(group), delay_(delay) {}

  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }

  comm::Work all_reduce(Tensor t, comm::Reduce op, Stream& stream, std::string_view call) override {
    pass();
    return group_.all_reduce(std::move(t), op, stream, call);
  }
  comm::Work all_gather(Tensor in, Tensor out, Stream& stream, std::string_view call) override {
    pass();
    return group_.all_gather(std::move(in), std::move(out), stream, call);
  }
  comm::Work reduce_scatter(Tensor in, Tensor out, comm::Reduce op, Stream& stream,
                            std::string_view call) override {
    pass();
    return group_.reduce_scatter(std::move(in), std::move(out), op, stream, call);
  }
  comm::Work all_to_all(Tensor in, Tensor out, std::span<const int64_t> send_counts,
                        std::span<const int64_t> receive_counts, Stream& stream,
                        std::string_view call) override {
    pass();
    return group_.all_to_all(std::move(in), std::move(out), send_counts, receive_counts, stream,
                             call);
  }
  comm::Work broadcast(Tensor t, int root, Stream& stream, std::string_view call) override {
    pass();
    return group_.broadcast(std::move(t), root, stream, call);
  }
  comm::Work send(Tensor t, int to, Stream& stream, std::string_view call) override {
    pass();
    return group_.send(std::move(t), to, stream, call);
  }
  comm::Work recv(Tensor t, int from, Stream& stream, std::string_view call) override {
    pass();
    return group_.recv(std::move(t), from, stream, call);
  }
  void barrier(std::string_view call) override {
    pass();
    group_.barrier(call);
  }
  std::unique_ptr<comm::Group> split(int color, int key, int members) override {
    return std::make_unique<Delaying>(group_.split(color, key, members), delay_);
  }
  void set_name(std::string_view name) override { group_.set_name(name); }
  void give_up() override { group_.give_up(); }
  comm::Doing* doing() override { return group_.doing(); }

 private:
  void pass() const { std::this_thread::sleep_for(delay_); }

  std::unique_ptr<comm::Group> owned_;
  comm::Group& group_;
  const Duration delay_;
};

}  // namespace megatron::testing
