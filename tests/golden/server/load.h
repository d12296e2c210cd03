// Sends more requests at once than a server accepts.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <thread>

#include "golden/server/support.h"
#include "hang_limit.h"

namespace megatron::testing {

// Clients at four times a server's capacity repeat their requests until each has its text. None is
// lost, every refusal has a Retry-After, and the cache stays within its budget.
inline void expect_none_is_lost(int64_t requests) {
  constexpr int64_t kPlaces = 4, kWaiting = 8, kTokens = 6;
  constexpr int64_t kBlockBytes = 2 * 32 * 16 * 4;  // keys and values of 32 tokens of one layer
  server::ServerOptions options = served_options();
  options.engine.max_requests = kPlaces;
  options.engine.block_size = 32;
  options.engine.cache_bytes = 7 * kBlockBytes;  // two texts and a part of a third
  options.max_waiting = kWaiting;
  ServedModel served(options);
  const auto body = [&](int64_t kind) {
    return fmt::format(
        R"({{"prompt": "{}", "max_tokens": {}, "seed": {}, "ignore_eos": true}})",
        std::string(static_cast<size_t>(1 + kind * 13 % 80), static_cast<char>('a' + kind % 3)),
        kTokens, kind);
  };
  constexpr int64_t kKinds = 20;
  std::map<int64_t, std::string> expected;
  for (int64_t kind = 0; kind < kKinds; ++kind)
    expected[kind] =
        served.get("/v1/completions", body(kind))["choices"].as_array()[0]["text"].as_string();
  const int64_t held = served.model.runtime.arena(MemoryClass::activations).in_use();
  std::atomic<int64_t> next = 0, refused = 0, wrong = 0, beyond = 0;
  std::vector<std::thread> clients;
  for (int64_t c = 0; c < 4 * (kPlaces + kWaiting); ++c) {
    clients.emplace_back([&] {
      for (int64_t i; (i = next++) < requests;) {
        for (;;) {
          const httplib::Result result = served.post("/v1/completions", body(i % kKinds));
          const server::EngineCounts counts = served.server->counts();
          if (counts.cache_bytes > options.engine.cache_bytes || counts.used_blocks > counts.blocks)
            ++beyond;
          if (result && result->status == 429 && result->get_header_value("Retry-After") == "1") {
            ++refused;
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
            continue;
          }
          if (!result || result->status != 200 ||
              Json::parse(result->body)["choices"].as_array()[0]["text"].as_string() !=
                  expected[i % kKinds])
            ++wrong;
          break;
        }
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(beyond, 0);
  EXPECT_GT(refused, 0);
  // The engine's thread updates its counts after it has answered.
  for (int i = 0; i < 100 * kHangSeconds && served.server->counts().running > 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  const server::EngineCounts counts = served.server->counts();
  EXPECT_EQ(counts.generated_tokens, (requests + kKinds) * kTokens);
  EXPECT_GT(counts.cache_bytes, 0);
  EXPECT_EQ(counts.used_blocks, 0);
  EXPECT_EQ(counts.running + counts.waiting, 0);
  EXPECT_EQ(served.model.runtime.arena(MemoryClass::activations).in_use(), held);
}

}  // namespace megatron::testing
