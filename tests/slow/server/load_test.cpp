// Thousands of requests at four times a server's capacity.
#include "golden/server/load.h"

namespace megatron::testing {
namespace {

TEST(ServerLoad, NoneOfThousandsIsLost) { expect_none_is_lost(2000); }

}  // namespace
}  // namespace megatron::testing
