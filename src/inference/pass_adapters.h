// The adapters of a pass that reads texts of the encoder as well as of the decoder.
#pragma once

#include <string_view>

#include "inference/adapter.h"

namespace megatron::inference {

// Applies the encoder rows' adapters to the encoder's layers and to the keys and values of cross
// attention, and the decoder rows' adapters to everything else.
class PassAdapters final : public ProductAdditions {
 public:
  // encoder_layers: number of the encoder's layers, which are the model's first ones.
  PassAdapters(RowAdapters of_decoder, RowAdapters of_encoder, int64_t encoder_layers)
      : of_decoder_(std::move(of_decoder)),
        of_encoder_(std::move(of_encoder)),
        encoder_layers_(encoder_layers) {}
  bool any() const { return of_decoder_.any() || of_encoder_.any(); }

  void add(Tape& tape, const Weight& w, const Tensor& x, const Tensor& y) const override;
  void for_each_range(const Weight& w, const OfRows& f) const override;
  void for_each_expert_range(const Weight& up, const Weight& down,
                             const OfExpertRows& f) const override;

 private:
  const RowAdapters& of(const Weight& w) const;

  const RowAdapters of_decoder_, of_encoder_;
  const int64_t encoder_layers_;
};

}  // namespace megatron::inference
