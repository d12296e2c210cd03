// Training of five families that have most between them: windows and two rotary tables, fused
// matrices and longrope, attention and MLP in parallel after one norm or two, experts whose routers
// have states. tests/slow/training has all of them.
#include "golden/training/families.h"

namespace megatron::training {
namespace {

INSTANTIATE_TEST_SUITE_P(Families, FamilyTraining,
                         ::testing::ValuesIn(in_both_types({"gemma3_text", "phi3", "cohere2",
                                                            "falcon", "glm4_moe"})),
                         name_of);

}  // namespace
}  // namespace megatron::training
