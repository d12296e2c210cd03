#include "server/event_stream.h"

#include "base/log.h"
#include "server/api_error.h"
#include "server/generation.h"

namespace megatron::server {

std::string event(const Json& data) { return "data: " + data.dump() + "\n\n"; }

void EventWriter::send(const Json& data) const {
  if (!write_(event(data))) throw ClientGone();
}

void EventWriter::done() const {
  if (!write_("data: [DONE]\n\n")) throw ClientGone();
}

HttpAnswer event_stream(std::function<void(const EventWriter&)> send,
                        std::function<std::string()> note) {
  HttpAnswer answer{.content_type = "text/event-stream", .body = {}};
  answer.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
  answer.stream = [send = std::move(send), note = std::move(note)](const StreamWriter& write) {
    std::string ended;
    try {
      const EventWriter writer(write);
      send(writer);
      writer.done();
    } catch (const ClientGone&) {
      ended = ", client disconnected";
    } catch (const ApiError& e) {
      ended = ", " + e.code();
      write(event(e.json()));
    } catch (const std::exception& e) {
      log::error("a stream failed: {}", e.what());
      ended = ", failed";
      write(event(error_of_status(500).json()));
    }
    return note() + ended;
  };
  return answer;
}

}  // namespace megatron::server
