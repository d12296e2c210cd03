// What a request holds its texts to: fields of vLLM's names, and calls of tools.
#pragma once

#include <string>
#include <vector>

#include "server/http/http_server.h"
#include "server/parameters.h"
#include "server/text_model.h"

namespace megatron::server {

// Of guided_json, guided_regex, guided_choice or structured_outputs; null: none is given. Throws
// ApiError 400.
SharedGrammar read_form(const Parameters& p, const TextModel& model);

// The parameters of the tools, or of the one of this name ("": all). One without parameters takes
// none.
std::vector<inference::ToolSchema> tool_schemas(const Json::Array& tools, const std::string& only);

// Adds the header X-Unenforced-Keywords where there are such.
HttpAnswer with_unenforced(HttpAnswer answer, const SharedGrammar& grammar);

}  // namespace megatron::server
