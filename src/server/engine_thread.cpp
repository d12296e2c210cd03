#include "server/engine_thread.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "server/api_error.h"

namespace megatron::server {
namespace {

double seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

std::string_view name(Failure failure) {
  constexpr std::string_view kNames[] = {"deadline", "error", "stopped", "grammar"};
  return kNames[static_cast<size_t>(failure)];
}

std::string_view name(inference::Finish finish) {
  constexpr std::string_view kNames[] = {"length",   "end_token", "stop",  "positions",
                                         "complete", "failed",    "scored"};
  return kNames[static_cast<size_t>(finish)];
}

}  // namespace

EngineCall::~EngineCall() { engine_.cancel(mailbox_->ids); }

void EngineCall::cancel(size_t request) { engine_.cancel({mailbox_->ids[request]}); }

std::vector<EngineEvent> EngineCall::wait(std::chrono::milliseconds longest) {
  std::unique_lock lock(mailbox_->mutex);
  mailbox_->arrived.wait_for(lock, longest, [&] { return !mailbox_->events.empty(); });
  return std::exchange(mailbox_->events, {});
}

EngineThread::EngineThread(const models::Stage& stage, Runtime& runtime,
                           const inference::EngineOptions& options, int64_t max_waiting,
                           Metrics& metrics, const inference::EngineRanks& ranks)
    : stage_(stage),
      runtime_(runtime),
      ranks_(ranks),
      most_(options.max_requests + max_waiting),
      metrics_(metrics) {
  std::promise<void> ready;
  std::future<void> built = ready.get_future();
  thread_ =
      std::thread([this, &options, ready = std::move(ready)]() mutable { serve(options, ready); });
  try {
    built.get();
  } catch (...) {
    thread_.join();
    throw;
  }
}

EngineThread::~EngineThread() {
  {
    const std::lock_guard lock(mutex_);
    refusing_ = stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

std::unique_ptr<EngineCall> EngineThread::submit(std::vector<inference::Request> requests,
                                                 std::optional<Clock::time_point> deadline) {
  const auto count = static_cast<int64_t>(requests.size());
  auto mailbox = std::make_shared<Mailbox>();
  Submission submission{std::move(requests), deadline, mailbox, {}};
  std::future<void> taken = submission.taken.get_future();
  {
    const std::lock_guard lock(mutex_);
    if (refusing_) throw server_draining();
    if (active_ >= most_)
      throw too_many_requests(
          fmt::format("{} texts are being generated or waiting, and this server refuses requests "
                      "from {} on; try again later",
                      active_, most_));
    active_ += count;
    submissions_.push_back(std::move(submission));
  }
  wake_.notify_one();
  taken.get();
  return std::unique_ptr<EngineCall>(new EngineCall(*this, std::move(mailbox)));
}

void EngineThread::cancel(std::vector<inference::RequestId> ids) {
  {
    const std::lock_guard lock(mutex_);
    cancelled_.insert(cancelled_.end(), ids.begin(), ids.end());
  }
  wake_.notify_one();
}

void EngineThread::post(Work work) {
  {
    const std::lock_guard lock(mutex_);
    if (refusing_) throw server_draining();
    works_.push_back(std::move(work));
  }
  wake_.notify_one();
}

std::vector<float> EngineThread::embedding(std::vector<int32_t> tokens,
                                           std::shared_ptr<const inference::Adapter> adapter,
                                           inference::EmbeddingForm form) {
  std::vector<float> values;
  Work task(
      [&](inference::Engine& engine) { values = engine.embedding(tokens, adapter.get(), form); });
  std::future<void> done = task.get_future();
  post(std::move(task));
  done.get();
  return values;
}

std::future<int64_t> EngineThread::cached_tokens(const std::vector<inference::Request>& requests) {
  std::vector<std::pair<std::vector<int32_t>, uint64_t>> prompts;
  for (const inference::Request& request : requests)
    if (request.logprobs < 0) prompts.emplace_back(request.prompt, request.adapter_number());
  auto answer = std::make_shared<std::promise<int64_t>>();
  post(Work([answer, prompts = std::move(prompts)](inference::Engine& engine) {
    int64_t sum = 0;
    for (const auto& [prompt, adapter] : prompts) sum += engine.cached_tokens(prompt, adapter);
    answer->set_value(sum);
  }));
  return answer->get_future();
}

int64_t EngineThread::active() const {
  const std::lock_guard lock(mutex_);
  return active_;
}

void EngineThread::refuse_more() {
  const std::lock_guard lock(mutex_);
  refusing_ = true;
}

bool EngineThread::drain(Clock::time_point until) {
  std::unique_lock lock(mutex_);
  refusing_ = true;
  const bool all = finished_.wait_until(lock, until, [&] { return active_ == 0; });
  if (all) return true;
  end_all_ = true;
  wake_.notify_one();
  finished_.wait(lock, [&] { return active_ == 0; });
  return false;
}

EngineCounts EngineThread::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

void EngineThread::serve(const inference::EngineOptions& options, std::promise<void>& ready) {
  std::optional<inference::Engine> engine;
  try {
    engine.emplace(stage_, runtime_, options, ranks_);
  } catch (...) {
    ready.set_exception(std::current_exception());
    return;
  }
  publish(*engine);
  ready.set_value();  // `options` may be destroyed from now on
  serve(*engine);
}

void EngineThread::serve(inference::Engine& engine) {
  while (take_work(engine)) {
    end_overdue(engine);
    publish(engine);
    if (!engine.idle()) {
      step(engine);
    } else {
      step_ended_.reset();
    }
  }
  end_all(engine, Failure::stopped);
  publish(engine);
}

// Waits for work. Returns false if the thread must end.
bool EngineThread::take_work(inference::Engine& engine) {
  std::vector<Submission> submissions;
  std::vector<inference::RequestId> cancelled;
  std::vector<Work> works;
  bool stops = false, ends_all = false;
  {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [&] {
      return stopping_ || end_all_ || !submissions_.empty() || !works_.empty() ||
             !cancelled_.empty() || !engine.idle();
    });
    submissions.swap(submissions_);
    cancelled.swap(cancelled_);
    works.swap(works_);
    stops = stopping_;
    ends_all = std::exchange(end_all_, false);
  }
  for (Submission& submission : submissions) take(engine, submission);
  for (const inference::RequestId id : cancelled) {
    const auto job = jobs_.find(id);
    if (job == jobs_.end()) continue;
    engine.cancel(id);
    end(job, "cancelled");
  }
  if (ends_all) end_all(engine, Failure::stopped);
  for (Work& work : works) work(engine);
  return !stops;
}

void EngineThread::take(inference::Engine& engine, Submission& submission) {
  const auto count = submission.requests.size();
  std::vector<inference::RequestId>& ids = submission.mailbox->ids;
  try {
    for (inference::Request& request : submission.requests) {
      const bool scored = request.logprobs >= 0;  // its prompt must be recomputed
      submission.mailbox->cached.push_back(
          scored ? 0 : engine.cached_tokens(request.prompt, request.adapter_number()));
      ids.push_back(engine.submit(std::move(request)));
    }
  } catch (...) {
    for (const inference::RequestId id : ids) engine.cancel(id);
    {
      const std::lock_guard lock(mutex_);
      active_ -= static_cast<int64_t>(count);
    }
    finished_.notify_all();
    submission.taken.set_exception(std::current_exception());
    return;
  }
  const Clock::time_point now = Clock::now();
  for (size_t i = 0; i < count; ++i)
    jobs_[ids[i]] = {submission.mailbox, i, submission.deadline, now, now};
  submission.taken.set_value();
}

void EngineThread::step(inference::Engine& engine) {
  const Clock::time_point begin = Clock::now();
  if (step_ended_) metrics_.between_steps(seconds(begin - *step_ended_));
  std::vector<inference::RequestUpdate> updates;
  try {
    updates = engine.step();
  } catch (const std::exception& e) {
    log::error("a step of the engine failed, and with it {} requests: {}", jobs_.size(), e.what());
    end_all(engine, Failure::engine);
  }
  step_ended_ = Clock::now();
  metrics_.step(seconds(*step_ended_ - begin));
  publish(engine);  // before threads that wait for an update look at it
  for (inference::RequestUpdate& update : updates) deliver(std::move(update));
}

void EngineThread::deliver(inference::RequestUpdate update) {
  const auto found = jobs_.find(update.id);
  if (found == jobs_.end()) return;
  Job& job = found->second;
  const auto tokens = static_cast<int64_t>(update.tokens.size());
  if (tokens > 0) {
    const Clock::time_point now = Clock::now();
    if (job.has_token) {
      metrics_.next_tokens(seconds(now - job.last_token), tokens);
    } else {
      metrics_.first_token(seconds(now - job.submitted));
    }
    job.has_token = true;
    job.last_token = now;
  }
  const std::optional<inference::Finish> finish = update.finish;
  EngineEvent event{job.request, std::move(update), std::nullopt};
  if (finish == inference::Finish::failed) {
    log::error("a request failed: {}", event.update.error);
    event.failure = event.update.by_grammar ? Failure::grammar : Failure::engine;
  }
  job.mailbox->add(std::move(event));
  if (finish) end(found, name(*finish));
}

void EngineThread::end_overdue(inference::Engine& engine) {
  const Clock::time_point now = Clock::now();
  for (auto job = jobs_.begin(); job != jobs_.end();) {
    const auto next = std::next(job);
    if (job->second.deadline && *job->second.deadline <= now)
      give_up(engine, job, Failure::deadline);
    job = next;
  }
}

void EngineThread::end_all(inference::Engine& engine, Failure failure) {
  while (!jobs_.empty()) give_up(engine, jobs_.begin(), failure);
}

void EngineThread::give_up(inference::Engine& engine, Jobs::iterator job, Failure failure) {
  engine.cancel(job->first);
  job->second.mailbox->add({job->second.request, {}, failure});
  end(job, name(failure));
}

void EngineThread::end(Jobs::iterator job, std::string_view reason) {
  jobs_.erase(job);
  metrics_.finished(reason);
  {
    const std::lock_guard lock(mutex_);
    --active_;
  }
  finished_.notify_all();
}

void EngineThread::publish(const inference::Engine& engine) {
  const inference::Statistics done = engine.statistics();
  const inference::CacheUse cache = engine.cache_use();
  const std::lock_guard lock(mutex_);
  counts_ = {.running = engine.running(),
             .waiting = engine.waiting(),
             .prompt_tokens = done.prompt_tokens,
             .generated_tokens = done.generated_tokens,
             .cached_tokens = done.cached_tokens,
             .preemptions = done.preemptions,
             .graph_launches = done.graph_launches,
             .graph_bytes = done.graph_bytes,
             .blocks = cache.blocks,
             .used_blocks = cache.used,
             .shareable_blocks = cache.found,
             .cache_bytes = cache.bytes};
}

}  // namespace megatron::server
