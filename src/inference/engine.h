// Generation for requests that come and go while others run.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "inference/pass.h"
#include "inference/request.h"
#include "models/stage.h"
#include "nn/sequence_state.h"

namespace megatron::inference {

using RequestId = uint64_t;  // of one engine, in order of submission, from 1

struct EngineOptions {
  int64_t vocabulary = 0;  // only ids below it are drawn; 0: all that the model knows
  int64_t batch = 8;       // requests that run at once; the others wait
  int64_t capacity = 0;    // tokens of prompt and text that are kept of each; 0: the positions
  int64_t prefill = 512;   // prompt tokens of a forward pass

  void check() const;  // throws Error naming the flag
  int64_t drawn_vocabulary(const models::Model& model) const;
};

// What a step gave a request. After the update with `finish` its id is forgotten.
struct RequestUpdate {
  RequestId id = 0;
  std::vector<double> prompt_log_probabilities;  // of the prompt tokens read now, in order
  std::vector<GeneratedToken> tokens;            // in order; a step may give several
  std::optional<Finish> finish;                  // never Finish::stop
};

// Requests run in `batch` places over one cache of keys and values; a place that becomes free is
// taken by the request that waits longest. What a request gets is a function of the model and the
// request alone, bit for bit: neither of its id, nor of what runs with it, was cancelled, or was
// there before. All calls are made by one thread at a time. Stage and runtime are borrowed.
class Engine {
 public:
  // Allocates the cache; throws Error naming bytes and flags when there is no memory for it.
  Engine(const models::Stage& stage, Runtime& runtime, const EngineOptions& options);

  // Throws Error for a request that the model or a place cannot take; the others go on.
  RequestId submit(Request request);

  // One forward pass: over prompts where some are unread, by up to `prefill` tokens at once, else
  // over the last token of every running request. Gives an update for each request that got
  // something, none when idle. On meta every token is one of equal logits'. After an Error (logits
  // that are no numbers, no memory) what runs is lost: cancel it.
  std::vector<RequestUpdate> step();

  // The request gets no more, and its place is free for the next step. False: it has finished, was
  // cancelled before or never was.
  bool cancel(RequestId id);

  bool idle() const { return running() == 0 && waiting() == 0; }
  int64_t running() const;  // in a place
  int64_t waiting() const { return static_cast<int64_t>(waiting_.size()); }
  const Statistics& statistics() const { return statistics_; }

 private:
  struct Waiting {
    RequestId id = 0;
    Request request;
  };
  // Tokens [0, state length) are read; the rest waits. Where the text's length changes the rotary angles of
  // tokens that are read, all are read again.
  struct Place {
    RequestId id = 0;  // 0: free
    Request request;
    std::vector<int32_t> tokens;  // prompt and text so far
    int64_t context_class = 0;    // of the keys that are kept
    uint64_t turn = 0;            // of its last pass
    bool scored = false;          // the prompt's log-probabilities have been given

    bool busy() const { return id != 0; }
  };
  using Updates = std::vector<RequestUpdate>;

  int64_t length(size_t place) const { return state_.lengths()[place]; }
  int64_t unread(size_t place) const;
  bool reads_prompt(size_t place) const;
  void admit();
  void release(size_t place);
  void forget_other_angles();
  size_t longest_waiting(bool reads) const;
  std::optional<ForwardPassPlan> plan_prompts() const;
  ForwardPassPlan plan_next_tokens() const;
  PassRow row(size_t place, int64_t count) const;
  Updates run_pass(const ForwardPassPlan& plan);
  std::vector<GeneratedToken> draw_tokens(std::span<const size_t> ready, const Logits& logits);
  void append(size_t place, GeneratedToken token, RequestUpdate& update);

  const models::Stage& stage_;
  Runtime& runtime_;
  const EngineOptions options_;
  const int64_t vocabulary_;
  nn::SequenceState state_;
  std::vector<Place> places_;
  std::deque<Waiting> waiting_;
  RequestId last_ = 0;
  uint64_t turn_ = 0;
  Statistics statistics_;
};

}  // namespace megatron::inference
