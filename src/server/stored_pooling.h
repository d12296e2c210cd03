// How a sentence-transformers directory pools hidden states to an embedding.
#pragma once

#include <string>

#include "inference/request.h"

namespace megatron::server {

// Returns the pooling in 1_Pooling/config.json of the directory (the mean, the first or the last
// token), or the mean without that file. Throws Error naming the file and an unsupported pooling.
inference::Pooling stored_pooling(const std::string& directory);

}  // namespace megatron::server
