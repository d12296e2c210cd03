// The engines that serve a model: its replicas, and engines with earlier weights until their last
// text ends.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "server/engine_thread.h"

namespace megatron::server {

struct ServedWeights {
  std::shared_ptr<Runtime>
      runtime;  // runtime of the stage, whose device replicas share; used exclusively
  std::shared_ptr<const models::Stage> stage;
  inference::EngineRanks ranks = {};  // ranks that divide the model, led by this one
};

// Loads the weights of a directory, or the current contents of the directory being served. Throws
// Error if the directory is missing or incomplete, or holds a different model from the one being
// served.
using LoadWeights = std::function<ServedWeights(const std::optional<std::string>& directory)>;

struct EnginesOptions {
  inference::EngineOptions engine;
  int64_t max_waiting = 64;  // texts per replica that may wait
  int64_t replicas = 1;      // engines that share the weights and divide the threads
  LoadWeights load_weights;  // null: weights are never reloaded
  int64_t memory = 0;        // host bytes for weights and caches; 0: all of the host's
};

class EngineSet;
struct EngineSets;

// Thread-safe. Outlives its calls.
class Engines {
 public:
  // Throws what Engine's constructor throws, and Error for replicas that the device, or ranks that
  // divide the model, do not support.
  Engines(ServedWeights weights, const EnginesOptions& options, Metrics& metrics);
  ~Engines();  // cancels running requests

  // These work like EngineThread's functions. Requests finish with the weights with which they
  // started. They are sent to the replica with most of their prompts in the cache, among equals to
  // the one with the fewest texts, and to another one if that is full.
  std::unique_ptr<EngineCall> submit(std::vector<inference::Request> requests,
                                     std::optional<Clock::time_point> deadline = {});
  std::vector<float> embedding(std::vector<int32_t> tokens,
                               std::shared_ptr<const inference::Adapter> adapter = nullptr,
                               inference::EmbeddingForm form = {});

  // Loads the weights of a directory, or the current contents of the directory being served.
  // Requests submitted after it has returned use the new weights, and none of the earlier weights'
  // cached tokens. The earlier weights stay loaded until the last text that uses them has ended.
  // Throws what load_weights throws, and ApiError: 404 without load_weights, 409 during another
  // reload, 503 if there is no memory for both, or when draining; the model is then served as
  // before.
  void reload(const std::optional<std::string>& directory);

  void refuse_more();
  bool drain(Clock::time_point until);
  std::vector<EngineCounts> replica_counts() const;
  EngineCounts counts() const;  // total of all replicas

 private:
  std::shared_ptr<EngineSet> current() const;
  void require_memory(const EngineSet& set) const;

  const EnginesOptions options_;
  Metrics& metrics_;
  const std::shared_ptr<EngineSets> sets_;
  std::mutex reloading_;

  mutable std::mutex mutex_;  // guards the members below
  std::shared_ptr<EngineSet> current_;
  std::vector<std::weak_ptr<EngineSet>> earlier_;
  bool refusing_ = false;
};

}  // namespace megatron::server
