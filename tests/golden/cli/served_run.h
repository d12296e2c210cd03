// Makes the runs whose models `megatron serve` serves.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "golden/cli/process.h"
#include "golden/selftest/support.h"

namespace megatron::testing {

// Saves an untrained model with --save NAME; its tokenizer is in `t`.
inline void make_served_run(const Workplace& place, const std::string& shape,
                            const std::string& name, int seed = 1234) {
  if (!std::filesystem::exists(place / "t")) {
    const std::string text = vectors("indexed/preprocess/corpus.jsonl");
    const Outcome r = place.run(
        with(words("tokenizer train --output t --vocab-size 300 --special-tokens <|endoftext|>"),
             {"--input", text}));
    ASSERT_EQ(r.code, 0) << r.err;
  }
  const Outcome r = place.run(
      words("train --hidden-size 16 --num-attention-heads 2 --micro-batch-size 1 --train-iters 1 "
            "--lr 1e-5 --mock-data --tokenizer-model t --seed " +
            std::to_string(seed) + " --save " + name + " " + shape));
  ASSERT_EQ(r.code, 0) << r.err;
}

// Waits for the port that the server prints; 0 if the server has ended. host: as in its address.
inline int served_port(const Workplace& place, const Background& server,
                       const std::string& host = "127.0.0.1") {
  const std::string before = "http://" + host + ":";
  while (!server.ended()) {
    const std::string file = place.path() + ".err";
    const std::string log = std::filesystem::exists(file) ? read_file(file) : "";
    const size_t at = log.find(before);
    if (at != log.npos && log.find('\n', at) != log.npos)
      return std::atoi(log.c_str() + at + before.size());
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return 0;
}

}  // namespace megatron::testing
