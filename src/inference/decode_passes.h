// Decode passes on CUDA, with one new token per text: captured once as CUDA graphs, then replayed.
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
  int64_t longest = 1;      // maximum tokens of a text
  int64_t row_counts = 16;  // most row counts that passes are padded to
  bool record = true;
  int64_t choices = 0;  // only ids below it are drawn; 0: this rank draws none
  comm::Group* tensor =
      nullptr;  // tensor-parallel ranks, which make the same passes; null: this rank alone
};

struct DecodePassCounts {
  int64_t recorded = 0;  // recorded passes
  int64_t launched = 0;  // passes launched as graphs, including the recorded ones
  int64_t bytes = 0;     // bytes of memory that passes own
};

// A pass is padded to one of a few shapes: the number of rows and the width of the block tables are
// rounded up to powers of two, within their maxima. Padding rows attend to nothing, are not
// stored and not sampled. What differs from pass to pass is first copied to fixed addresses:
// tokens, positions, block tables, sampling rules. A pass of one shape, one class of rotary angles
// and the same adapter in each row therefore does the same work on the same memory every time: it
// runs eagerly once (with adapters a few times), is then captured, and is replayed from then on.
// Its bits are the same in all three cases.
//
// Passes use separate memory (device/own_arenas.h) that all graphs share, since only one pass runs
// at a time.
//
// Passes always run eagerly if their rotary angles depend on the exact length of the texts, if
// their ranks communicate through host memory, or if their stream is observed.
class DecodePasses {
 public:
  // For a whole model or a tensor-parallel rank's part of it. All arguments are borrowed; the state
  // must not move.
  DecodePasses(const models::Stage& stage, Runtime& runtime, nn::SequenceState& state,
               const DecodePassOptions& options);
  DecodePasses(const DecodePasses&) = delete;
  DecodePasses& operator=(const DecodePasses&) = delete;

  // Queues a pass over rows of one token each, without labels and with adapters that share passes,
  // and the sampling that the rules allow (kernels::kSampleRules numbers per row). Collective over
  // the tensor-parallel ranks.
  void run(const ForwardPassPlan& plan, std::span<const double> rules);

  // Results of the pass, valid until the next one: logits of each row [rows,V], and the tokens
  // drawn once it has finished.
  Tensor logits() const { return logits_.slice(0, 0, rows_); }
  DeviceDraws draws() const;

  // Discards all captured graphs, since parameters may have moved.
  void forget() { forms_.clear(); }

  DecodePassCounts counts() const;

 private:
  struct Shape {
    int64_t rows = 0;
    nn::TableWidths widths;
    int64_t context_class = 0;
    std::vector<uint64_t> adapters;  // numbers of the rows'; empty: no row has one
    bool operator==(const Shape&) const = default;
  };
  struct Form {
    Shape shape;
    std::optional<RecordedPart> work;
    Tensor logits;  // of this form
    int eager = 0;  // passes that ran eagerly
  };
  Shape shape_of(const ForwardPassPlan& plan) const;
  void fill(const ForwardPassPlan& plan, const Shape& shape);
  void make_room();
  Tensor compute(const Shape& shape, const ForwardPassPlan& plan);
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
  std::optional<OwnArenas> arenas_;  // memory of recorded passes
  std::list<Form> forms_;            // most recently used first
  Tensor logits_;                    // logits of the last pass, padded
  int64_t rows_ = 0;                 // rows of the last pass
  bool drawn_ = false;               // whether it drew tokens
  int64_t recorded_ = 0, launched_ = 0;
};

}  // namespace megatron::inference
