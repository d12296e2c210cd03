// Replies as server-sent events: "data: JSON" and a blank line each, "data: [DONE]" last.
#pragma once

#include <functional>
#include <string>

#include "base/json.h"
#include "server/http/http_server.h"

namespace megatron::server {

// Formats a value as an event, which takes one line.
std::string event(const Json& data);

class EventWriter {
 public:
  explicit EventWriter(const StreamWriter& write) : write_(write) {}
  void send(const Json& data) const;  // throws ClientGone
  void done() const;

 private:
  const StreamWriter& write_;
};

// A reply written by `send`. If that throws ApiError, an event with the error ends the stream.
// note: called at the end, for the log.
HttpAnswer event_stream(std::function<void(const EventWriter&)> send,
                        std::function<std::string()> note);

}  // namespace megatron::server
