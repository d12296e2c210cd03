// Chat format for models without a chat template: a line with the role, the content and an empty
// line (docs/serve.md).
#pragma once

#include <array>
#include <string_view>

namespace megatron::server {

inline constexpr std::string_view kPlainChatTemplate = R"({%- if tools -%}
tools:
{{ tools | tojson }}

{% endif %}
{%- for m in messages -%}
{{ m.role }}:
{{ m.content }}{{ m.tool_calls | tojson if m.tool_calls }}{{ "\n\n" if not loop.last or add_generation_prompt }}
{%- endfor %}
{{- "assistant:\n" if add_generation_prompt }})";

// Stop texts: the beginning of another message ends the model's message.
inline constexpr std::array<std::string_view, 4> kPlainChatStops = {
    "\n\nuser:", "\n\nassistant:", "\n\nsystem:", "\n\ntool:"};

}  // namespace megatron::server
