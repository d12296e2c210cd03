// What the ranks of a save tell each other.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/error.h"
#include "comm/group.h"

namespace megatron::checkpoint {

// What every rank throws at the same place, so that all may go on. Any other error may be one rank's
// alone, while others wait for it: that rank's run is over.
class AgreedError : public Error {
 public:
  using Error::Error;
};

// Collective. `error` is what went wrong on this rank, "" for nothing: every rank throws AgreedError
// with the text of the first rank that has one. `plan` is what must be equal on all ranks, or that is
// the error.
void agree(comm::Group& ranks, Stream& stream, const std::string& error, uint64_t plan,
           std::string_view call);

// Collective. Each value is that of the one rank where it is not zero.
void put_together(comm::Group& ranks, Stream& stream, std::span<uint64_t> values,
                  std::string_view call);

}  // namespace megatron::checkpoint
