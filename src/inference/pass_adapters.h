// The adapters of a pass that reads texts of an encoder beside those of the decoder.
#pragma once

#include <string_view>

#include "inference/adapter.h"

namespace megatron::inference {

// Products read rows of the decoder's batch, but for those of the encoder's layers and of cross
// attention's keys and values.
class PassAdapters final : public ProductAdditions {
 public:
  // encoder_layers: the first layers of the model.
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
