// How the directories of sentence-transformers make embeddings of hidden states.
#pragma once

#include <string>

#include "inference/request.h"

namespace megatron::server {

// By 1_Pooling/config.json in the directory: the mean, the first or the last token. Without that
// file: the mean. Throws Error naming the file and a way of pooling that is not supported.
inference::Pooling stored_pooling(const std::string& directory);

}  // namespace megatron::server
