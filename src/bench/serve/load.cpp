#include "bench/serve/load.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "server/http/http_client.h"

namespace megatron::bench {
namespace {

constexpr const char* kPath = "/v1/completions";

Json body_of(const Load& load, size_t i) {
  const RequestLengths& lengths = load.lengths[i];
  Json::Array prompt;
  for (const int32_t id : prompt_tokens(lengths.prompt, load.shared_prefix, load.vocabulary,
                                        load.seed, static_cast<int64_t>(i)))
    prompt.emplace_back(int64_t{id});
  return Json::Object{{"model", load.model},
                      {"prompt", std::move(prompt)},
                      {"max_tokens", lengths.output},
                      {"temperature", 0},
                      {"ignore_eos", true},
                      {"stream", true},
                      {"stream_options", Json::Object{{"include_usage", true}}}};
}

// The message of an answer {"error": {"message": ...}}, else the answer itself.
std::string error_text(const std::string& body) {
  try {
    const Json json = Json::parse(body);
    const Json* error = json.find("error");
    if (error != nullptr) return (*error)["message"].as_string();
  } catch (const Error&) {  // a proxy's page, or a number instead of the object
  }
  return body.substr(0, 200);
}

int64_t integer_of(const Json& object, std::string_view key) {
  const Json* value = object.find(key);
  return value != nullptr && value->is_integer() ? value->as_integer() : 0;
}

// Collects the events of one stream.
class StreamRecord {
 public:
  explicit StreamRecord(RequestTimes& times) : times_(times) {}

  void push(std::string_view piece, double now) {
    events_.push(piece, [&](std::string_view data) { event(data, now); });
  }
  bool done() const { return done_; }

 private:
  void event(std::string_view data, double now) {
    if (data == "[DONE]") {
      done_ = true;
      return;
    }
    const Json json = Json::parse(data, "an event of the server");
    if (json.contains("error")) {
      times_.error = error_text(std::string(data));
      return;
    }
    const Json* choices = json.find("choices");
    if (choices != nullptr && choices->is_array()) {
      for (const Json& choice : choices->as_array()) {
        const Json* text = choice.find("text");
        if (text != nullptr && text->is_string() && !text->as_string().empty())
          times_.tokens.push_back(now);
      }
    }
    const Json* usage = json.find("usage");
    if (usage == nullptr || !usage->is_object()) return;
    times_.prompt_tokens = integer_of(*usage, "prompt_tokens");
    times_.output_tokens = integer_of(*usage, "completion_tokens");
    const Json* details = usage->find("prompt_tokens_details");
    if (details != nullptr && details->is_object())
      times_.cached_tokens = integer_of(*details, "cached_tokens");
  }

  RequestTimes& times_;
  EventReader events_;
  bool done_ = false;
};

class LoadRun {
 public:
  explicit LoadRun(const Load& load) : load_(load), times_(load.lengths.size()) {
    for (size_t i = 0; i < times_.size(); ++i) times_[i].due = load.due[i];
    const size_t count = std::min(times_.size(), static_cast<size_t>(load.concurrency));
    for (size_t i = 0; i < count; ++i)
      clients_.push_back(
          std::make_unique<server::HttpClient>(load.address.url, load.address.key, load.seconds));
  }

  std::vector<RequestTimes> run() {
    std::vector<std::thread> threads;
    running_ = clients_.size();
    for (const auto& client : clients_)
      threads.emplace_back([this, &client] {
        work(*client);
        const std::lock_guard lock(mutex_);
        --running_;
        changed_.notify_all();
      });
    wait_for_all();
    for (std::thread& thread : threads) thread.join();
    return std::move(times_);
  }

 private:
  double now() const { return now_seconds() - begin_; }

  // At the end of the time, waits until the threads have noticed it, since a request may be about
  // to start.
  void wait_for_all() {
    const auto all_ended = [this] { return running_ == 0; };
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, std::chrono::duration<double>(load_.seconds), all_ended)) return;
    over_ = true;
    changed_.notify_all();
    while (!changed_.wait_for(lock, std::chrono::milliseconds(20), all_ended))
      for (const auto& client : clients_) client->stop();
  }

  // Returns false if the load ends before.
  bool wait_until(double due) {
    std::unique_lock lock(mutex_);
    while (!over_ && now() < due)
      changed_.wait_for(lock, std::chrono::duration<double>(due - now()));
    return !over_;
  }

  void work(server::HttpClient& client) {
    for (size_t i; (i = next_++) < times_.size();) {
      const std::string body = body_of(load_, i).dump();
      if (!wait_until(load_.due[i])) return;
      send(client, body, times_[i]);
    }
  }

  void send(server::HttpClient& client, const std::string& body, RequestTimes& times) {
    StreamRecord record(times);
    times.started = true;
    times.sent = now();
    const server::HttpReply reply = client.post(kPath, body, [&](std::string_view piece) {
      try {
        record.push(piece, now());
      } catch (const Error& e) {  // not an event that such a server sends
        times.error = e.what();
      }
      return !over_ && times.error.empty();
    });
    times.ended = now();
    if (reply.status == 200 && record.done() && times.error.empty()) {
      times.ending = Ending::complete;
      if (times.output_tokens == 0) times.output_tokens = std::ssize(times.tokens);
    } else if (reply.status == 429) {
      times.ending = Ending::refused;
    } else if (!over_) {
      times.ending = Ending::failed;
      if (!times.error.empty()) return;
      times.error = reply.status == 0 ? "no answer: " + reply.error
                    : reply.status == 200
                        ? "the stream ended early"
                        : fmt::format("status {}: {}", reply.status, error_text(reply.body));
    }
  }

  const Load& load_;
  const double begin_ = now_seconds();
  std::vector<RequestTimes> times_;
  std::vector<std::unique_ptr<server::HttpClient>> clients_;
  std::atomic<size_t> next_{0};
  std::atomic<bool> over_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t running_ = 0;  // threads
};

}  // namespace

ServedModelInfo ask_model(const ServerAddress& address, double seconds) {
  const server::HttpReply reply =
      server::HttpClient(address.url, address.key, seconds).get("/v1/models");
  MG_CHECK(reply.status != 0, "no answer from {}: {}; start `megatron serve`, or give its address",
           address.url, reply.error);
  MG_CHECK(reply.status == 200, "{}/v1/models answers with status {}: {}", address.url,
           reply.status, error_text(reply.body));
  const Json json = Json::parse(reply.body, address.url + "/v1/models");
  const Json::Array& models = json["data"].as_array();
  MG_CHECK(!models.empty(), "{} does not serve any model", address.url);
  ServedModelInfo info{.name = models[0]["id"].as_string(), .context = {}};
  if (const int64_t context = integer_of(models[0], "max_model_len"); context > 0)
    info.context = context;
  return info;
}

std::vector<RequestTimes> run_load(const Load& load) { return LoadRun(load).run(); }

}  // namespace megatron::bench
