// A rank of a group, as seen by code that carries a part of its calls elsewhere (comm/gpu/group.h).
#pragma once

#include <memory>
#include <string>

#include "comm/rank_record.h"

namespace megatron::comm {

class Member {
 public:
  virtual ~Member() = default;
  virtual RankRecord& record() = 0;                            // of the rank
  virtual const std::shared_ptr<GroupRecord>& progress() = 0;  // of the rank in this group
  // Reason why calls of this group throw: another rank has failed, or this one; empty: they do not.
  // Thread-safe.
  virtual std::string failure() const = 0;
};

}  // namespace megatron::comm
