// Lengths, times and prompts of `megatron bench serve`, and its summary of a load's times.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <numeric>

#include "base/error.h"
#include "base/files.h"
#include "base/percentile.h"
#include "bench/serve/summary.h"
#include "bench/serve/traffic.h"
#include "text.h"

namespace megatron::bench {
namespace {

using testing::has;

TEST(Percentile, LiesOnTheLineBetweenTwoValues) {
  EXPECT_EQ(percentile({7}, 0.99), 7);
  const std::vector<double> five = {1, 2, 3, 4, 10};
  EXPECT_EQ(percentile(five, 0), 1);
  EXPECT_EQ(percentile(five, 0.5), 3);
  EXPECT_EQ(percentile(five, 1), 10);
  EXPECT_DOUBLE_EQ(percentile(five, 0.9), 4 + 0.6 * 6);
  EXPECT_DOUBLE_EQ(percentile({1, 2}, 0.5), 1.5);
}

TEST(ServeTraffic, ArrivalsAreAPoissonProcessOfTheSeed) {
  const std::vector<double> times = arrival_times(20'000, 50.0, 3);
  EXPECT_TRUE(std::ranges::is_sorted(times));
  EXPECT_GT(times.front(), 0);
  std::vector<double> gaps(times.size());
  std::adjacent_difference(times.begin(), times.end(), gaps.begin());
  const double mean = times.back() / static_cast<double>(times.size());
  EXPECT_NEAR(mean, 0.02, 0.0006);
  // In an exponential distribution, exp(-1) of the gaps exceed the mean and exp(-2) twice the mean.
  const auto longer = [&](double than) {
    const auto count = std::ranges::count_if(gaps, [&](double g) { return g > than; });
    return static_cast<double>(count) / static_cast<double>(gaps.size());
  };
  EXPECT_NEAR(longer(0.02), 0.3679, 0.015);
  EXPECT_NEAR(longer(0.04), 0.1353, 0.01);
  EXPECT_EQ(arrival_times(100, 50.0, 3), std::vector<double>(times.begin(), times.begin() + 100));
  EXPECT_NE(arrival_times(100, 50.0, 4), arrival_times(100, 50.0, 3));
  EXPECT_EQ(arrival_times(3, {}, 3), std::vector<double>(3, 0.0));
}

TEST(ServeTraffic, PromptsShareTheirBeginningAlone) {
  const std::vector<int32_t> first = prompt_tokens(100, 40, 256, 5, 0);
  const std::vector<int32_t> second = prompt_tokens(60, 40, 256, 5, 1);
  ASSERT_EQ(first.size(), 100u);
  ASSERT_EQ(second.size(), 60u);
  EXPECT_TRUE(std::equal(first.begin(), first.begin() + 40, second.begin()));
  EXPECT_FALSE(std::equal(first.begin() + 40, first.begin() + 60, second.begin() + 40));
  EXPECT_NE(prompt_tokens(100, 40, 256, 6, 0), first);
  for (const int32_t id : prompt_tokens(100, 0, 3, 5, 0)) EXPECT_TRUE(id >= 0 && id < 3) << id;
}

TEST(ServeTraffic, LengthsComeFromJsonLines) {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("lengths-" + std::to_string(getpid()))).string();
  const auto of = [&](const std::string& text) {
    write_file(path, text);
    return read_lengths(path);
  };
  EXPECT_EQ(of("{\"prompt_tokens\": 5, \"output_tokens\": 2, \"id\": \"a\"}\n\n"
               "{\"output_tokens\": 1, \"prompt_tokens\": 9}"),
            (std::vector<RequestLengths>{{5, 2}, {9, 1}}));
  const std::pair<std::string, std::string> refused[] = {
      {"", "has no lines"},
      {"[1, 2]", "line 1: it must be an object"},
      {"{\"prompt_tokens\": 5, \"output_tokens\": 2}\n{\"prompt_tokens\": 5}",
       "line 2: output_tokens must be an integer"},
      {"{\"prompt_tokens\": 0, \"output_tokens\": 2}", "prompt_tokens is 0"},
      {"{\"prompt_tokens\": 5.5, \"output_tokens\": 2}", "prompt_tokens must be an integer"},
      {"{", "line 1"}};
  for (const auto& [text, part] : refused) {
    try {
      of(text);
      ADD_FAILURE() << text;
    } catch (const Error& e) {
      EXPECT_TRUE(has(e.what(), part)) << e.what();
    }
  }
  std::filesystem::remove(path);
}

TEST(ServeLoad, EventsAreReadFromAnyPieces) {
  const std::string stream = "data: {\"a\": 1}\n\n: comment\nevent: x\r\ndata:[DONE]\r\n\r\n";
  for (size_t size = 1; size <= stream.size(); ++size) {
    EventReader reader;
    std::vector<std::string> events;
    for (size_t at = 0; at < stream.size(); at += size)
      reader.push(std::string_view(stream).substr(at, size),
                  [&](std::string_view data) { events.emplace_back(data); });
    EXPECT_EQ(events, (std::vector<std::string>{"{\"a\": 1}", "[DONE]"})) << size;
  }
}

TEST(ServeLoad, SummaryIsOfCompleteRequests) {
  std::vector<RequestTimes> times(6);
  times[0] = {.ending = Ending::complete,
              .started = true,
              .due = 0,
              .sent = 1,
              .ended = 3,
              .tokens = {1.5, 2, 3},
              .prompt_tokens = 10,
              .output_tokens = 3,
              .cached_tokens = 4,
              .error = {}};
  times[1] = times[0];
  times[1].due = 1;
  times[1].sent = 2;
  times[1].ended = 5;
  times[1].tokens = {3.5, 5};
  times[2].ending = Ending::refused;
  times[3].ending = Ending::failed;
  times[3].error = "first";
  times[4].ending = Ending::unfinished;
  for (size_t i = 2; i <= 4; ++i) {
    times[i].started = true;
    times[i].sent = 1;
    times[i].ended = 2;
    times[i].tokens = {1.1, 1.2};
  }
  const LoadSummary s = summarize(times);
  EXPECT_EQ(s.requests, 6);
  EXPECT_EQ(s.complete, 2);
  EXPECT_EQ(s.refused, 1);
  EXPECT_EQ(s.failed, 1);
  EXPECT_EQ(s.unfinished, 1);
  EXPECT_EQ(s.not_sent, 1);
  EXPECT_EQ(s.late, 1);
  EXPECT_EQ(s.error, "first");
  EXPECT_EQ(s.seconds, 4);
  EXPECT_EQ(s.rate(s.output_tokens), 1.5);
  EXPECT_EQ(s.prompt_tokens, 20);
  EXPECT_EQ(s.cached_tokens, 8);
  EXPECT_EQ(s.first_token->mean, 1);  // 0.5 and 1.5
  EXPECT_EQ(s.latency->mean, 2.5);    // 2 and 3
  EXPECT_EQ(s.between_tokens->p50, 1);
  EXPECT_EQ(s.between_tokens->mean, 1);  // 0.5, 1 and 1.5
  EXPECT_EQ(s.per_token->p50, 0.75);     // two tokens each in 1.5 s
  EXPECT_FALSE(summarize({}).latency.has_value());
  EXPECT_TRUE(as_json(summarize({}))["latency"].is_null());
}

}  // namespace
}  // namespace megatron::bench
