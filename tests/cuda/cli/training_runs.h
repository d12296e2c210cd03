// Small training runs of the program on a device.
#pragma once

#include <cmath>
#include <filesystem>
#include <sstream>

#include "base/json.h"
#include "golden/cli/tiny_run.h"

namespace megatron::testing {

namespace fs = std::filesystem;

inline const char* const kModel =
    "--mock-data --vocab-size 203 --num-layers 2 --hidden-size 64 --num-attention-heads 4 "
    "--seq-length 64 --max-position-embeddings 64 --micro-batch-size 2 --global-batch-size 4 --lr "
    "1e-3 --lr-decay-iters 6 --log-interval 1 --threads 1 ";

struct Step {
  double loss = 0, gradient_norm = 0;  // NAN if the step was skipped
  bool operator==(const Step& other) const {
    const bool both_left_out = std::isnan(gradient_norm) && std::isnan(other.gradient_norm);
    return loss == other.loss && (both_left_out || gradient_norm == other.gradient_norm);
  }
};

inline std::vector<Json> steps_of(const std::string& log) {
  std::istringstream lines(read_file(log));
  std::vector<Json> steps;
  for (std::string line; std::getline(lines, line);) {
    Json record = Json::parse(line);
    if (record["type"].as_string() == "step") steps.push_back(std::move(record));
  }
  return steps;
}

// printed: receives the run's output, if given.
inline std::vector<Step> train(const Workplace& place, const std::string& device, int steps,
                               const std::string& flags, std::string* printed = nullptr) {
  const std::string log = place / (device + ".jsonl");
  fs::remove(log);
  const Outcome r = place.run(with(with({"train", "--device", device}, words(kModel + flags)),
                                   {"--train-iters", std::to_string(steps), "--log-jsonl", log}));
  EXPECT_EQ(r.code, 0) << r.out << r.err;
  if (printed != nullptr) *printed = r.out + r.err;
  std::vector<Step> found;
  for (const Json& record : steps_of(log)) {
    const Json& norm = record["gradient_norm"];
    found.push_back({record["loss"].as_number(), norm.is_null() ? NAN : norm.as_number()});
  }
  return found;
}

}  // namespace megatron::testing
