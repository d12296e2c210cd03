// Every family, each in its folder.
#pragma once

#include "models/families/family.h"

namespace megatron::models {

extern const DecoderFamily kGpt2, kGptNeox, kLlama, kMistral, kQwen2, kQwen3, kGemma2, kGemma3Text,
    kPhi3, kOlmo2, kGranite, kNemotron, kNemotronNas, kStarcoder2, kFalcon, kCohere2, kMixtral,
    kQwen2Moe, kQwen3Moe, kOlmoe, kGlm4Moe, kGptOss, kLlama4Text, kDeepseekV2, kDeepseekV3, kKimiK2,
    kMamba2, kBamba, kNemotronH, kFalconH1, kZamba2, kBert, kRoberta, kDistilbert, kModernbert,
    kEsm, kT5, kMt5, kUmt5;
extern const DecoderFamily kMegatron;  // supports every value

}  // namespace megatron::models
