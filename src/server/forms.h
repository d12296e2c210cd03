// Grammars that a request sets for its texts, by fields with vLLM's names or by tool calls.
#pragma once

#include <string>
#include <vector>

#include "server/http/http_server.h"
#include "server/parameters.h"
#include "server/text_model.h"

namespace megatron::server {

// Returns the grammar of guided_json, guided_regex, guided_choice or structured_outputs, or null if
// none is given. Throws ApiError 400.
SharedGrammar read_form(const Parameters& p, const TextModel& model);

// Returns the parameter schemas of the tool named `only`, or of all tools if that is "". A tool
// without parameters takes none.
std::vector<inference::ToolSchema> tool_schemas(const Json::Array& tools, const std::string& only);

// Adds the header X-Unenforced-Keywords if the grammar has unenforced keywords.
HttpAnswer with_unenforced(HttpAnswer answer, const SharedGrammar& grammar);

}  // namespace megatron::server
