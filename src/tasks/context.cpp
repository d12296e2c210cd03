#include "tasks/context.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <set>

#include "base/error.h"
#include "jinja/unicode.h"

namespace megatron::tasks {
namespace {

constexpr uint32_t kSeed = 1234;  // default --seed of lm-evaluation-harness for few-shot examples

// Python's Random._randbelow for numbers up to 32 bits.
size_t below(data::RandomState& random, size_t size) {
  const int bits = static_cast<int>(std::bit_width(size));
  for (;;) {
    const size_t value = random.next() >> (32 - bits);
    if (value < size) return value;
  }
}

// Token placed before a text without a context.
int32_t prefix_token(const tokenizers::Tokenizer& tokenizer, const std::string& place) {
  const auto token = tokenizer.bos() ? tokenizer.bos() : tokenizer.eos();
  MG_CHECK(
      token.has_value(),
      "{}: the context is empty, and the tokenizer has no beginning-of-text token; give some text",
      place);
  return *token;
}

}  // namespace

std::vector<size_t> python_sample(data::RandomState& random, size_t size, size_t count) {
  MG_ASSERT(count <= size);
  std::vector<size_t> chosen;
  size_t few = 21;  // population size up to which it is copied
  if (count > 5)
    few += static_cast<size_t>(
        std::pow(4, std::ceil(std::log(static_cast<double>(3 * count)) / std::log(4.0))));
  if (size <= few) {
    std::vector<size_t> pool(size);
    for (size_t i = 0; i < size; ++i) pool[i] = i;
    for (size_t i = 0; i < count; ++i) {
      const size_t at = below(random, size - i);
      chosen.push_back(pool[at]);
      pool[at] = pool[size - i - 1];
    }
    return chosen;
  }
  std::set<size_t> taken;
  while (chosen.size() < count) {
    const size_t at = below(random, size);
    if (taken.insert(at).second) chosen.push_back(at);
  }
  return chosen;
}

Contexts::Contexts(const Task& task) : task_(task), own_(task.shots.empty()) {
  if (task.num_fewshot == 0) return;
  for (const Example& shot : own_ ? task.examples : task.shots)
    pools_[shot.subject].push_back(&shot);
  for (const Example& example : task.examples) {
    const size_t all = pools_[example.subject].size(),
                 needed = static_cast<size_t>(task.num_fewshot) + (own_ ? 1 : 0);
    const std::string of_subject =
        example.subject.empty() ? "" : " of subject '" + example.subject + "'";
    MG_CHECK(all >= needed,
             "{}: {} few-shot examples are requested (num_fewshot), but {} has only {}{}{}: lower "
             "--num-fewshot, or give fewshot_file in the first line of {}",
             example.place, task.num_fewshot, own_ ? "the file" : "fewshot_file", all, of_subject,
             own_ ? ", including itself" : "", task.path);
  }
}

Contexts::Pool Contexts::draw(Pool& pool, const Example& example) {
  const auto count = static_cast<size_t>(task_.num_fewshot);
  const auto others = [&](const Pool& all) {
    Pool rest;
    for (const Example* one : all)
      if (!own_ || one->source != example.source) rest.push_back(one);
    return rest;
  };
  Pool drawn;
  if (task_.sampler == Sampler::first_n) {
    drawn = others(pool);
  } else {
    data::RandomState& random =
        random_.try_emplace(example.subject, data::RandomState::python(kSeed)).first->second;
    const auto sample = [&](const Pool& from, size_t n) {
      MG_CHECK(n <= from.size(),
               "{}: {} few-shot examples are requested, but only {} of {} differ from it: lower "
               "--num-fewshot",
               example.place, count, from.size(), task_.path);
      Pool some;
      for (const size_t i : python_sample(random, from.size(), n)) some.push_back(from[i]);
      return some;
    };
    drawn = others(sample(pool, count + (own_ ? 1 : 0)));
    if (drawn.size() < count) drawn = sample(others(pool), count);
  }
  MG_CHECK(drawn.size() >= count,
           "{}: {} few-shot examples are requested, but only {} of {} differ from it: lower "
           "--num-fewshot",
           example.place, count, drawn.size(), task_.path);
  drawn.resize(count);
  return drawn;
}

std::string Contexts::next() {
  const std::string& text = task_.examples.at(at_).text;
  return next_preamble() + text;
}

std::string Contexts::next_preamble() {
  const Example& example = task_.examples.at(at_++);
  std::string context = task_.description_of(example);
  if (task_.num_fewshot > 0) {
    for (const Example* shot : draw(pools_.at(example.subject), example)) {
      context += shot->text;
      if (!shot->answer().empty())
        context += task_.target_delimiter + shot->answer() + task_.fewshot_delimiter;
    }
  }
  return context;
}

TokenPair encode_pair(const tokenizers::Tokenizer& tokenizer, const TokenOptions& options,
                      std::string context, std::string continuation, const std::string& place) {
  const size_t text = jinja::strip_space(context, false, true).size();
  if (!context.empty() && text < context.size()) {
    continuation = context.substr(text) + continuation;
    context.resize(text);
  }
  TokenPair pair;
  if (context.empty()) {
    pair.tokens = tokenizer.encode(continuation, false);
    const int32_t prefix = prefix_token(tokenizer, place);
    if (pair.tokens.empty() || pair.tokens[0] != prefix)
      pair.tokens.insert(pair.tokens.begin(), prefix);
    pair.context = 1;
  } else {
    pair.tokens = tokenizer.encode(context + continuation, options.add_bos_token);
    pair.context = std::ssize(tokenizer.encode(context, options.add_bos_token));
  }
  const int64_t scored = std::ssize(pair.tokens) - pair.context;
  MG_CHECK(scored > 0,
           "{}: the continuation {} adds no token to its context, so there is nothing to score",
           place, Json(continuation).dump());
  MG_CHECK(scored < options.positions,
           "{}: the continuation has {} tokens, but the model has only {} positions and can score "
           "at most {}",
           place, scored, options.positions, options.positions - 1);
  const int64_t dropped = std::max<int64_t>(0, std::ssize(pair.tokens) - options.positions);
  pair.tokens.erase(pair.tokens.begin(), pair.tokens.begin() + dropped);
  pair.context -= dropped;
  return pair;
}

std::vector<int32_t> encode_context(const tokenizers::Tokenizer& tokenizer,
                                    const TokenOptions& options, const std::string& context,
                                    int64_t room, const std::string& place) {
  MG_CHECK(room < options.positions,
           "{}: max_gen_toks is {}, but the model has only {} positions: lower max_gen_toks", place,
           room, options.positions);
  std::vector<int32_t> tokens = tokenizer.encode(context, options.add_bos_token);
  if (tokens.empty()) tokens.push_back(prefix_token(tokenizer, place));
  const int64_t dropped = std::max<int64_t>(0, std::ssize(tokens) - (options.positions - room));
  tokens.erase(tokens.begin(), tokens.begin() + dropped);
  return tokens;
}

}  // namespace megatron::tasks
