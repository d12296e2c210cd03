// Reads conversations from JSON, in the shapes in which people store them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "corpus/chat/chat_tokens.h"

namespace megatron::corpus {

// One record becomes an example. Keys that decide, in this order:
//   messages                    [{"role", "content", ...}], as chat templates read them
//   conversations               ShareGPT's [{"from", "value"}]: human, gpt, system, function_call,
//                               observation
//   prompt, completion          both texts, or both lists of messages; loss on the completion only
//   instruction, output         Alpaca's, with an optional `input` behind the instruction and an
//                               optional `system`
// Besides them `tools` (a list of schemas, or the same as one JSON text) and `chat_template_kwargs`
// (other variables of the template). Arguments of tool calls that are JSON texts become objects.
// place: names the record in messages. Throws Error naming it and what is wrong: no such key, a
// value of another type, an unknown role, no answer.
ChatExample example_of(const Json& record, std::string place);

// The conversations of an example with messages, each of which begins at a system message.
std::vector<ChatExample> conversations_of(ChatExample example);

// A text that is scored at its end.
struct ScoredText {
  ChatExample text;
  std::optional<std::string> second = {};  // of two texts that are read as one input
  // A name (string) or an index (integer); or a list of them, of a text that may have several.
  Json label;
};
// {"text": TEXT, "label": ...}, with "text_pair" beside "text" for two texts, or a conversation in
// one of the shapes of example_of(), which need not have an answer, beside "label"; a list may be
// named "labels".
ScoredText labelled_of(const Json& record, std::string place);

// Two texts of which the first is preferred.
struct TextPair {
  ChatExample chosen, rejected;
  double margin = 0;  // by which the scores should differ
};
// {"chosen", "rejected"}, both texts or both lists of messages, behind an optional "prompt" of the
// same kind, with an optional number "margin".
TextPair pair_of(const Json& record, std::string place);

// A pair of completions of a prompt, or one completion.
struct Preference {
  std::vector<ChatExample> completions;  // chosen and rejected, or one; each behind the prompt
  bool desirable = true;                 // label of a single completion
  bool has_margin = false;               // only rewards read its value

  bool is_pair() const { return completions.size() == 2; }
};
// The shapes of pair_of(), without "prompt" also with a common beginning in its place: of lists
// their first messages, of texts their first characters (without a space before the difference), so
// that something is left of both. Or a conversation in one of the shapes of example_of() beside
// "rejected_response" (a text in place of its last message), "rejected_messages" (a conversation
// with the same beginning), or "label" (true or false; of conversations that do not say what is
// their prompt, for the last message).
Preference preference_of(const Json& record, std::string place);

// The record's `source`, or else its `channel`, if it is a text; otherwise the file of its place.
std::string source_of(const Json& record, const std::string& place);

// The files that these paths name: a path is a file, a directory or a pattern (data/input_list.h).
// Throws Error for a path that does not exist, and for Parquet files.
std::vector<std::string> example_files(const std::vector<std::string>& paths);

// Calls f with each record of the files, in order, and its place, until it returns false. A file
// has JSON lines, or one JSON array. Throws Error naming file and line.
void read_records(const std::vector<std::string>& paths,
                  const std::function<bool(Json record, std::string place)>& f);

}  // namespace megatron::corpus
