// A run that takes seconds and saves a checkpoint after each step.
#pragma once

#include <gtest/gtest.h>

#include "golden/cli/process.h"
#include "golden/selftest/support.h"

namespace megatron::testing {

inline Words tiny_train(int steps, int ranks = 1) {
  return {"train",
          "--num-layers",
          "1",
          "--hidden-size",
          "16",
          "--num-attention-heads",
          "2",
          "--seq-length",
          "16",
          "--micro-batch-size",
          "1",
          "--global-batch-size",
          "2",
          "--train-iters",
          std::to_string(steps),
          "--lr",
          "1e-3",
          "--lr-decay-style",
          "constant",
          "--position-embedding-type",
          "rope",
          "--normalization",
          "RMSNorm",
          "--swiglu",
          "--disable-bias-linear",
          "--hidden-dropout",
          "0",
          "--attention-dropout",
          "0",
          "--tokenizer-model",
          vectors("indexed/preprocess/tokenizer_bpe2k"),
          "--data-path",
          "data",
          "--split",
          "1,0,0",
          "--ranks",
          std::to_string(ranks),
          "--threads",
          "1"};
}

// Creates place/data, and place/run with the checkpoints of steps 1 and 2.
inline void make_tiny_run(const Workplace& place) {
  for (const char* suffix : {".bin", ".idx"}) {
    std::filesystem::copy(vectors("indexed/preprocess/bpe2k_eod_text_document") + suffix,
                          place / ("data" + std::string(suffix)));
  }
  const Outcome r = place.run(with(tiny_train(2), {"--save", "run", "--save-interval", "1"}));
  ASSERT_EQ(r.code, 0) << r.out << r.err;
}

}  // namespace megatron::testing
