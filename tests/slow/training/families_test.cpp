// Trains every family; golden/training trains five of them.
#include "golden/training/families.h"

namespace megatron::training {
namespace {

INSTANTIATE_TEST_SUITE_P(
    Families, FamilyTraining,
    ::testing::ValuesIn(in_both_types({std::begin(testing::kFamilyDirectories),
                                       std::end(testing::kFamilyDirectories)})),
    name_of);

}  // namespace
}  // namespace megatron::training
