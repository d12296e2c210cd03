// Agreement between the ranks of a save.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/error.h"
#include "comm/group.h"

namespace megatron::checkpoint {

// Error that every rank throws at the same place, so that all may go on. Any other error may occur
// on one rank alone while others wait for it, and ends that rank's run.
class AgreedError : public Error {
 public:
  using Error::Error;
};

// Collective. `error` is this rank's error, "" for none: every rank throws AgreedError with the
// text of the first rank that has one. `plan` must be equal on all ranks; if it is not, that is the
// error.
void agree(comm::Group& ranks, Stream& stream, const std::string& error, uint64_t plan,
           std::string_view call);

// Collective. Sets each value to that of the one rank where it is not zero.
void put_together(comm::Group& ranks, Stream& stream, std::span<uint64_t> values,
                  std::string_view call);

}  // namespace megatron::checkpoint
