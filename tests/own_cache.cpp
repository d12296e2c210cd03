// Keeps tests, and the programs that they start, from writing to the user's cache.
#include <cstdlib>

namespace {

[[gnu::constructor]] void use_own_cache() { ::setenv("XDG_CACHE_HOME", MEGATRON_TEST_CACHE, 1); }

}  // namespace
