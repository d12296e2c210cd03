// Settings of the cuDNN that interpreter.cpp simulates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

struct PlayedEngine {
  bool noted_nondeterministic = false;
  // Workspace in bytes. By default, the size of the largest tensor in a graph with more than two
  // products, such as backward, and none in a graph that has memory to add them in.
  std::optional<int64_t> workspace = std::nullopt;
};

extern std::vector<PlayedEngine> played_engines;  // proposed for a graph, in this order
extern size_t played_cudnn_version;
extern int64_t played_launches;  // number of plans launched so far
