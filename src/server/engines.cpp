#include "server/engines.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/machine_limits.h"
#include "base/progress.h"
#include "server/api_error.h"

namespace megatron::server {
namespace {

int64_t bytes_in_use(Runtime& runtime) {
  int64_t sum = 0;
  for (int i = 0; i < kMemoryClasses; ++i)
    sum += runtime.arena(static_cast<MemoryClass>(i)).in_use();
  return sum;
}

void add_work(EngineCounts& sum, const EngineCounts& more) {
  sum.prompt_tokens += more.prompt_tokens;
  sum.generated_tokens += more.generated_tokens;
  sum.cached_tokens += more.cached_tokens;
  sum.preemptions += more.preemptions;
}

void add(EngineCounts& sum, const EngineCounts& more) {
  add_work(sum, more);
  sum.running += more.running;
  sum.waiting += more.waiting;
  sum.blocks += more.blocks;
  sum.used_blocks += more.used_blocks;
  sum.shareable_blocks += more.shareable_blocks;
  sum.cache_bytes += more.cache_bytes;
}

}  // namespace

// Those that are there, and what those that are gone have done.
struct EngineSets {
  std::mutex mutex;
  std::vector<const EngineSet*> all;
  EngineCounts gone;
};

// One kind of weights with its engine.
class EngineSet {
 public:
  EngineSet(ServedWeights weights, const EnginesOptions& options, Metrics& metrics,
            std::shared_ptr<EngineSets> sets)
      : weights_(std::move(weights)),
        engine_(*weights_.stage, *weights_.runtime, options.engine, options.max_waiting, metrics),
        sets_(std::move(sets)) {
    const std::lock_guard lock(sets_->mutex);
    sets_->all.push_back(this);
  }
  ~EngineSet() {
    const std::lock_guard lock(sets_->mutex);
    std::erase(sets_->all, this);
    add_work(sets_->gone, engine_.counts());
  }
  EngineSet(const EngineSet&) = delete;
  EngineSet& operator=(const EngineSet&) = delete;

  EngineThread& engine() { return engine_; }
  const EngineThread& engine() const { return engine_; }
  Runtime& runtime() const { return *weights_.runtime; }
  int64_t bytes() const { return bytes_in_use(*weights_.runtime); }

 private:
  const ServedWeights weights_;
  EngineThread engine_;
  const std::shared_ptr<EngineSets> sets_;
};

Engines::Engines(ServedWeights weights, const EnginesOptions& options, Metrics& metrics)
    : options_(options),
      metrics_(metrics),
      sets_(std::make_shared<EngineSets>()),
      current_(std::make_shared<EngineSet>(std::move(weights), options_, metrics_, sets_)) {}

Engines::~Engines() = default;

std::shared_ptr<EngineSet> Engines::current() const {
  const std::lock_guard lock(mutex_);
  return current_;
}

std::unique_ptr<EngineCall> Engines::submit(std::vector<inference::Request> requests,
                                            std::optional<Clock::time_point> deadline) {
  const std::shared_ptr<EngineSet> set = current();
  std::unique_ptr<EngineCall> call = set->engine().submit(std::move(requests), deadline);
  call->keep(set);
  return call;
}

void Engines::run(std::function<void(const models::Stage&, Runtime&)> work) {
  const std::shared_ptr<EngineSet> set = current();
  set->engine().run(std::move(work));
}

// The new ones need as much as the current ones have.
void Engines::require_memory(const EngineSet& set) const {
  const int64_t most = options_.memory > 0 ? options_.memory : available_memory();
  if (!set.runtime().device().is_host() || most == 0) return;
  const int64_t needed = set.bytes();
  int64_t held = 0;
  {
    const std::lock_guard lock(sets_->mutex);
    for (const EngineSet* one : sets_->all) held += one->bytes();
  }
  if (held + needed <= most) return;
  throw ApiError(
      503, "server_error",
      fmt::format(
          "new weights and their KV cache need {} bytes ({}) beside the {} bytes that those "
          "in use hold, which is more than the {} bytes that there are; wait until earlier "
          "texts have ended, or start the server with a smaller "
          "--inference-dynamic-batching-buffer-size-gb",
          needed, format_bytes(static_cast<double>(needed)), held, most),
      "", "out_of_memory");
}

void Engines::reload(const std::optional<std::string>& directory) {
  if (!options_.load_weights) throw error_of_status(404);
  const std::unique_lock one(reloading_, std::try_to_lock);
  if (!one)
    throw ApiError(409, "invalid_request_error",
                   "weights are being loaded already; try again when they are there", "",
                   "reload_under_way");
  EnginesOptions options = options_;
  {
    const std::shared_ptr<EngineSet> now = current();
    require_memory(*now);
    options.engine.cache_bytes = now->engine().counts().cache_bytes;
  }
  std::shared_ptr<EngineSet> set =
      std::make_shared<EngineSet>(options_.load_weights(directory), options, metrics_, sets_);
  const std::lock_guard lock(mutex_);
  if (refusing_) throw server_draining();
  std::erase_if(earlier_, [](const auto& earlier) { return earlier.expired(); });
  earlier_.push_back(current_);
  current_.swap(set);
}

void Engines::refuse_more() {
  const std::lock_guard lock(mutex_);
  refusing_ = true;
  current_->engine().refuse_more();
}

bool Engines::drain(Clock::time_point until) {
  refuse_more();
  std::vector<std::shared_ptr<EngineSet>> sets = {current()};
  {
    const std::lock_guard lock(mutex_);
    for (const auto& earlier : earlier_)
      if (auto set = earlier.lock()) sets.push_back(std::move(set));
  }
  bool finished = true;
  for (const auto& set : sets) finished = set->engine().drain(until) && finished;
  return finished;
}

EngineCounts Engines::counts() const {
  const std::lock_guard lock(sets_->mutex);
  EngineCounts sum = sets_->gone;
  for (const EngineSet* set : sets_->all) add(sum, set->engine().counts());
  return sum;
}

}  // namespace megatron::server
