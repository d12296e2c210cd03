// A group that forwards every call to another one: the base class of deliberate faults.
#pragma once

#include <memory>

#include "comm/wrapped_group.h"

namespace megatron::selftest {

// class Dropped final : public PassingGroup<Dropped> { using PassingGroup::PassingGroup; ... }
// overrides make() for the calls that it changes. Groups split from it have the same class.
template <class Derived>
class PassingGroup : public comm::WrappedGroup {
 public:
  using WrappedGroup::WrappedGroup;
  std::unique_ptr<comm::Group> split(int color, int key, int members) override {
    return std::make_unique<Derived>(group_.split(color, key, members));
  }
  comm::Member* member() override { return nullptr; }  // calls on GPU tensors pass here, too
};

}  // namespace megatron::selftest
