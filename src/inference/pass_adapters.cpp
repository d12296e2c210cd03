#include "inference/pass_adapters.h"

#include <charconv>

namespace megatron::inference {
namespace {

// True for "layers.3. ..." if 3 is one of the encoder's layers, and for cross attention's keys and
// values.
bool reads_encoder(std::string_view parameter, int64_t encoder_layers) {
  constexpr std::string_view kLayers = "layers.", kCross = ".cross_attention.kv.";
  if (!parameter.starts_with(kLayers)) return false;
  int64_t layer = 0;
  std::from_chars(parameter.data() + kLayers.size(), parameter.data() + parameter.size(), layer);
  return layer < encoder_layers || parameter.find(kCross) != parameter.npos;
}

}  // namespace

const RowAdapters& PassAdapters::of(const Weight& w) const {
  return reads_encoder(w.parameter->name, encoder_layers_) ? of_encoder_ : of_decoder_;
}

void PassAdapters::add(Tape& tape, const Weight& w, const Tensor& x, const Tensor& y) const {
  of(w).add(tape, w, x, y);
}

void PassAdapters::for_each_range(const Weight& w, const OfRows& f) const {
  of(w).for_each_range(w, f);
}

void PassAdapters::for_each_expert_range(const Weight& up, const Weight& down,
                                         const OfExpertRows& f) const {
  of(up).for_each_expert_range(up, down, f);
}

}  // namespace megatron::inference
