// How long a test waits for what must come at all. Such a limit only ends a hang: it is far above
// what a slow, busy machine takes, since no test fails for slowness.
#pragma once

namespace megatron::testing {

inline constexpr int kHangSeconds = 200;

}  // namespace megatron::testing
