// Timeout for events that must happen. It only ends a hang: it is far above what a slow, busy
// machine takes, because no test may fail for slowness.
#pragma once

namespace megatron::testing {

inline constexpr int kHangSeconds = 200;

}  // namespace megatron::testing
