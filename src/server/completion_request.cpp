#include "server/completion_request.h"

namespace megatron::server {

std::vector<Prompt> read_prompts(const Parameters& p, std::string_view name, const TextModel& model,
                                 bool add_special_tokens) {
  const Json* given = p.find(name);
  if (given == nullptr) p.fail(name, "is missing");
  const auto of_text = [&](const std::string& text) {
    return Prompt{text, model.encode(text, add_special_tokens)};
  };
  const auto of_tokens = [&](const Json::Array& list) {
    if (list.empty()) p.fail(name, "contains an empty list of tokens");
    Prompt prompt{"", read_tokens(p, name, list, model.vocabulary())};
    prompt.text = model.tokenizer().decode(prompt.tokens);
    return prompt;
  };
  if (given->is_string()) return {of_text(given->as_string())};
  if (!given->is_array() || given->as_array().empty())
    p.fail(name, "is " + (given->is_array() ? "an empty list" : shown(*given)) +
                     "; it must be a string, a list of tokens, or a list of either");
  const Json::Array& list = given->as_array();
  if (list[0].is_number()) return {of_tokens(list)};
  if (list.size() > static_cast<size_t>(kMaxTexts))
    p.fail(name, fmt::format("has {} prompts; at most {} are allowed", list.size(), kMaxTexts));
  std::vector<Prompt> prompts;
  for (const Json& one : list) {
    if (one.is_string()) {
      prompts.push_back(of_text(one.as_string()));
    } else if (one.is_array()) {
      prompts.push_back(of_tokens(one.as_array()));
    } else {
      p.fail(name, "contains " + shown(one) + "; a prompt is a string or a list of tokens");
    }
  }
  return prompts;
}

CompletionRequest read_completion(const Json& body, const TextModel& model) {
  const Parameters p(body);
  check_model(p, model);
  CompletionRequest r;
  r.generation = read_generation(p, model, {"max_tokens"});
  r.best_of = r.generation.n;
  if (!r.generation.beams) r.best_of = p.integer("best_of", 1, kMaxTexts).value_or(r.best_of);
  if (r.best_of < r.generation.n)
    p.fail("best_of", fmt::format("is {}, less than n, {}", r.best_of, r.generation.n));
  if (r.best_of > r.generation.n && r.generation.stream)
    p.fail("best_of", "is more than n, which cannot be streamed; leave out stream or best_of");
  r.logprobs = p.integer("logprobs", 0, std::min(kMaxLogprobs, model.vocabulary()));
  r.echo = p.boolean("echo").value_or(false);
  if (r.echo && model.encodes())
    p.fail("echo",
           "is true, but this model reads prompts with an encoder, and its texts do not "
           "continue them; leave it out");
  if (r.generation.max_tokens == 0 && !r.echo && !r.generation.prompt_logprobs)
    p.fail("max_tokens",
           "is 0, which needs echo: true or prompt_logprobs; otherwise the answer would be empty");
  if (r.generation.max_tokens == 0 && r.generation.beams)
    p.fail("max_tokens", "is 0, but use_beam_search needs at least 1");
  read_response_format(p, model, r.generation);
  p.refuse({"suffix", "tools"});
  r.prompts = read_prompts(p, "prompt", model);
  const int64_t each = std::max(r.best_of, r.generation.width());
  const auto texts = static_cast<int64_t>(r.prompts.size()) * each;
  if (texts > kMaxTexts)
    p.fail(each > r.generation.n ? "best_of" : "n",
           fmt::format("of {} for each of {} prompts makes {} texts; at most {} are allowed", each,
                       r.prompts.size(), texts, kMaxTexts));
  int64_t tokens = 0;
  for (const Prompt& prompt : r.prompts) tokens += std::ssize(prompt.tokens);
  require_prompt_logprobs(r.generation, tokens * r.generation.n);
  return r;
}

}  // namespace megatron::server
