// One layer of a decoder, built from its value.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>

#include "models/decoder/value.h"
#include "models/stage.h"
#include "nn/builder.h"
#include "nn/cross_attention.h"
#include "nn/dropout.h"

namespace megatron::models {

// The part of a layer that mixes tokens, or that transforms each token by itself: maps x [T,H] to y
// [T,H].
class Sublayer {
 public:
  virtual ~Sublayer() = default;
  virtual Var operator()(Tape& tape, const Var& x_TH, const nn::Batch& batch, bool train) const = 0;
  // The same for a part that also reads other values than the hidden state from earlier layers.
  virtual Var with(Tape& tape, const Var& x_TH, const Bundle& passed_on, const nn::Batch& batch,
                   bool train) const {
    static_cast<void>(passed_on);
    return (*this)(tape, x_TH, batch, train);
  }
  // The same computation in parts, between which calls to other ranks are in flight.
  struct Parted {
    Var x_TH, y_TH;  // input of the first part; output of the last part
    std::any in_flight;
  };
  virtual int parts() const { return 1; }
  virtual void run_part(int part, Tape& tape, Parted& parted, const nn::Batch& batch,
                        bool train) const;
  // Shape of what inference caches per sequence; without heads: nothing.
  virtual nn::LayerCache cache() const { return {}; }
};

// A rotary table of the model that a mixer uses, for heads of this size.
struct RotaryUse {
  std::string name;
  int64_t head_size = 0;
};

// Tables indexed by position that the layers of a model share.
class PositionTables {
 public:
  void add(const RotaryUse& use, const DecoderValue& model, Runtime& runtime, DType type);
  // The temperature of an attention, if it has one.
  void add(const nn::AttentionConfig& attention, const DecoderValue& model, Runtime& runtime,
           DType type);
  // Tables that were added; null: none is used.
  const nn::RotaryTables* rotary(const std::optional<RotaryUse>& use) const;
  const nn::RotaryTable* temperature(const nn::AttentionConfig& attention) const;

 private:
  using TemperatureKey = std::tuple<double, int64_t, int64_t>;          // scale, step, head size
  std::map<std::pair<std::string, int64_t>, nn::RotaryTables> rotary_;  // key: name and head size
  std::map<TemperatureKey, nn::RotaryTable> temperatures_;
};

// Context that a layer takes from its model.
struct LayerPlace {
  const DecoderValue& model;
  const PositionTables& positions;  // borrowed by the layer
  int64_t index = 0;                // DecoderValue::layer()
  int64_t state_layer = 0;          // index in a SequenceState
  uint64_t seed = 0;                // dropout seed
};

// Bias of attention's scores by distance, which layers of an encoder or a decoder may share.
inline constexpr std::string_view kDistanceBias = "distance_bias";

class DecoderLayer {
 public:
  // Parameters are named "layers.<index>. ...".
  DecoderLayer(nn::Builder& builder, const LayerPlace& place);
  // Segments of this layer's Block (models/stage.h); the layer must outlive it.
  std::vector<Segment> segments() const;
  nn::LayerCache cache() const;

 private:
  // A sublayer with its norms and dropout.
  struct Branch {
    std::unique_ptr<nn::AddNorm> norm, post_norm, sum_norm;
    std::unique_ptr<Sublayer> sublayer;         // null if the layer has none
    std::unique_ptr<nn::CrossAttention> cross;  // the branch's sublayer if it is cross attention
    std::unique_ptr<nn::Dropout> dropout;
  };
  // value: a MixerValue or FeedForwardValue. Without a sublayer it builds nothing.
  template <class Value>
  Branch build_branch(nn::Builder& builder, const std::string& name, const Value& value,
                      const LayerPlace& place, bool norm) const;
  void build_cross(nn::Builder& builder, const std::string& name, const LayerPlace& place);
  static void build_norms(nn::Builder& builder, const std::string& name, const LayerPlace& place,
                          bool norm, Branch& branch);
  // Input of a branch, and the residual stream to which its result is added.
  struct Entered {
    Var x, sum;
  };
  Bundle forward(Tape& tape, const Bundle& in, const nn::Batch& batch, Phase phase) const;
  void forward_part(int part, Tape& tape, Flow& flow, const nn::Batch& batch, Phase phase) const;
  Entered enter(Tape& tape, const Branch& branch, const Bundle& in) const;
  Var leave(Tape& tape, const Branch& branch, Var y, const nn::Batch& batch, bool train) const;
  // What a branch passes on: `in` with what it adds to the residual stream.
  static Bundle passed_on(Tape& tape, const Branch& branch, Bundle in, Var y, Var sum);
  // in: other values than x that earlier layers passed on.
  Var result(Tape& tape, const Branch& branch, const Var& x, const Bundle& in,
             const nn::Batch& batch, bool train) const;
  Bundle attended(Tape& tape, const Bundle& in, const nn::Batch& batch, bool train) const;
  Bundle sequential(Tape& tape, const Branch& branch, const Bundle& in, const nn::Batch& batch,
                    bool train) const;
  Bundle parallel(Tape& tape, const Bundle& in, const nn::Batch& batch, bool train) const;

  LayerValue::Order order_;
  double residual_multiplier_;
  std::unique_ptr<nn::RelativePositions> relative_;  // null: none, or those of an earlier layer
  Branch mixer_, cross_, feed_forward_;
};

// Returns the residual stream of `in`, undefined if `in` comes from an earlier part and has none.
Var residual_of(const Bundle& in);
// Initial values of matrices, of matrices that produce the output of a block, and of the embeddings
// and the output layer.
parallel::Init matrix_init(const DecoderValue& model);
parallel::Init output_init(const DecoderValue& model);
parallel::Init embedding_init(const DecoderValue& model);

}  // namespace megatron::models
