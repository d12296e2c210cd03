#include "models/decoder/simple.h"

#include "nn/replicated_linear.h"

namespace megatron::models {
namespace {

class LinearSublayer final : public Sublayer {
 public:
  LinearSublayer(nn::Builder& builder, const std::string& name, const LayerPlace& place)
      : linear_(builder, name + ".linear", place.model.hidden_size, place.model.hidden_size, false,
                matrix_init(place.model)) {}
  Var operator()(Tape& tape, const Var& x_TH, const nn::Batch&, bool) const override {
    return linear_(tape, x_TH);
  }

 private:
  nn::ReplicatedLinear linear_;
};

}  // namespace

std::unique_ptr<Sublayer> LayerPart<LinearConfig>::build(nn::Builder& builder,
                                                         const std::string& name,
                                                         const LinearConfig&,
                                                         const LayerPlace& place) {
  return std::make_unique<LinearSublayer>(builder, name, place);
}

}  // namespace megatron::models
