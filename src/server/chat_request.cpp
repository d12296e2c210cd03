#include "server/chat_request.h"

#include <algorithm>
#include <array>

#include "server/forms.h"
#include "server/plain_chat.h"

namespace megatron::server {
namespace {

constexpr std::array<std::string_view, 5> kRoles = {"system", "developer", "user", "assistant",
                                                    "tool"};

// Concatenates the parts of a message, which must all be text.
std::string text_of_parts(const Parameters& message, const Json::Array& parts) {
  std::string text;
  for (const Json& part : parts) {
    const Json* type = part.is_object() ? part.find("type") : nullptr;
    const Json* content = part.is_object() ? part.find("text") : nullptr;
    if (type == nullptr || !type->is_string())
      message.fail("content", "contains " + shown(part) + "; a part is an object with a type");
    if (type->as_string() != "text")
      message.fail("content",
                   "has a part of type " + shown(*type) + "; this model only reads text");
    if (content == nullptr || !content->is_string())
      message.fail("content", "has a part without a string 'text'");
    text += content->as_string();
  }
  return text;
}

// Templates read a call's arguments as an object; clients send them as a string of JSON.
Json call_for_template(const Parameters& message, const Json& call) {
  const Json* function = call.is_object() ? call.find("function") : nullptr;
  const Json* name =
      function != nullptr && function->is_object() ? function->find("name") : nullptr;
  if (name == nullptr || !name->is_string())
    message.fail("tool_calls", "contains " + shown(call) +
                                   "; a call is an object with function: {name, arguments}");
  Json changed = call, of_call = *function;
  const Json* arguments = function->find("arguments");
  if (arguments != nullptr && arguments->is_string()) {
    try {
      of_call.set("arguments", Json::parse(arguments->as_string().empty()
                                               ? "{}"
                                               : std::string_view(arguments->as_string())));
    } catch (const Error&) {
      message.fail("tool_calls", "has arguments that are not JSON: " + shown(*arguments));
    }
  }
  changed.set("function", std::move(of_call));
  return changed;
}

Json message_for_template(const Parameters& message, const Json& given) {
  const std::optional<std::string> role = message.text("role");
  if (!role || std::ranges::find(kRoles, *role) == kRoles.end())
    message.fail("role", "is " + (role ? shown(Json(*role)) : std::string("missing")) +
                             "; it must be system, developer, user, assistant or tool");
  Json changed = given;
  if (*role == "developer") changed.set("role", "system");
  const Json* content = message.find("content");
  const Json::Array* calls = message.array("tool_calls");
  if (content == nullptr) {
    if (*role != "assistant") message.fail("content", "is missing");
    changed.set("content", "");
  } else if (content->is_array()) {
    changed.set("content", text_of_parts(message, content->as_array()));
  } else if (!content->is_string()) {
    message.fail("content", "is " + shown(*content) + "; it must be a string or a list of parts");
  }
  if (calls == nullptr || calls->empty()) return changed;
  if (*role != "assistant")
    message.fail("tool_calls", "is only allowed in a message of the assistant");
  Json::Array for_template;
  for (const Json& call : *calls) for_template.push_back(call_for_template(message, call));
  changed.set("tool_calls", std::move(for_template));
  return changed;
}

std::optional<Json::Array> read_tools(const Parameters& p) {
  const Json::Array* tools = p.array("tools");
  if (tools == nullptr || tools->empty()) return std::nullopt;
  for (const Json& tool : *tools) {
    const Json* type = tool.is_object() ? tool.find("type") : nullptr;
    const Json* function = tool.is_object() ? tool.find("function") : nullptr;
    const Json* name =
        function != nullptr && function->is_object() ? function->find("name") : nullptr;
    if (type == nullptr || *type != Json("function") || name == nullptr || !name->is_string())
      p.fail("tools", "contains " + shown(tool) +
                          "; a tool is {\"type\": \"function\", \"function\": {\"name\": ...}}");
    const Json* parameters = function->find("parameters");
    if (parameters != nullptr && !parameters->is_null() && !parameters->is_object())
      p.fail("tools", "has a tool whose parameters are not a JSON schema");
  }
  return *tools;
}

void read_tool_choice(const Parameters& p, const TextModel& model, ChatRequest& r) {
  const Json* choice = p.find("tool_choice");
  const bool has_tools = r.chat.tools.has_value();
  const std::string text = choice != nullptr && choice->is_string() ? choice->as_string() : "auto";
  r.calls_tools = has_tools && text != "none";
  if (choice == nullptr || text == "none") return;
  std::string only;
  if (choice->is_object()) {
    const Json* function = choice->find("function");
    const Json* name =
        function != nullptr && function->is_object() ? function->find("name") : nullptr;
    if (name == nullptr || !name->is_string())
      p.fail("tool_choice",
             "must be \"auto\", \"none\", \"required\", or {\"type\": \"function\", "
             "\"function\": {\"name\": ...}}");
    only = name->as_string();
  } else if (!choice->is_string() || (text != "auto" && text != "required")) {
    p.fail("tool_choice", "is " + shown(*choice) +
                              "; it must be \"auto\", \"none\", \"required\" or name a function");
  }
  if (only.empty() && text == "auto") return;
  if (!has_tools) p.fail("tool_choice", "needs tools");
  r.must_call = true;
  const std::vector<inference::ToolSchema> schemas = tool_schemas(*r.chat.tools, only);
  if (schemas.empty()) p.fail("tool_choice", "names a function that is not among the tools");
  r.generation.grammar =
      read_grammar(p, "tools", [&] { return model.grammars().tool_calls(schemas); });
}

// Reads chat_template_kwargs. Fails if a variable is also a field of the request.
Json::Object read_variables(const Parameters& p) {
  const Json* given = p.find("chat_template_kwargs");
  if (given == nullptr) return {};
  if (!given->is_object())
    p.fail("chat_template_kwargs", "is " + shown(*given) + "; it must be an object");
  for (const char* name : {"messages", "tools", "documents", "add_generation_prompt"})
    if (given->contains(name))
      p.fail("chat_template_kwargs",
             fmt::format("contains '{}'; give it as a field of its own", name));
  return given->as_object();
}

}  // namespace

tokenizers::Chat read_messages(const Parameters& p, bool prompts) {
  const Json::Array* messages = p.array("messages");
  if (messages == nullptr || messages->empty())
    p.fail("messages", messages == nullptr ? "is missing" : "is empty; give at least one message");
  tokenizers::Chat chat;
  for (size_t i = 0; i < messages->size(); ++i) {
    const std::string name = fmt::format("messages[{}]", i);
    const Json& given = (*messages)[i];
    if (!given.is_object()) p.fail(name, "is " + shown(given) + "; it must be an object");
    chat.messages.push_back(message_for_template(Parameters(given, name + "."), given));
  }
  chat.tools = read_tools(p);
  if (const Json::Array* documents = p.array("documents")) {
    for (const Json& document : *documents)
      if (!document.is_object()) p.fail("documents", "contains " + shown(document));
    if (!documents->empty()) chat.documents = *documents;
  }
  chat.variables = read_variables(p);
  const bool continues = p.boolean("continue_final_message").value_or(false);
  chat.add_generation_prompt = p.boolean("add_generation_prompt").value_or(prompts && !continues);
  if (continues && chat.add_generation_prompt)
    p.fail("continue_final_message", "cannot be true together with add_generation_prompt");
  if (continues) chat.continued = "content";
  chat.now = tokenizers::local_now();
  p.refuse({"chat_template"});
  return chat;
}

ChatRequest read_chat(const Json& body, const TextModel& model) {
  const Parameters p(body);
  check_model(p, model);
  if (model.encodes() && !model.has_chat_template())
    throw invalid_request(
        fmt::format("'{}' is an encoder-decoder without a chat template, which was not trained on "
                    "chats; use /v1/completions with the encoder's text as the prompt, or serve it "
                    "with --chat-template FILE",
                    model.name()),
        "model", "wrong_kind_of_model");
  ChatRequest r;
  r.generation = read_generation(p, model, {"max_completion_tokens", "max_tokens"});
  if (r.generation.max_tokens == 0) p.fail("max_tokens", "is 0; it must be 1 or more");
  r.logprobs = p.boolean("logprobs").value_or(false);
  const int64_t most = std::min(kMaxLogprobs, model.vocabulary());
  r.top_logprobs = p.integer("top_logprobs", 0, most).value_or(0);
  if (r.top_logprobs > 0 && !r.logprobs) p.fail("top_logprobs", "needs logprobs: true");
  r.chat = read_messages(p);
  read_tool_choice(p, model, r);
  if (!r.calls_tools) r.chat.tools.reset();
  if (r.calls_tools && !r.must_call && model.tool_format() == ToolFormat::none)
    p.fail("tools", "cannot be used: the chat template of this model does not support tool calls");
  r.parallel_tool_calls = p.boolean("parallel_tool_calls").value_or(true);
  read_response_format(p, model, r.generation);
  // Texts of beams end with the end token: stopping one would stop all.
  if (!model.has_chat_template() && !r.generation.grammar && !r.generation.beams)
    r.generation.stops.insert(r.generation.stops.end(), kPlainChatStops.begin(),
                              kPlainChatStops.end());
  const Json* modalities = p.find("modalities");
  if (modalities != nullptr && *modalities != Json(Json::Array{"text"}))
    p.fail("modalities", "must be [\"text\"]; this model only writes text");
  p.refuse({"functions",
            {"function_call", "none"},
            "audio",
            "prediction",
            "web_search_options",
            "echo",
            "suffix"});
  if (!r.generation.beams) p.refuse({{"best_of", 1}});
  return r;
}

RenderedPrompt render(const tokenizers::Chat& chat, const TextModel& model) {
  RenderedPrompt prompt;
  try {
    prompt.text = model.chat().render(chat).text;
  } catch (const jinja::TemplateError& e) {
    const std::string what = e.raised() ? "refuses the messages" : "fails in " + e.place();
    throw invalid_request("the chat template " + what + ": " + e.reason(), "messages");
  } catch (const Error& e) {
    throw invalid_request(std::string("the messages cannot be rendered: ") + e.what(), "messages");
  }
  prompt.tokens = model.encode(prompt.text, !model.has_chat_template());
  return prompt;
}

}  // namespace megatron::server
