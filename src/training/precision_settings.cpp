#include "training/precision_settings.h"

namespace megatron::training {

void PrecisionSettings::fields(Fields& f) {
  f.add_switch(
      "bf16", &bf16, true,
      "parameters and activations in bfloat16, master weights and gradients in fp32; else fp32");
}

}  // namespace megatron::training
