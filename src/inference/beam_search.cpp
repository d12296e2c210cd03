#include "inference/beam_search.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"

namespace megatron::inference {
namespace {

BeamLimits with_distinct_ends(BeamLimits limits) {
  std::ranges::sort(limits.end_tokens);
  const auto repeated = std::ranges::unique(limits.end_tokens);
  limits.end_tokens.erase(repeated.begin(), repeated.end());
  return limits;
}

}  // namespace

BeamSearch::BeamSearch(const BeamOptions& options, BeamLimits limits)
    : options_(options), limits_(with_distinct_ends(std::move(limits))) {
  MG_ASSERT(options.beams > 0 && options.returned > 0 && options.returned <= options.beams &&
            limits_.max_tokens > 0);
}

bool BeamSearch::ends(int32_t token) const {
  return std::ranges::binary_search(limits_.end_tokens, token);
}

double BeamSearch::score_of(double sum, int64_t length) const {
  return sum / std::pow(static_cast<double>(length), options_.length_penalty);
}

int64_t BeamSearch::candidates() const {
  // Any further token of a beam comes after as many of the same beam that do not end the text as
  // there are beams. So it is neither a beam of the next step nor among the first that may end.
  return std::max(options_.beams + std::ssize(limits_.end_tokens), limits_.alternatives);
}

std::vector<BeamSearch::Candidate> BeamSearch::best_candidates(
    std::span<const std::vector<Draw>> next) const {
  const bool may_end = length_ >= limits_.min_tokens;
  std::vector<Candidate> all;
  for (size_t beam = 0; beam < next.size(); ++beam) {
    const double sum = begun() ? running_[beam].sum : 0;
    for (const Draw& draw : next[beam])
      if (std::isfinite(draw.log_probability) && (may_end || !ends(draw.token)))
        all.push_back({sum + draw.log_probability, beam, draw});
  }
  std::ranges::sort(all, [](const Candidate& a, const Candidate& b) {
    if (a.sum != b.sum) return a.sum > b.sum;
    return std::pair(a.beam, a.draw.token) < std::pair(b.beam, b.draw.token);
  });
  const int64_t ends = std::ssize(limits_.end_tokens);
  const auto kept = static_cast<size_t>(options_.beams * std::max<int64_t>(2, 1 + ends));
  if (all.size() > kept) all.resize(kept);
  return all;
}

size_t BeamSearch::add_node(const Candidate& candidate, std::span<const std::vector<Draw>> next) {
  const std::vector<Draw>& likely = next[candidate.beam];
  const auto wanted = static_cast<size_t>(std::min(limits_.alternatives, std::ssize(likely)));
  nodes_.push_back(
      {.before = begun() ? running_[candidate.beam].node : kBegin,
       .length = length_ + 1,
       .token = {candidate.draw, {likely.begin(), likely.begin() + static_cast<int64_t>(wanted)}}});
  return nodes_.size() - 1;
}

void BeamSearch::step(std::span<const std::vector<Draw>> next) {
  MG_ASSERT(!done_ && next.size() == (begun() ? running_.size() : 1));
  const auto beams = static_cast<size_t>(options_.beams);
  const int64_t length = length_ + 1;
  const bool last = length == limits_.max_tokens;
  std::vector<Running> running;
  const std::vector<Candidate> candidates = best_candidates(next);
  for (size_t place = 0; place < candidates.size(); ++place) {
    const Candidate& candidate = candidates[place];
    const bool end = ends(candidate.draw.token);
    if (end || last) {
      if (place >= beams) continue;
      found_.push_back({add_node(candidate, next), score_of(candidate.sum, length),
                        end ? Finish::end_token : limits_.at_most});
    } else if (running.size() < beams) {
      running.push_back(
          {candidate.beam, candidate.draw.token, candidate.sum, add_node(candidate, next)});
    }
  }
  keep_best();
  running_ = std::move(running);
  length_ = length;
  done_ = stops();
}

void BeamSearch::keep_best() {
  std::ranges::stable_sort(found_, std::ranges::greater(), &Found::score);
  const auto beams = static_cast<size_t>(options_.beams);
  if (found_.size() > beams) found_.resize(beams);
}

bool BeamSearch::stops() const {
  if (running_.empty()) return true;
  if (std::ssize(found_) < options_.beams) return false;
  if (options_.early_stopping == EarlyStopping::yes) return true;
  const bool grows = options_.early_stopping == EarlyStopping::never && options_.length_penalty > 0;
  const double best = score_of(running_[0].sum, grows ? limits_.max_tokens : length_);
  return best <= found_.back().score;
}

std::vector<GeneratedToken> BeamSearch::tokens_up_to(size_t node, int64_t from) const {
  std::vector<GeneratedToken> tokens;
  for (; node != kBegin && nodes_[node].length > from; node = nodes_[node].before)
    tokens.push_back(nodes_[node].token);
  std::ranges::reverse(tokens);
  return tokens;
}

std::vector<int32_t> BeamSearch::text(size_t beam) const {
  std::vector<int32_t> tokens;
  for (size_t node = running_[beam].node; node != kBegin; node = nodes_[node].before)
    tokens.push_back(nodes_[node].token.draw.token);
  std::ranges::reverse(tokens);
  return tokens;
}

std::vector<GeneratedToken> BeamSearch::common(int64_t from) const {
  std::vector<size_t> ends;
  for (const Running& beam : running_) ends.push_back(beam.node);
  for (const Found& text : found_) ends.push_back(text.node);
  if (ends.empty()) return {};
  const auto length_of = [&](size_t node) { return node == kBegin ? 0 : nodes_[node].length; };
  size_t shared = ends[0];
  for (size_t node : ends) {
    while (node != shared) {
      size_t& longer = length_of(node) > length_of(shared) ? node : shared;
      longer = nodes_[longer].before;
    }
  }
  return tokens_up_to(shared, from);
}

std::vector<BeamResult> BeamSearch::results() const {
  std::vector<BeamResult> results;
  for (const Found& text : found_) {
    if (std::ssize(results) == options_.returned) break;
    results.push_back({tokens_up_to(text.node, 0), text.score, text.finish});
  }
  return results;
}

}  // namespace megatron::inference
