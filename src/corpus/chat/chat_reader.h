// Reads conversations from JSON, in the shapes in which people store them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "corpus/chat/chat_tokens.h"

namespace megatron::corpus {

// Converts one record to an example. Its shape is decided by the first of these keys that it has:
//   messages                    [{"role", "content", ...}], as chat templates read them
//   conversations               ShareGPT's [{"from", "value"}]: human, gpt, system, function_call,
//                               observation
//   prompt, completion          both texts, or both lists of messages; loss on the completion only
//   instruction, output         Alpaca's, with an optional `input` after the instruction and an
//                               optional `system`
// It may also have `tools` (a list of schemas, or the same as one JSON text) and
// `chat_template_kwargs` (further variables of the template). Arguments of tool calls that are JSON
// texts become objects.
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
// Reads {"text": TEXT, "label": ...}, with "text_pair" as well for two texts; or a conversation in
// one of the shapes of example_of(), which need not have an answer, with a "label". A list of
// labels may be named "labels".
ScoredText labelled_of(const Json& record, std::string place);

// Two texts of which the first is preferred.
struct TextPair {
  ChatExample chosen, rejected;
  double margin = 0;  // by which the scores should differ
};
// Reads {"chosen", "rejected"}, both texts or both lists of messages, with an optional "prompt" of
// the same kind, which precedes both, and an optional number "margin".
TextPair pair_of(const Json& record, std::string place);

// A pair of completions of a prompt, or one completion.
struct Preference {
  std::vector<ChatExample> completions;  // chosen and rejected, or one; each after the prompt
  bool desirable = true;                 // label of a single completion
  bool has_margin = false;               // only rewards read its value

  bool is_pair() const { return completions.size() == 2; }
};
// Reads the shapes of pair_of(). Without "prompt", the common beginning of both is the prompt: for
// lists their first messages, for texts their first characters (without a space before the
// difference), so that something is left of both. Also reads a conversation in one of the shapes of
// example_of() with "rejected_response" (a text that replaces its last message),
// "rejected_messages" (a conversation with the same beginning), or "label" (true or false; it is
// that of the last message if the conversation does not say what its prompt is).
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
