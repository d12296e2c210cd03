// Sends requests to a server over HTTP and records when their tokens arrive.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/serve/traffic.h"

namespace megatron::bench {

struct ServerAddress {
  std::string url;  // http://HOST[:PORT]
  std::string key;  // API key; "": none
};

// The server's description of itself at /v1/models.
struct ServedModelInfo {
  std::string name;
  std::optional<int64_t> context;  // limit on tokens of prompt and text
};

// Throws Error if nothing answers within `seconds`, or if it is not such a server.
ServedModelInfo ask_model(const ServerAddress& address, double seconds);

enum class Ending { complete, refused, failed, unfinished };  // refused: with status 429

// Times in seconds from the start of the load.
struct RequestTimes {
  Ending ending = Ending::unfinished;
  bool started = false;
  double due = 0, sent = 0, ended = 0;
  std::vector<double> tokens;  // arrival times of the text's pieces
  int64_t prompt_tokens = 0, output_tokens = 0, cached_tokens = 0;  // as counted by the server
  std::string error;                                                // of a failed request
};

struct Load {
  ServerAddress address;
  std::string model;
  std::vector<RequestLengths> lengths;  // of each request
  std::vector<double> due;              // seconds at which each request is due, ascending
  int64_t concurrency = 1;              // requests at once
  int64_t shared_prefix = 0, vocabulary = 0;
  uint64_t seed = 1;
  double seconds = 60;  // after that, running requests are cancelled and no more are sent
};

// Sends each request at its time, or later if `concurrency` requests are running; they are greedy,
// streamed and of exactly the requested length.
std::vector<RequestTimes> run_load(const Load& load);

// Extracts the `data:` lines of server-sent events from the pieces of a stream.
class EventReader {
 public:
  template <class F>
  void push(std::string_view piece, F&& take) {
    pending_ += piece;
    size_t begin = 0;
    for (size_t end; (end = pending_.find('\n', begin)) != pending_.npos; begin = end + 1) {
      std::string_view line(pending_.data() + begin, end - begin);
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (!line.starts_with("data:")) continue;
      line.remove_prefix(5);
      if (line.starts_with(' ')) line.remove_prefix(1);
      take(line);
    }
    pending_.erase(0, begin);
  }

 private:
  std::string pending_;
};

}  // namespace megatron::bench
