// A server under more load than it accepts.
#include "golden/server/load.h"

namespace megatron::testing {
namespace {

TEST(ServerLoad, NoneOfSomeHundredsIsLost) { expect_none_is_lost(300); }

}  // namespace
}  // namespace megatron::testing
