// Continuous batching: generates text for requests that arrive and finish while others run.
#pragma once

#include <cstdint>
#include <map>
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

// Results of one step for one request. After the update with `finish` the request's id is no longer
// valid.
struct RequestUpdate {
  RequestId id = 0;
  // For the prompt tokens read in this step, in order; or for an encoder's masked tokens.
  std::vector<double> prompt_log_probabilities;
  std::vector<PromptAlternatives> prompt_alternatives;  // for each of those tokens, if requested
  std::vector<GeneratedToken> tokens;                   // in order; a step may give several
  // With Finish::scored: [labels], or of a model with labels of tokens [tokens, labels].
  std::vector<float> scores;
  std::vector<float> embedding;  // [hidden_size], if it is requested of an encoder
  // With Request::expert_choices, for the tokens of prompt and text read in this step, in order:
  // the experts that each was sent to [tokens, layers with experts, most experts per token], -1
  // where a layer has fewer. The last token of the text is never read. Cached prefixes of such
  // requests are read again.
  std::vector<int32_t> expert_choices;
  // With Request::beams, and `finish`: the best texts, best first. `tokens` and `finish` are those
  // of the best one; tokens come earlier if all texts that can still be returned begin with them.
  std::vector<BeamResult> beams;
  std::optional<Finish> finish;  // never Finish::stop
  std::string error;             // with Finish::failed: the reason
  bool by_grammar = false;       // with Finish::failed: the grammar is too ambiguous for the text
};

// Usage of the key-value cache, in blocks over all groups of layers.
struct CacheUse {
  int64_t blocks = 0, used = 0;
  int64_t found = 0;  // blocks that another request with the same prefix would share
  int64_t bytes = 0;  // of all blocks, on this rank
};

// Thrown by the constructor on all ranks if one of them does not have enough memory for its part.
// The ranks may then create another engine.
class EngineRefused : public Error {
 public:
  using Error::Error;
};

// Runs requests over one paged key-value cache: every step reads the next token of each generating
// request, and pieces of the prompts of the others. Requests share the pages of equal prefixes.
// When pages run out, the requests that are due last are preempted and read again later. A
// request's results depend only on the model and the request, bit for bit: not on its id, on other
// requests, on the cache, or on how its prompt was split. All calls are made by one thread at a
// time. Stage and runtime are borrowed.
//
// An encoder-decoder's prompts are texts for its encoder. Each is read as a whole, in one pass with
// the next tokens of other requests. The keys and values that the decoder's layers compute from it
// are in pages, too, which requests with equal prompts share while they run.
//
// An encoder's engine has no cache, and each pass reads whole texts: it gives scores, embeddings
// and predictions of masked tokens, each request within one step. Other texts in a pass may change
// these by rounding.
//
// With several ranks (inference/engine_ranks.h), the constructor, step() and embedding() are
// collective, and so is the leading rank's destructor. Step results come from the rank that
// samples, and all ranks return them. If only pipeline stages divide the model, they equal one
// rank's bit for bit.
class Engine {
 public:
  // Allocates the cache. Throws Error naming bytes and flags if there is no memory for it, or too
  // little for one request. stage: with several ranks, this rank's part, without sequence
  // parallelism.
  Engine(const models::Stage& stage, Runtime& runtime, const EngineOptions& options,
         const EngineRanks& ranks = {});
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Throws Error for a request that the model or the cache cannot take; other requests are not
  // affected.
  RequestId submit(Request request);

  // Runs one forward pass, and another for the rows of each adapter that does not share passes
  // (Adapter::shares_passes()). Returns an update for each request that made progress, none when
  // idle. On meta, tokens are sampled from equal logits. If no token can be sampled for a request
  // (its logits are NaN, or its grammar allows nothing), only that request fails. After an Error
  // (no memory) running requests are lost: cancel them. With several ranks, the ranks are lost as
  // well: calls of their groups throw from then on.
  std::vector<RequestUpdate> step();

  // Ends the request and frees its pages for the next step. Returns false if it has finished, was
  // cancelled before or never existed.
  bool cancel(RequestId id);

  // Returns the embedding of a text (inference/embedding.h) by a decoder, computed between two
  // steps; empty on ranks that do not sample. For encoders, submit a request instead. Throws Error
  // if the embedding is zero or not finite; after any other error, several ranks are lost, as with
  // step(). adapter: null: none.
  std::vector<float> embedding(std::span<const int32_t> tokens, const Adapter* adapter = nullptr,
                               EmbeddingForm form = {});

  // Call after the stage's weights have changed: running requests are read again.
  void weights_changed();

  bool idle() const { return running() == 0 && waiting() == 0; }
  int64_t running() const { return scheduler_.running(); }
  int64_t waiting() const { return scheduler_.waiting(); }
  Statistics statistics() const;
  CacheUse cache_use() const;
  // Number of tokens of a prompt's longest cached prefix; 0 for an encoder-decoder. adapter: its
  // number (Adapter::number()).
  int64_t cached_tokens(std::span<const int32_t> prompt, uint64_t adapter = 0) const;

 private:
  using Updates = std::vector<RequestUpdate>;
  using Rows = std::vector<ScheduledRow>;

  bool is_encoder() const { return stage_.model()->facts().two_sided; }
  ForwardPassPlan plan(const Rows& rows) const;
  Updates run_pass(const Rows& rows, double begin);
  void give_scores(const Rows& rows, const ForwardPassPlan& plan, std::span<const double> losses,
                   Updates& updates);
  static void give_experts(const Rows& rows, std::span<const int32_t> choices, Updates& updates);
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
  // Rows of a pass whose next token is drawn from it, and their sequences.
  struct Drawing {
    std::vector<size_t> rows;
    std::vector<Sequence*> sequences;
    bool any() const;     // false for requests that only want their prompt's log-probabilities
    bool scores() const;  // whether they want their prompts' scores
  };
  bool decodes(const ForwardPassPlan& plan, const Drawing& drawing) const;
  PassResults results_of(const ForwardPassPlan& plan, std::span<const WantedAlternatives> wanted,
                         const Drawing& drawing);
  void decode(const ForwardPassPlan& plan, const Drawing& drawing, PassResults& results);
  void run_forward(const ForwardPassPlan& plan, std::span<const WantedAlternatives> wanted,
                   const Drawing& drawing, PassResults& results);
  // For an encoder.
  void run_texts(ForwardPass& pass, const Drawing& drawing, PassResults& results);
  void predict_masked(ForwardPass& pass, const Drawing& drawing, PassResults& results);
  static void give_texts(const Drawing& drawing, PassResults& results, Updates& updates);
  std::vector<DrawnToken> draw(const Drawing& drawing, const DeviceDraws& on_device,
                               Logits& logits);
  void append(Sequence& sequence, DrawnToken drawn, RequestUpdate& update);
  void append_to_beam(Sequence& sequence, DrawnToken drawn, RequestUpdate& update);
  void check_beams(const Request& request, int64_t given, int64_t longest) const;
  void copy_pages(std::span<const PageCopy> copies);
  int64_t due_pass(int64_t priority) const;
  const models::Stage& stage_of(const Adapter* adapter);

  const models::Stage& stage_;
  Runtime& runtime_;
  const EngineOptions options_;
  const EngineRanks ranks_;
  const std::unique_ptr<EngineLeader> leader_;  // null if this rank does not lead
  const int64_t vocabulary_, max_length_;
  const CacheShape shape_;
  nn::SequenceState state_;
  std::optional<DecodePasses> decode_passes_;  // on CUDA, without a pipeline
  // The model with an adapter that does not share passes.
  struct AdaptedStage {
    std::weak_ptr<const Adapter> adapter;
    std::unique_ptr<models::Stage> stage;
  };
  std::map<uint64_t, AdaptedStage> adapted_stages_;  // by the adapter's number
  BlockCache cache_;
  std::optional<EncoderTexts> texts_;  // of an encoder-decoder
  Scheduler scheduler_;
  RequestId last_ = 0;
  Statistics statistics_;
};

}  // namespace megatron::inference
