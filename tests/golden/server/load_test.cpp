// A server that is asked for more than it takes.
#include "golden/server/load.h"

namespace megatron::testing {
namespace {

TEST(ServerLoad, NoneOfSomeHundredsIsLost) { expect_none_is_lost(300); }

}  // namespace
}  // namespace megatron::testing
