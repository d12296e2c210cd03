// Tests keep nothing in the user's cache: neither they nor the programs that they start.
#include <cstdlib>

namespace {

[[gnu::constructor]] void use_own_cache() { ::setenv("XDG_CACHE_HOME", MEGATRON_TEST_CACHE, 1); }

}  // namespace
