#include "inference/beam_search.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/philox.h"

namespace megatron::inference {
namespace {

// A model whose next token depends on the last one only: probabilities[last][next].
using Table = std::vector<std::vector<double>>;

std::vector<Draw> next_of(const std::vector<double>& probabilities, int64_t count) {
  std::vector<Draw> draws;
  for (size_t id = 0; id < probabilities.size(); ++id)
    draws.push_back({static_cast<int32_t>(id), std::log(probabilities[id])});
  std::ranges::stable_sort(draws, std::ranges::greater(), &Draw::log_probability);
  draws.resize(std::min(draws.size(), static_cast<size_t>(count)));
  return draws;
}

std::vector<std::vector<Draw>> next_of(const Table& table, const BeamSearch& search) {
  if (!search.begun()) return {next_of(table[0], search.candidates())};
  std::vector<std::vector<Draw>> next;
  for (const auto& beam : search.running())
    next.push_back(next_of(table[static_cast<size_t>(beam.token)], search.candidates()));
  return next;
}

void run(const Table& table, BeamSearch& search) {
  while (!search.done()) search.step(next_of(table, search));
}

std::vector<int32_t> ids_of(const std::vector<GeneratedToken>& tokens) {
  std::vector<int32_t> ids;
  for (const GeneratedToken& token : tokens) ids.push_back(token.draw.token);
  return ids;
}

using Ids = std::vector<int32_t>;

constexpr int32_t kEnd = 3;

TEST(BeamSearch, EqualSumsGoToTheLowerBeamAndThenToTheLowerToken) {
  const Table equal(4, std::vector<double>(4, 0.25));
  BeamSearch search({.beams = 2, .returned = 2}, {.end_tokens = {}, .max_tokens = 3});
  EXPECT_EQ(search.candidates(), 2);
  search.step(next_of(equal, search));
  ASSERT_EQ(search.running().size(), 2);
  EXPECT_EQ(search.text(0), Ids({0}));
  EXPECT_EQ(search.text(1), Ids({1}));
  search.step(next_of(equal, search));
  EXPECT_EQ(search.running()[1].parent, 0);
  EXPECT_EQ(search.text(0), Ids({0, 0}));
  EXPECT_EQ(search.text(1), Ids({0, 1}));
}

// The text [1, 2] is likelier than [0, 0], which a greedy choice begins with.
TEST(BeamSearch, FindsWhatAGreedyChoiceMisses) {
  const Table table = {
      {0.5, 0.4, 0.05, 0.05}, {0.05, 0.05, 0.85, 0.05}, {0.25, 0.25, 0.25, 0.25}, {}};
  BeamSearch search({.beams = 2, .returned = 2, .length_penalty = 2},
                    {.end_tokens = {}, .max_tokens = 2});
  run(table, search);
  const std::vector<BeamResult> results = search.results();
  ASSERT_EQ(results.size(), 2);
  EXPECT_EQ(ids_of(results[0].tokens), Ids({1, 2}));
  EXPECT_DOUBLE_EQ(results[0].score, std::log(0.4 * 0.85) / 4);
  EXPECT_DOUBLE_EQ(results[0].tokens[1].draw.log_probability, std::log(0.85));
  EXPECT_EQ(results[0].finish, Finish::length);
  EXPECT_EQ(ids_of(results[1].tokens), Ids({0, 0}));
}

// The end token is the third candidate of two beams in the first step, and is dropped.
TEST(BeamSearch, AnEndBelowTheBeamsIsDropped) {
  const Table table = {{0.4, 0.35, 0.05, 0.2}, {0.3, 0.3, 0.1, 0.3}, {0.25, 0.25, 0.25, 0.25}, {}};
  BeamSearch search({.beams = 2, .returned = 2}, {.end_tokens = {kEnd}, .max_tokens = 5});
  search.step(next_of(table, search));
  EXPECT_TRUE(search.results().empty());
  EXPECT_EQ(search.text(0), Ids({0}));
  EXPECT_EQ(search.text(1), Ids({1}));
}

// A second end token takes the place of a beam; with it in the list, more candidates are looked at,
// so that there are two beams still.
TEST(BeamSearch, LooksFurtherForEachEndToken) {
  const Table table(4, {0.1, 0.15, 0.4, 0.35});
  BeamSearch search({.beams = 2, .returned = 2}, {.end_tokens = {3, 2, 3}, .max_tokens = 5});
  EXPECT_EQ(search.candidates(), 2 + 2);
  search.step(next_of(table, search));
  EXPECT_EQ(search.text(0), Ids({1}));
  EXPECT_EQ(search.text(1), Ids({0}));
  ASSERT_EQ(search.results().size(), 2);
  EXPECT_EQ(ids_of(search.results()[0].tokens), Ids({2}));
  EXPECT_EQ(search.results()[0].finish, Finish::end_token);
}

TEST(BeamSearch, AnEndComesOnlyAfterTheLeastTokens) {
  const Table table(4, {0.1, 0.15, 0.05, 0.7});
  BeamSearch search({.beams = 2}, {.end_tokens = {kEnd}, .min_tokens = 2, .max_tokens = 9});
  EXPECT_EQ(search.candidates(), 3) << "the end token takes a place of the list";
  search.step(next_of(table, search));
  EXPECT_EQ(search.text(0), Ids({1})) << "and probabilities are not normalised again";
  EXPECT_DOUBLE_EQ(search.running()[0].sum, std::log(0.15));
  run(table, search);
  EXPECT_EQ(search.results().size(), 1);
  EXPECT_EQ(ids_of(search.results()[0].tokens), Ids({1, 1, kEnd}));
}

// Two texts are found at step 2, the worse with log-probability log(0.3 * 0.3). The best beam is
// likelier, until it has lost enough.
TEST(BeamSearch, StopsInThreeWays) {
  const Table table = {
      {0.56, 0.02, 0.02, 0.4}, {0.9, 0.04, 0.03, 0.03}, {0.9, 0.04, 0.03, 0.03}, {}};
  const auto steps = [&](EarlyStopping early, double penalty) {
    BeamSearch search({.beams = 2, .length_penalty = penalty, .early_stopping = early},
                      {.end_tokens = {kEnd}, .max_tokens = 30});
    run(table, search);
    return search.length();
  };
  // Texts found: [end] with log 0.4, and [0, end] with log 0.224.
  EXPECT_EQ(steps(EarlyStopping::yes, 0), 2);
  // log 0.56^n falls to log 0.224 at n = 3; as a mean it never does, since 0.56 > sqrt(0.224).
  EXPECT_EQ(steps(EarlyStopping::no, 0), 3);
  EXPECT_EQ(steps(EarlyStopping::no, 1), 30);
  // Nothing that continues is better than its sum so far.
  EXPECT_EQ(steps(EarlyStopping::never, 0), 3);
  EXPECT_EQ(steps(EarlyStopping::never, 1), 30);
  // With a negative penalty, the length so far counts in both.
  EXPECT_EQ(steps(EarlyStopping::no, -1), steps(EarlyStopping::never, -1));
}

TEST(BeamSearch, TokensThatAllTextsShareAreFinal) {
  Table table(6, std::vector<double>(6, 0.001));
  table[0][4] = 0.99;               // all begin with 4
  table[4][1] = table[4][2] = 0.4;  // and then part
  table[1][1] = table[2][2] = 0.9;
  BeamSearch search({.beams = 2, .returned = 2}, {.end_tokens = {kEnd}, .max_tokens = 6});
  search.step(next_of(table, search));
  search.step(next_of(table, search));
  EXPECT_EQ(ids_of(search.common(0)), Ids({4}));
  EXPECT_TRUE(search.common(1).empty());
  run(table, search);
  const std::vector<BeamResult> results = search.results();
  ASSERT_EQ(results.size(), 2);
  for (const BeamResult& text : results) EXPECT_EQ(text.tokens[0].draw.token, 4);
}

TEST(BeamSearch, GivesTheMostLikelyTokensWithEachToken) {
  const Table table(4, {0.5, 0.3, 0.15, 0.05});
  BeamSearch search({.beams = 1}, {.end_tokens = {}, .max_tokens = 2, .alternatives = 3});
  EXPECT_EQ(search.candidates(), 3);
  run(table, search);
  const BeamResult best = search.results()[0];
  for (const GeneratedToken& token : best.tokens) {
    ASSERT_EQ(token.alternatives.size(), 3);
    EXPECT_EQ(token.alternatives[2].token, 2);
  }
}

// A vocabulary smaller than the number of beams, and tokens that are impossible.
TEST(BeamSearch, RunsFewerBeamsIfThereAreNoMore) {
  const Table table(4, {0.5, 0.5, 0, 0});
  BeamSearch search({.beams = 4, .returned = 4}, {.end_tokens = {}, .max_tokens = 3});
  search.step(next_of(table, search));
  EXPECT_EQ(search.running().size(), 2);
  run(table, search);
  EXPECT_EQ(search.results().size(), 4);
  BeamSearch nothing({.beams = 2}, {.end_tokens = {}, .max_tokens = 3});
  run(Table(4, {0, 0, 0, 0}), nothing);
  EXPECT_TRUE(nothing.results().empty());
}

// With as many beams as texts, the search is exhaustive.
TEST(BeamSearch, ManyBeamsFindTheBestOfAllTexts) {
  const RandomStream stream(3, "beams");
  for (uint64_t draw = 0; draw < 20; ++draw) {
    Table table(4);
    for (size_t last = 0; last < 4; ++last)
      for (size_t id = 0; id < 4; ++id)
        table[last].push_back(0.01 + stream.uniform(100 * draw + 4 * last + id));
    double best = -INFINITY;
    for (size_t a = 0; a < 4; ++a)
      for (size_t b = 0; b < 4; ++b)
        for (size_t c = 0; c < 4; ++c)
          best =
              std::max(best, std::log(table[0][a]) + std::log(table[a][b]) + std::log(table[b][c]));
    BeamSearch search({.beams = 16, .length_penalty = 0}, {.end_tokens = {}, .max_tokens = 3});
    run(table, search);
    EXPECT_DOUBLE_EQ(search.results()[0].score, best);
  }
}

TEST(BeamOptions, ExcludeSamplingOptionsByName) {
  const auto reason = [](const std::function<void(Request&)>& change) -> std::string {
    Request request;
    request.beams = BeamOptions{.beams = 4, .returned = 2};
    change(request);
    try {
      request.check_beams();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(reason([](Request&) {}), "");
  EXPECT_EQ(reason([](Request& r) { r.sampling.temperature = 0; }), "");
  EXPECT_EQ(reason([](Request& r) { r.sampling.min_tokens = 3; }), "");
  const auto excludes = [&](const char* flag, const std::function<void(Request&)>& change) {
    const std::string text = reason(change);
    EXPECT_NE(text.find("--num-beams"), text.npos) << flag;
    EXPECT_NE(text.find(flag), text.npos) << text;
  };
  excludes("--temperature", [](Request& r) { r.sampling.temperature = 0.7; });
  excludes("--top-k", [](Request& r) { r.sampling.top_k = 5; });
  excludes("--top-p", [](Request& r) { r.sampling.top_p = 0.9; });
  excludes("--min-p", [](Request& r) { r.sampling.min_p = 0.1; });
  excludes("--repetition-penalty", [](Request& r) { r.sampling.repetition_penalty = 1.1; });
  excludes("--presence-penalty", [](Request& r) { r.sampling.presence_penalty = 1; });
  excludes("--frequency-penalty", [](Request& r) { r.sampling.frequency_penalty = 1; });
  excludes("--logit-bias", [](Request& r) { r.sampling.logit_bias[1] = 1; });
  const auto refuses = [&](const char* text, const std::function<void(Request&)>& change) {
    EXPECT_NE(reason(change).find(text), std::string::npos) << reason(change);
  };
  refuses("--num-beams is 0", [](Request& r) { r.beams->beams = 0; });
  refuses("--num-beams is 1025", [](Request& r) { r.beams->beams = 1025; });
  refuses("--num-return-sequences is 5; it must be from 1 to 4",
          [](Request& r) { r.beams->returned = 5; });
  refuses("--length-penalty is nan", [](Request& r) { r.beams->length_penalty = NAN; });
  refuses("--max-tokens is 0", [](Request& r) { r.max_tokens = 0; });
}

}  // namespace
}  // namespace megatron::inference
