// page/chat.html, embedded in the program by cmake/embed.cmake.
#pragma once

#include <string_view>

namespace megatron::server {

extern const std::string_view kChatPage;

}  // namespace megatron::server
