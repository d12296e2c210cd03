// A group that makes the calls of another one: the base class of groups that change some of them.
#pragma once

#include <memory>
#include <utility>

#include "comm/group.h"

namespace megatron::comm {

class WrappedGroup : public Group {
 public:
  explicit WrappedGroup(Group& borrowed) : group_(borrowed) {}
  explicit WrappedGroup(std::unique_ptr<Group> owned) : owned_(std::move(owned)), group_(*owned_) {}

  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
  Work make(GroupCall call, Stream& stream) override {
    return group_.make(std::move(call), stream);
  }
  void barrier(std::string_view call) override { group_.barrier(call); }
  void set_name(std::string_view name) override { group_.set_name(name); }
  double seconds() const override { return group_.seconds(); }
  bool immediate() const override { return group_.immediate(); }
  void give_up() override { group_.give_up(); }
  Doing* doing() override { return group_.doing(); }
  Member* member() override { return group_.member(); }

 private:
  const std::unique_ptr<Group> owned_;

 protected:
  Group& group_;
};

}  // namespace megatron::comm
