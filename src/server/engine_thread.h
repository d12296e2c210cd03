// A thread that owns an Engine and serves requests of other threads.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "inference/engine.h"
#include "server/metrics.h"

namespace megatron::server {

using Clock = std::chrono::steady_clock;

enum class Failure {
  deadline,  // not finished in time
  engine,    // a pass of the engine failed
  stopped,   // the server stopped first
  grammar,   // its grammar is too ambiguous for the text; see update.error
};

// Event of one of the requests that were submitted together. None follows after `update.finish` or
// `failure`.
struct EngineEvent {
  size_t request = 0;  // index of the request in the call
  inference::RequestUpdate update;
  std::optional<Failure> failure;
};

class EngineThread;

// Requests that were submitted together. Used by a single thread.
class EngineCall {
 public:
  ~EngineCall();  // cancels unfinished requests
  EngineCall(const EngineCall&) = delete;
  EngineCall& operator=(const EngineCall&) = delete;

  // Waits for events, at most for `longest`. The result may be empty.
  std::vector<EngineEvent> wait(std::chrono::milliseconds longest);
  void cancel(size_t request);  // no further updates for it
  // Number of tokens of a request's prompt that were cached when it was submitted.
  int64_t cached_tokens(size_t request) const { return mailbox_->cached[request]; }
  // Keeps the owner of the call's engine alive as long as the call.
  void keep(std::shared_ptr<const void> owner) { owner_ = std::move(owner); }

 private:
  friend EngineThread;
  struct Mailbox {
    std::mutex mutex;
    std::condition_variable arrived;
    std::vector<EngineEvent> events;
    std::vector<inference::RequestId> ids;  // of the engine, in order
    std::vector<int64_t> cached;            // tokens of their prompts

    void add(EngineEvent event) {
      {
        const std::lock_guard lock(mutex);
        events.push_back(std::move(event));
      }
      arrived.notify_one();
    }
  };
  EngineCall(EngineThread& engine, std::shared_ptr<Mailbox> mailbox)
      : engine_(engine), mailbox_(std::move(mailbox)) {}

  std::shared_ptr<const void> owner_;
  EngineThread& engine_;
  std::shared_ptr<Mailbox> mailbox_;
};

// Stage and runtime are used only by this object's thread during its lifetime. It outlives its
// calls.
class EngineThread {
 public:
  // max_waiting: maximum number of queued requests. ranks: led by this rank. Throws what Engine's
  // constructor throws.
  EngineThread(const models::Stage& stage, Runtime& runtime,
               const inference::EngineOptions& options, int64_t max_waiting, Metrics& metrics,
               const inference::EngineRanks& ranks = {});
  ~EngineThread();  // cancels running requests
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;

  // Submits all requests or none, and returns once the engine has accepted them. Throws ApiError
  // 429 if that would exceed the limit of unfinished requests, ApiError 503 when draining, and
  // Error for a request that the engine refuses.
  std::unique_ptr<EngineCall> submit(std::vector<inference::Request> requests,
                                     std::optional<Clock::time_point> deadline = {});

  // Computes an embedding on the engine between two steps; waits for it. Throws what the engine
  // throws, and ApiError 503 while draining.
  std::vector<float> embedding(std::vector<int32_t> tokens,
                               std::shared_ptr<const inference::Adapter> adapter = nullptr,
                               inference::EmbeddingForm form = {});

  // Counts, between two steps, the cached tokens of the prompts for which no log-probabilities are
  // requested. The requests need not outlive the call. The future throws as embedding() does.
  std::future<int64_t> cached_tokens(const std::vector<inference::Request>& requests);
  int64_t active() const;  // submitted and not finished

  // Makes submit() refuse further requests. drain() also waits for the submitted requests, stops
  // those that have not finished by `until`, and returns true if all of them finished.
  void refuse_more();
  bool drain(Clock::time_point until);

  EngineCounts counts() const;

 private:
  friend EngineCall;
  using Mailbox = EngineCall::Mailbox;
  using Work = std::packaged_task<void(inference::Engine&)>;
  struct Submission {
    std::vector<inference::Request> requests;
    std::optional<Clock::time_point> deadline;
    std::shared_ptr<Mailbox> mailbox;
    std::promise<void> taken;
  };
  // An unfinished request.
  struct Job {
    std::shared_ptr<Mailbox> mailbox;
    size_t request = 0;
    std::optional<Clock::time_point> deadline;
    Clock::time_point submitted, last_token;
    bool has_token = false;
  };
  using Jobs = std::map<inference::RequestId, Job>;

  void serve(const inference::EngineOptions& options, std::promise<void>& ready);
  void serve(inference::Engine& engine);
  bool take_work(inference::Engine& engine);
  void post(Work work);
  void take(inference::Engine& engine, Submission& submission);
  void step(inference::Engine& engine);
  void deliver(inference::RequestUpdate update);
  void end_overdue(inference::Engine& engine);
  void end_all(inference::Engine& engine, Failure failure);
  void give_up(inference::Engine& engine, Jobs::iterator job, Failure failure);
  void end(Jobs::iterator job, std::string_view reason);
  void publish(const inference::Engine& engine);
  void cancel(std::vector<inference::RequestId> ids);

  const models::Stage& stage_;
  Runtime& runtime_;
  const inference::EngineRanks ranks_;
  const int64_t most_;  // most requests, running and waiting
  Metrics& metrics_;

  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable wake_, finished_;
  std::vector<Submission> submissions_;
  std::vector<Work> works_;
  std::vector<inference::RequestId> cancelled_;
  int64_t active_ = 0;  // submitted and not finished
  bool refusing_ = false, stopping_ = false, end_all_ = false;
  EngineCounts counts_;

  Jobs jobs_;                                    // of the thread alone
  std::optional<Clock::time_point> step_ended_;  // while there is work
  std::thread thread_;
};

}  // namespace megatron::server
