// Options of beam search.
#pragma once

#include <cstdint>

namespace megatron::inference {

// When a beam search stops that has found as many whole texts as it has beams: at once (yes); when
// the best running beam, if it ended now, would score no better than the worst text found (no); or
// when none that continues can (never). As `early_stopping` of transformers: true, false, "never".
enum class EarlyStopping : uint8_t { no, yes, never };

// A beam search (inference/beam_search.h) in place of sampling.
struct BeamOptions {
  static constexpr int64_t kMostBeams = 1024;

  int64_t beams = 1;     // texts that are continued at a time
  int64_t returned = 1;  // of the texts found, the best ones; at most `beams`
  // Exponent p of a text's score, its log-probability / length^p: above 0 favours long texts, below
  // 0 short ones.
  double length_penalty = 1;
  EarlyStopping early_stopping = EarlyStopping::no;
  bool operator==(const BeamOptions&) const = default;
};

}  // namespace megatron::inference
