// A group whose calls each take some time without using the caller's core, as over a slow link.
#pragma once

#include <chrono>
#include <memory>
#include <thread>

#include "comm/wrapped_group.h"

namespace megatron::comm {

// Groups split from it also delay.
class Delaying final : public WrappedGroup {
 public:
  using Duration = std::chrono::duration<double, std::milli>;

  // Takes ownership of the group.
  Delaying(std::unique_ptr<Group> group, Duration delay)
      : WrappedGroup(std::move(group)), delay_(delay) {}
  // Does not own the group.
  Delaying(Group& group, Duration delay) : WrappedGroup(group), delay_(delay) {}

  Work make(GroupCall call, Stream& stream) override {
    pass();
    return group_.make(std::move(call), stream);
  }
  void barrier(std::string_view call) override {
    pass();
    group_.barrier(call);
  }
  std::unique_ptr<Group> split(int color, int key, int members) override {
    return std::make_unique<Delaying>(group_.split(color, key, members), delay_);
  }
  // Every call waits, so callers must treat a group of one rank like one of several.
  double seconds() const override { return 0; }
  bool immediate() const override { return false; }
  Member* member() override { return nullptr; }

 private:
  void pass() const { std::this_thread::sleep_for(delay_); }

  const Duration delay_;
};

}  // namespace megatron::comm
