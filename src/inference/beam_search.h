// Beam search over the next tokens of one text, as transformers' generate() defines it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "inference/beam_options.h"
#include "inference/request.h"

namespace megatron::inference {

// Where texts end.
struct BeamLimits {
  std::vector<int32_t> end_tokens;
  int64_t min_tokens = 0;  // tokens before an end token may come
  int64_t max_tokens = 1;
  Finish at_most = Finish::length;  // reason for which a text ends that has max_tokens
  int64_t alternatives = 0;         // the most likely tokens to return with each token
};

// A text that the search has found. Its last token is an end token with Finish::end_token.
struct BeamResult {
  std::vector<GeneratedToken> tokens;
  double score = 0;  // sum of the tokens' log-probabilities / (number of tokens)^length_penalty
  Finish finish = Finish::length;
};

// One step continues the B running beams, each a text with the sum of its log-probabilities; the
// first step continues the single empty text. Of all continuations by one token, the K = B max(2, 1
// + number of end tokens) with the largest sums are candidates (ties: the lower beam, then the
// lower token). Those that end, and are among the first B, are texts found, of which the B with the
// best scores are kept. The first B others are the beams of the next step.
class BeamSearch {
 public:
  // A running beam, its parent among those of the step before and its last token.
  struct Running {
    size_t parent = 0;
    int32_t token = 0;
    double sum = 0;
    size_t node = 0;
  };

  BeamSearch(const BeamOptions& options, BeamLimits limits);

  // Number of most likely next tokens of each running beam that the next step needs.
  int64_t candidates() const;
  // next[b]: the most likely next tokens of running beam b, best first (ties: the lower token), at
  // least candidates() of them, or all of the vocabulary's. Those of log-probability -infinity are
  // left out.
  void step(std::span<const std::vector<Draw>> next);

  bool begun() const { return length_ > 0; }
  bool done() const { return done_; }
  int64_t length() const { return length_; }  // tokens of each running beam
  // Best first. Empty before the first step.
  std::span<const Running> running() const { return running_; }
  std::vector<int32_t> text(size_t beam) const;  // of a running beam

  // The tokens from index `from` on that all running beams and all texts found so far have in
  // common: those that can be returned begin with them. All must have the first `from` in common.
  std::vector<GeneratedToken> common(int64_t from) const;
  // The best texts found, best first; final once done().
  std::vector<BeamResult> results() const;

 private:
  struct Candidate {
    double sum = 0;
    size_t beam = 0;
    Draw draw;
  };
  // A token and the node of the token before it: kBegin for the first.
  struct Node {
    size_t before = 0;
    int64_t length = 0;  // tokens up to this one
    GeneratedToken token;
  };
  struct Found {
    size_t node = 0;
    double score = 0;
    Finish finish = Finish::length;
  };
  static constexpr size_t kBegin = SIZE_MAX;

  bool ends(int32_t token) const;
  double score_of(double sum, int64_t length) const;
  std::vector<Candidate> best_candidates(std::span<const std::vector<Draw>> next) const;
  size_t add_node(const Candidate& candidate, std::span<const std::vector<Draw>> next);
  void keep_best();
  bool stops() const;
  std::vector<GeneratedToken> tokens_up_to(size_t node, int64_t from) const;

  const BeamOptions options_;
  const BeamLimits limits_;  // end tokens are sorted and distinct
  std::vector<Node> nodes_;
  std::vector<Running> running_;
  std::vector<Found> found_;  // best first
  int64_t length_ = 0;
  bool done_ = false;
};

}  // namespace megatron::inference
