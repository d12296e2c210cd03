// Helpers for the tests of checkpoints on several ranks.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "dist/ranks.h"
#include "unit/checkpoint/support.h"

namespace megatron::checkpoint {

// Contents of each file of a directory.
inline std::map<std::string, std::string> texts(const std::string& path) {
  std::map<std::string, std::string> texts;
  for (const auto& entry : std::filesystem::directory_iterator(path))
    texts[entry.path().filename().string()] = read_file(entry.path().string());
  return texts;
}

// The error of all ranks. Each must have the same text.
inline std::string error_of_ranks(int ranks,
                                  const std::function<void(comm::Group&, Runtime&)>& body) {
  std::mutex mutex;
  std::set<std::string> errors;
  testing::each_rank(ranks, [&](comm::Group& world, Runtime& runtime) {
    const std::string error = error_of([&] { body(world, runtime); });
    const std::lock_guard lock(mutex);
    errors.insert(error);
  });
  EXPECT_EQ(errors.size(), 1u) << *errors.begin() << "\n" << *errors.rbegin();
  return *errors.begin();
}

}  // namespace megatron::checkpoint
