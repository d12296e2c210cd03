// The cuDNN that interpreter.cpp plays, as a test says it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

struct PlayedEngine {
  bool noted_nondeterministic = false;
  // Bytes; else those of the largest tensor of a graph with more than two products, as backward
  // has, and none of one that has memory to add them in.
  std::optional<int64_t> workspace = std::nullopt;
};

extern std::vector<PlayedEngine>
    played_engines;  // that it proposes for a graph, the first one first
extern size_t played_cudnn_version;
extern int64_t played_launches;  // of plans, so far
