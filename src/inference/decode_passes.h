// Forward passes of one new token a text, on CUDA: recorded once, then launched as a whole (CUDA graphs).
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <vector>

#include "comm/group.h"
#include "device/own_arenas.h"
#include "device/recorded_part.h"
#include "inference/device_draws.h"
#include "inference/pass.h"
#include "models/stage.h"
#include "nn/sequence_state.h"

namespace megatron::inference {

struct DecodePassOptions {
  int64_t max_rows = 1;
  int64_t longest = 1;      // tokens of a text
  int64_t row_counts = 16;  // that passes are padded to, at most
  bool record = true;
  int64_t choices = 0;  // ids below it are drawn; 0: this rank draws none
  comm::Group* tensor =
      nullptr;  // ranks whose calls are in a pass, which all make the same passes; null: of none
};

struct DecodePassCounts {
  int64_t recorded = 0;  // passes that were recorded
  int64_t launched = 0;  // that were launched as graphs, including those
  int64_t bytes = 0;     // of the passes' own memory
};

// A pass has the shape of a few that there are: as many rows as the next power of two, and block tables as wide as the
// next, where there are so many. Rows of padding see nothing, are kept nowhere and are not drawn. What differs from
// pass to pass is copied to fixed places first: tokens, positions, block tables, rules of drawing. So a pass of one
// shape, and of one class of rotary angles, does the same work on the same memory every time: it runs eagerly once,
// then it is recorded, and from then on launched. Its bits are the same in each of the three ways.
//
// Passes have memory of their own (device/own_arenas.h), which all graphs share: one pass runs at a time.
//
// Eagerly run, too, passes whose angles depend on the very length of their texts, whose ranks communicate through host
// memory, and those of a stream that is watched.
class DecodePasses {
 public:
  // Of all of a model, or a tensor-parallel rank's part. All are borrowed; the state stays where it is.
  DecodePasses(const models::Stage& stage, Runtime& runtime, nn::SequenceState& state,
               const DecodePassOptions& options);
  DecodePasses(const DecodePasses&) = delete;
  DecodePasses& operator=(const DecodePasses&) = delete;

  // Queues a pass over rows of one token each, without labels, and the draws that the rules allow (kernels::kSampleRules
  // numbers a row). Collective over the tensor-parallel ranks.
  void run(const ForwardPassPlan& plan, std::span<const double> rules);

  // Of the pass, until the next one: the logits of each row [rows,V], and what was drawn, when it is done.
  Tensor logits() const { return logits_.slice(0, 0, rows_); }
  DeviceDraws draws() const;

  // Nothing that was recorded is launched any more: parameters may lie elsewhere.
  void forget() { forms_.clear(); }

  DecodePassCounts counts() const;

 private:
  struct Shape {
    int64_t rows = 0, blocks = 0;
    int64_t context_class = 0;
    bool operator==(const Shape&) const = default;
  };
  struct Form {
    Shape shape;
    std::optional<RecordedPart> work;
    Tensor logits;  // of it
  };
  Shape shape_of(const ForwardPassPlan& plan) const;
  void fill(const ForwardPassPlan& plan, const Shape& shape);
  Tensor compute(const Shape& shape, int64_t context);
  bool recordable(const Shape& shape) const;
  Form* form_of(const Shape& shape);
  void launch(Form& form);

  const models::Stage& stage_;
  Runtime& runtime_;
  nn::SequenceState& state_;
  const DecodePassOptions options_;
  const std::vector<int64_t> row_counts_;  // ascending
  Tensor integers_;                        // i32: tokens, positions, SequenceState::indices()
  DrawTensors draws_;
  std::optional<OwnArenas> arenas_;  // where passes are recorded
  std::list<Form> forms_;            // the one that was run last is the first
  Tensor logits_;                    // of the last pass, padded
  int64_t rows_ = 0;                 // of it
  bool drawn_ = false;               // any of them
  int64_t recorded_ = 0, launched_ = 0;
};

}  // namespace megatron::inference
