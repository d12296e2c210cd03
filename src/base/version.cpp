#include "base/version.h"

namespace megatron {

std::string_view version() { return MEGATRON_VERSION; }

}  // namespace megatron
