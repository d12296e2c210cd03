// Prometheus's text, and API keys.
#include "server/metrics.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "server/api_keys.h"
#include "text.h"

namespace megatron::server {
namespace {

using testing::has;

TEST(Metrics, HistogramsAreCumulative) {
  const double bounds[] = {1, 10};
  Histogram histogram(bounds);
  for (const double value : {0.5, 1.0, 3.0, 100.0}) histogram.add(value);
  histogram.add(2, 3);
  EXPECT_EQ(histogram.text("h", "Values."),
            "# HELP h Values.\n# TYPE h histogram\nh_bucket{le=\"1\"} 2\nh_bucket{le=\"10\"} 6\n"
            "h_bucket{le=\"+Inf\"} 7\nh_sum 110.5\nh_count 7\n");
}

TEST(Metrics, CountsByLabel) {
  Metrics metrics;
  metrics.answered("/v1/completions", 200);
  metrics.answered("/v1/completions", 200);
  metrics.answered("other", 404);
  metrics.finished("length");
  metrics.first_token(0.02);
  metrics.next_tokens(0.4, 4);
  const EngineCounts replicas[] = {{.running = 2, .waiting = 1, .generated_tokens = 5},
                                   {.running = 3}};
  const std::string text = metrics.text(replicas);
  for (const char* line :
       {"megatron_http_requests_total{endpoint=\"/v1/completions\",status=\"200\"} 2\n",
        "megatron_http_requests_total{endpoint=\"other\",status=\"404\"} 1\n",
        "megatron_texts_total{reason=\"length\"} 1\n",
        "# TYPE megatron_requests_running gauge\nmegatron_requests_running{replica=\"0\"} 2\n"
        "megatron_requests_running{replica=\"1\"} 3\n",
        "megatron_requests_waiting{replica=\"0\"} 1\n",
        "megatron_generated_tokens_total{replica=\"0\"} 5\n",
        "megatron_time_to_first_token_seconds_count 1\n",
        "megatron_time_between_tokens_seconds_bucket{le=\"0.1\"} 4\n"})
    EXPECT_TRUE(has(text, line)) << line << " is not in\n" << text;
}

TEST(ApiKeys, BearersOfAKey) {
  EXPECT_TRUE(ApiKeys().allow(""));
  const ApiKeys keys({"abc", "longer key"});
  EXPECT_TRUE(keys.allow("Bearer abc"));
  EXPECT_TRUE(keys.allow("bearer longer key"));
  for (const char* header : {"", "abc", "Bearer", "Bearer ", "Bearer ab", "Bearer abcd",
                             "Bearer ABC", "Basic abc", "Bearer  abc"})
    EXPECT_FALSE(keys.allow(header)) << header;
  EXPECT_TRUE(ApiKeys::read({}, "x").allow("Bearer x"));
  EXPECT_TRUE(ApiKeys::read({}, "").empty());
  EXPECT_THROW(ApiKeys::read("/dev/null", {}), Error);
}

}  // namespace
}  // namespace megatron::server
