// Trains five families that together cover most features: windows and two rotary tables, fused
// matrices and longrope, parallel attention and MLP after one norm or two, and latent attention
// with experts whose routers have states. tests/slow/training has all families.
#include "golden/training/families.h"

namespace megatron::training {
namespace {

INSTANTIATE_TEST_SUITE_P(Families, FamilyTraining,
                         ::testing::ValuesIn(in_both_types({"gemma3_text", "phi3", "cohere2",
                                                            "falcon", "deepseek_v3"})),
                         name_of);

}  // namespace
}  // namespace megatron::training
