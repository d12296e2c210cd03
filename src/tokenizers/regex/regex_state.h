// State of RegexProgram during a match.
#pragma once

#include <cstdint>
#include <vector>

namespace megatron::tokenizers {

struct RegexState {
  // A backtracking point: for a run, characters can be given back from `at` down to `least`; for a
  // choice, `left` holds the alternatives that were not tried.
  struct Place {
    uint32_t pc;
    const char* at;
    union {
      const char* least;
      uint64_t left;
    };
  };
  std::vector<Place> places;
  int64_t steps = 0;  // remaining in this search
  bool exhausted = false;
};

}  // namespace megatron::tokenizers
