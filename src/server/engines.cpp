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
  sum.graph_launches += more.graph_launches;
}

void add(EngineCounts& sum, const EngineCounts& more) {
  add_work(sum, more);
  sum.running += more.running;
  sum.waiting += more.waiting;
  sum.blocks += more.blocks;
  sum.used_blocks += more.used_blocks;
  sum.shareable_blocks += more.shareable_blocks;
  sum.cache_bytes += more.cache_bytes;
  sum.graph_bytes += more.graph_bytes;
}

}  // namespace

// Current engines, and the totals of engines that are gone.
struct EngineSets {
  std::mutex mutex;
  std::vector<const EngineSet*> all;
  std::vector<EngineCounts> gone;  // by replica
};

// Weights with their engines.
class EngineSet {
 public:
  EngineSet(ServedWeights weights, const EnginesOptions& options, Metrics& metrics,
            std::shared_ptr<EngineSets> sets)
      : weights_(std::move(weights)), sets_(std::move(sets)) {
    inference::EngineOptions of_one = options.engine;
    of_one.engines = options.replicas;
    for (int64_t i = 0; i < options.replicas; ++i) {
      runtimes_.push_back(runtime_of_replica(options.replicas));
      engines_.push_back(std::make_unique<EngineThread>(*weights_.stage, *runtimes_.back(), of_one,
                                                        options.max_waiting, metrics,
                                                        weights_.ranks));
      of_one.cache_bytes = engines_.back()->counts().cache_bytes;  // all caches have the same size
    }
    const std::lock_guard lock(sets_->mutex);
    sets_->all.push_back(this);
  }
  ~EngineSet() {
    const std::lock_guard lock(sets_->mutex);
    std::erase(sets_->all, this);
    for (size_t i = 0; i < engines_.size(); ++i) add_work(sets_->gone[i], engines_[i]->counts());
  }
  EngineSet(const EngineSet&) = delete;
  EngineSet& operator=(const EngineSet&) = delete;

  const std::vector<std::unique_ptr<EngineThread>>& engines() const { return engines_; }
  bool divided() const { return weights_.ranks.all != nullptr; }
  bool on_host() const { return weights_.runtime->device().is_host(); }
  int64_t bytes() const {
    int64_t sum = runtimes_[0] == weights_.runtime ? 0 : bytes_in_use(*weights_.runtime);
    for (const auto& runtime : runtimes_) sum += bytes_in_use(*runtime);
    return sum;
  }
  // Engines that should take the requests, in order of preference.
  std::vector<EngineThread*> in_order(const std::vector<inference::Request>& requests) const;

 private:
  std::shared_ptr<Runtime> runtime_of_replica(int64_t replicas) const {
    Runtime& whole = *weights_.runtime;
    if (replicas == 1) return weights_.runtime;
    const int threads = std::max(1, whole.pool().size() / static_cast<int>(replicas));
    return std::make_shared<Runtime>(whole.device(), threads);
  }

  const ServedWeights weights_;
  std::vector<std::shared_ptr<Runtime>> runtimes_;
  std::vector<std::unique_ptr<EngineThread>> engines_;
  const std::shared_ptr<EngineSets> sets_;
};

std::vector<EngineThread*> EngineSet::in_order(
    const std::vector<inference::Request>& requests) const {
  if (engines_.size() == 1) return {engines_[0].get()};
  std::vector<std::future<int64_t>> cached;
  for (const auto& engine : engines_) cached.push_back(engine->cached_tokens(requests));
  struct Place {
    int64_t missing, active;
    EngineThread* engine;
  };
  std::vector<Place> places;
  for (size_t i = 0; i < engines_.size(); ++i)
    places.push_back({-cached[i].get(), engines_[i]->active(), engines_[i].get()});
  std::ranges::stable_sort(places, {},
                           [](const Place& p) { return std::pair(p.missing, p.active); });
  std::vector<EngineThread*> order;
  for (const Place& place : places) order.push_back(place.engine);
  return order;
}

Engines::Engines(ServedWeights weights, const EnginesOptions& options, Metrics& metrics)
    : options_(options), metrics_(metrics), sets_(std::make_shared<EngineSets>()) {
  MG_CHECK(options.replicas >= 1 && options.replicas <= 1024,
           "--replicas is {}; it must be from 1 to 1024", options.replicas);
  MG_CHECK(options.replicas == 1 || weights.runtime->device().is_host(),
           "--replicas is {}, but replicas share the memory of the host: use --device cpu, or one "
           "replica",
           options.replicas);
  MG_CHECK(options.replicas == 1 || weights.ranks.all == nullptr,
           "--replicas is {}, but {} ranks divide the model; use one replica, or one rank",
           options.replicas, weights.ranks.all->size());
  sets_->gone.resize(static_cast<size_t>(options.replicas));
  current_ = std::make_shared<EngineSet>(std::move(weights), options_, metrics_, sets_);
}

Engines::~Engines() = default;

std::shared_ptr<EngineSet> Engines::current() const {
  const std::lock_guard lock(mutex_);
  return current_;
}

std::unique_ptr<EngineCall> Engines::submit(std::vector<inference::Request> requests,
                                            std::optional<Clock::time_point> deadline) {
  const std::shared_ptr<EngineSet> set = current();
  const std::vector<EngineThread*> order = set->in_order(requests);
  for (EngineThread* engine : order) {
    try {
      auto call = engine->submit(engine == order.back() ? std::move(requests) : requests, deadline);
      call->keep(set);
      return call;
    } catch (const ApiError& error) {
      if (error.status() != 429 || engine == order.back()) throw;
    }
  }
  return nullptr;  // unreachable: there is at least one
}

std::vector<float> Engines::embedding(std::vector<int32_t> tokens,
                                      std::shared_ptr<const inference::Adapter> adapter,
                                      inference::EmbeddingForm form) {
  const std::shared_ptr<EngineSet> set = current();
  return (*std::ranges::min_element(set->engines(), {}, &EngineThread::active))
      ->embedding(std::move(tokens), std::move(adapter), form);
}

// The new engines need as much memory as the current ones use.
void Engines::require_memory(const EngineSet& set) const {
  const int64_t most = options_.memory > 0 ? options_.memory : available_memory();
  if (!set.on_host() || most == 0) return;
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
          "new weights and their KV cache need {} bytes ({}) in addition to the {} bytes of those "
          "in use, more than the {} bytes of available memory; wait until earlier texts have "
          "ended, or start the server with a smaller --inference-dynamic-batching-buffer-size-gb",
          needed, format_bytes(static_cast<double>(needed)), held, most),
      "", "out_of_memory");
}

void Engines::reload(const std::optional<std::string>& directory) {
  if (!options_.load_weights) throw error_of_status(404);
  const std::unique_lock one(reloading_, std::try_to_lock);
  if (!one)
    throw ApiError(409, "invalid_request_error",
                   "weights are already being loaded; try again when that is done", "",
                   "reload_under_way");
  EnginesOptions options = options_;
  {
    const std::shared_ptr<EngineSet> now = current();
    require_memory(*now);
    // Ranks hold different parts, and so bytes, of a cache.
    if (!now->divided()) options.engine.cache_bytes = now->engines()[0]->counts().cache_bytes;
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
  for (const auto& engine : current_->engines()) engine->refuse_more();
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
  for (const auto& set : sets)
    for (const auto& engine : set->engines()) finished = engine->drain(until) && finished;
  return finished;
}

std::vector<EngineCounts> Engines::replica_counts() const {
  const std::lock_guard lock(sets_->mutex);
  std::vector<EngineCounts> counts = sets_->gone;
  for (const EngineSet* set : sets_->all)
    for (size_t i = 0; i < counts.size(); ++i) add(counts[i], set->engines()[i]->counts());
  return counts;
}

EngineCounts Engines::counts() const {
  EngineCounts sum;
  for (const EngineCounts& of_one : replica_counts()) add(sum, of_one);
  return sum;
}

}  // namespace megatron::server
