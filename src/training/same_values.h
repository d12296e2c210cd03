// Values that must be equal on all processes of a run.
#pragma once

#include <string>
#include <vector>

#include "comm/group.h"

namespace megatron::training {

struct ComparedSetting {
  std::string name;   // "--lr"; "--data-path, data set 2"
  std::string value;  // what must be the same
  std::string shown;  // the value as errors show it, with the process's own path
};

// Collective. Throws the same Error on all ranks if `own` differs between ranks: it names each
// differing setting with its values and their ranks or, if the first of `own` differs (which
// determines the others), only that one. Makes one small call if all are equal; the settings
// themselves are only exchanged if they are not.
void require_same(comm::Group& ranks, Stream& stream, const std::vector<ComparedSetting>& own);

}  // namespace megatron::training
