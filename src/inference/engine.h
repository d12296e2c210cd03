// Generation for requests that come and go while others run.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "inference/block_cache.h"
#include "inference/cache_shape.h"
#include "inference/decode_passes.h"
#include "inference/engine_calls.h"
#include "inference/engine_options.h"
#include "inference/engine_ranks.h"
#include "inference/pass.h"
#include "inference/pass_results.h"
#include "inference/request.h"
#include "inference/scheduler.h"
#include "inference/sequence.h"
#include "models/stage.h"
#include "nn/sequence_state.h"

namespace megatron::inference {

// What a step gave a request. After the update with `finish` its id is forgotten.
struct RequestUpdate {
  RequestId id = 0;
  // For the prompt tokens read in this step, in order.
  std::vector<double> prompt_log_probabilities;
  std::vector<PromptAlternatives> prompt_alternatives;  // for each of those tokens, if requested
  std::vector<GeneratedToken> tokens;                   // in order; a step may give several
  std::optional<Finish> finish;                         // never Finish::stop
  std::string error;                                    // with Finish::failed: the reason
  bool by_grammar =
      false;  // with Finish::failed: the request's grammar has too many readings of the text
};

// How full the cache of keys and values is, in blocks of all groups of layers.
struct CacheUse {
  int64_t blocks = 0, used = 0;
  int64_t found = 0;  // that another request with the same prefix would share
  int64_t bytes = 0;  // of all blocks, on this rank
};

// Thrown by the constructor on all ranks where one of them has no memory for its part: they may make another engine.
class EngineRefused : public Error {
 public:
  using Error::Error;
};

// Runs requests over one cache of keys and values in pages: every step reads the next token of each that generates,
// and pieces of the prompts of the others. Requests share the pages of equal prefixes. When pages end, requests that
// are due last are read anew later. What a request gets is a function of the model and the request alone, bit for bit:
// neither of its id, nor of what runs with it, was cancelled or is cached, nor of how its prompt was cut. All calls are
// made by one thread at a time. Stage and runtime are borrowed.
//
// Of several ranks (inference/engine_ranks.h) the constructor, step() and embedding() are collective, and so is the
// destructor of the one that leads. Results of steps are the drawing rank's, and all ranks return them. Where pipeline
// stages alone divide the model they have the bits of one rank.
class Engine {
 public:
  // Allocates the cache; throws Error naming bytes and flags when there is no memory for it, or too little for one
  // request. stage: of several ranks, this one's part, without sequence parallelism.
  Engine(const models::Stage& stage, Runtime& runtime, const EngineOptions& options,
         const EngineRanks& ranks = {});
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Throws Error for a request that the model or the cache cannot take; the others go on.
  RequestId submit(Request request);

  // One forward pass. Gives an update for each request that got something, none when idle. On meta every token is one
  // of equal logits'. A request from whose logits nothing can be drawn (they are no numbers, its grammar allows
  // nothing) fails alone. After an Error (no memory) what runs is lost: cancel it. Several ranks are lost with it: calls
  // of their groups throw from then on.
  std::vector<RequestUpdate> step();

  // The request gets no more, and its pages are free for the next step. False: it has finished, was cancelled before or
  // never was.
  bool cancel(RequestId id);

  // A text as a vector (inference/embedding.h), between two steps; nothing on ranks that do not draw. Throws Error for
  // one that is no number; after any other several ranks are lost, as with step().
  std::vector<float> embedding(std::span<const int32_t> tokens);

  // The stage's weights are others from now on: requests under way are read again.
  void weights_changed();

  bool idle() const { return running() == 0 && waiting() == 0; }
  int64_t running() const { return scheduler_.running(); }
  int64_t waiting() const { return scheduler_.waiting(); }
  Statistics statistics() const;
  CacheUse cache_use() const;
  // Tokens of the longest prefix of a prompt that is in the cache.
  int64_t cached_tokens(std::span<const int32_t> prompt) const;

 private:
  using Updates = std::vector<RequestUpdate>;
  using Rows = std::vector<ScheduledRow>;

  ForwardPassPlan plan(const Rows& rows) const;
  Updates run_pass(const Rows& rows, double begin);
  void give_scores(const Rows& rows, const ForwardPassPlan& plan, std::span<const double> losses,
                   Updates& updates);
  // A token of the pass for whose successor alternatives are wanted. label: the successor.
  struct WantedAlternatives {
    size_t row = 0;
    int32_t token = 0, label = 0;
    int64_t count = 0;
  };
  std::vector<WantedAlternatives> wanted_alternatives(const Rows& rows,
                                                      const ForwardPassPlan& plan) const;
  std::vector<PromptAlternatives> alternatives_of(ForwardPass& pass,
                                                  std::span<const WantedAlternatives> wanted);
  // Of a pass: the rows whose next token is drawn from it, and their sequences.
  struct Drawing {
    std::vector<size_t> rows;
    std::vector<Sequence*> sequences;
    bool any() const;  // a request that only wants its prompt's log-probabilities draws nothing
  };
  bool decodes(const ForwardPassPlan& plan, const Drawing& drawing) const;
  PassResults results_of(const ForwardPassPlan& plan, std::span<const WantedAlternatives> wanted,
                         const Drawing& drawing);
  void decode(const ForwardPassPlan& plan, const Drawing& drawing, PassResults& results);
  void run_forward(const ForwardPassPlan& plan, std::span<const WantedAlternatives> wanted,
                   const Drawing& drawing, PassResults& results);
  std::vector<DrawnToken> draw(const Drawing& drawing, const DeviceDraws& on_device,
                               Logits& logits);
  void append(Sequence& sequence, DrawnToken drawn, RequestUpdate& update);
  int64_t due_pass(int64_t priority) const;

  const models::Stage& stage_;
  Runtime& runtime_;
  const EngineOptions options_;
  const EngineRanks ranks_;
  const std::unique_ptr<EngineLeader> leader_;  // null: this rank does not lead
  const int64_t vocabulary_, max_length_;
  const CacheShape shape_;
  nn::SequenceState state_;
  std::optional<DecodePasses> decode_passes_;  // on CUDA, without a pipeline
  BlockCache cache_;
  Scheduler scheduler_;
  RequestId last_ = 0;
  Statistics statistics_;
};

}  // namespace megatron::inference
