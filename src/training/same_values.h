// Values that all processes of a run must have alike.
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

// Collective. Throws the same Error on all ranks where `own` is not the same on all: it names each
// setting with its values and their ranks, or, where the first of `own` differs (what decides which
// others there are), that one alone. One small call where all are the same; the settings themselves
// travel only where they are not.
void require_same(comm::Group& ranks, Stream& stream, const std::vector<ComparedSetting>& own);

}  // namespace megatron::training
