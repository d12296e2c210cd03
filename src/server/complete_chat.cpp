// POST /v1/chat/completions
#include <utility>

#include "server/chat_request.h"
#include "server/chat_text.h"
#include "server/completion_answer.h"
#include "server/logprobs.h"

namespace megatron::server {
namespace {

std::vector<ChoicePlan> plan(const ChatRequest& r, const RenderedPrompt& prompt,
                             const TextModel& model) {
  const uint64_t seed = random_seed();
  const int64_t room =
      room_for_text(model, std::ssize(prompt.tokens), r.generation.max_tokens, {}, "messages");
  require_prompt_logprobs(r.generation, std::ssize(prompt.tokens));
  std::vector<ChoicePlan> plans;
  for (int64_t i = 0; i < r.generation.requests(); ++i) {
    plans.push_back(plan_choice(r.generation, model, prompt.tokens, room, plans.size(), seed));
    if (r.logprobs) plans.back().request.logprobs = r.top_logprobs;
    if (i == 0 && r.generation.prompt_logprobs)
      score_prompt(plans.back(), *r.generation.prompt_logprobs);
    if (r.calls_tools && !r.must_call) plans.back().options.shown_special = model.tool_tokens();
  }
  return plans;
}

class ChatCompletion {
 public:
  ChatCompletion(const Api& api, ChatRequest request)
      : request_(std::move(request)),
        model_(api.model),
        frame_("chatcmpl-", api.model, request_.generation),
        prompt_(render(request_.chat, api.model)),
        generation_(api.model, api.engine, plan(request_, prompt_, api.model), api.deadline()),
        texts_(generation_.choices().size(), ChatText(format())) {}

  Json whole(const std::function<bool()>& client_gone) {
    generation_.finish(client_gone);
    Json::Array choices;
    for (size_t c = 0; c < texts_.size(); ++c) {
      const Piece piece = generation_.choices()[c].take_piece();
      ChatDelta said = texts_[c].push(piece.text);
      const ChatText::End end = finish(c, said);
      Json::Object message = {{"role", "assistant"}};
      if (!said.reasoning.empty()) message.emplace_back("reasoning_content", said.reasoning);
      message.emplace_back(
          "content", said.content.empty() && !end.calls.empty() ? Json() : Json(said.content));
      message.emplace_back("refusal", Json());
      if (!end.calls.empty()) message.emplace_back("tool_calls", calls(end.calls, false));
      choices.push_back(choice(c, "message", std::move(message), piece, reason(c, end)));
    }
    Json answer = frame_.of("chat.completion", std::move(choices), all_usage());
    if (const auto most = request_.generation.prompt_logprobs) {
      const Choice& first = generation_.choices()[0];
      answer.set("prompt_logprobs",
                 prompt_logprobs(model_, prompt_.tokens, first.prompt_log_probabilities(),
                                 first.prompt_alternatives(), *most));
    }
    return answer;
  }

  void stream(const EventWriter& events, const std::function<bool()>& client_gone) {
    const auto send = [&](size_t c, Json::Object delta, const Piece& piece, Json reason) {
      Json::Array one;
      one.push_back(choice(c, "delta", std::move(delta), piece, std::move(reason)));
      events.send(frame_.of("chat.completion.chunk", std::move(one), Json()));
    };
    for (size_t c = 0; c < texts_.size(); ++c)
      send(c, {{"role", "assistant"}, {"content", ""}}, {}, Json());
    std::vector<bool> ended(texts_.size());
    while (generation_.advance(client_gone)) {
      for (size_t c = 0; c < texts_.size(); ++c) {
        if (ended[c]) continue;
        const Piece piece = generation_.choices()[c].take_piece();
        ended[c] = generation_.choices()[c].finished();
        ChatDelta said = texts_[c].push(piece.text);
        ChatText::End end;
        if (ended[c]) end = finish(c, said);
        Json::Object delta;
        if (!said.reasoning.empty()) delta.emplace_back("reasoning_content", said.reasoning);
        if (!said.content.empty()) delta.emplace_back("content", said.content);
        if (!end.calls.empty()) delta.emplace_back("tool_calls", calls(end.calls, true));
        if (!delta.empty() || (request_.logprobs && !piece.tokens.empty()))
          send(c, std::move(delta), piece, Json());
        if (ended[c]) send(c, {}, {}, reason(c, end));
      }
    }
    if (request_.generation.include_usage)
      events.send(frame_.of("chat.completion.chunk", {}, all_usage()));
  }

  std::string note() const {
    return usage_note(std::ssize(prompt_.tokens), generation_.generated_tokens());
  }

 private:
  // A constrained text is not divided, unless it is constrained to the form of a call.
  ChatFormat format() const {
    if (request_.must_call) return ChatFormat::of_call();
    if (request_.generation.grammar) return {};
    return ChatFormat::of(model_, request_.calls_tools, prompt_.text);
  }

  // Adds the remaining text to the content.
  ChatText::End finish(size_t c, ChatDelta& said) {
    ChatText::End end = texts_[c].finish();
    said.reasoning += end.rest.reasoning;
    said.content += end.rest.content;
    if (!request_.parallel_tool_calls && end.calls.size() > 1) end.calls.resize(1);
    return end;
  }

  std::string reason(size_t c, const ChatText::End& end) const {
    return end.calls.empty() ? generation_.choices()[c].finish_reason() : "tool_calls";
  }

  static Json calls(const std::vector<ToolCall>& list, bool with_index) {
    Json::Array all;
    for (size_t i = 0; i < list.size(); ++i) {
      Json call = list[i].json();
      if (with_index) call.set("index", static_cast<int64_t>(i));
      all.push_back(std::move(call));
    }
    return Json(std::move(all));
  }

  Json choice(size_t c, const char* kind, Json::Object said, const Piece& piece,
              Json reason) const {
    const bool probable = request_.logprobs && !(piece.empty() && !reason.is_null());
    Json::Object choice = {{"index", static_cast<int64_t>(c)},
                           {kind, std::move(said)},
                           {"logprobs", probable ? chat_logprobs(model_, piece.tokens) : Json()},
                           {"finish_reason", std::move(reason)}};
    if (request_.generation.routed_experts)
      choice.emplace_back("routed_experts", generation_.choices()[c].routed_experts());
    return Json(std::move(choice));
  }

  Json all_usage() const {
    return usage(std::ssize(prompt_.tokens), generation_.generated_tokens(),
                 generation_.cached_tokens(0));
  }

  const ChatRequest request_;
  const TextModel& model_;
  const CompletionFrame frame_;
  const RenderedPrompt prompt_;
  Generation generation_;
  std::vector<ChatText> texts_;
};

}  // namespace

HttpAnswer complete_chat(const Api& api, const HttpRequest& request) {
  return answer_completion<ChatCompletion>(api, read_chat(parse_body(request.body), api.model),
                                           request);
}

}  // namespace megatron::server
