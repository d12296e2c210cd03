#include "cli/generate_prompts.h"

#include <unistd.h>

#include "base/error.h"
#include "base/json.h"
#include "base/text_parts.h"
#include "cli/command.h"
#include "data/input_file.h"
#include "data/input_list.h"
#include "data/json_record.h"

namespace megatron::cli {
namespace {

// The newline that an editor or `echo` puts after the last line is not part of the prompt.
std::string without_last_newline(std::string text) {
  if (text.ends_with('\n')) text.pop_back();
  if (text.ends_with('\r')) text.pop_back();
  return text;
}

template <class F>
void for_each_line(const std::string& text, F&& f) {
  int64_t number = 0;
  for (std::string_view rest = text; !rest.empty();) {
    std::string line(take_until(rest, '\n'));
    if (line.ends_with('\r')) line.pop_back();
    ++number;
    if (line.find_first_not_of(" \t") != line.npos) f(number, line);
  }
}

// {"prompt": TEXT, ...}, or as Megatron-LM has it {"text": TEXT, ...}.
std::string prompt_of(const std::string& line, const std::string& origin) {
  const Json json = data::parse_record(line, origin);
  const char* const key = json.is_object() && json.contains("prompt") ? "prompt" : "text";
  const Json* const value = json.is_object() ? json.find(key) : nullptr;
  MG_CHECK(value != nullptr && value->is_string(),
           "{} is not a prompt; a line of JSON looks like {{\"prompt\": \"Once upon\"}}", origin);
  data::check_text(value->as_string(), fmt::format("{}: '{}'", origin, key));
  return value->as_string();
}

std::vector<std::string> read_prompt_file(const std::string& path, bool a_line) {
  const std::string text = data::read_unpacked(path);
  std::vector<std::string> prompts;
  if (data::named_like_json_lines(path)) {
    for_each_line(text, [&](int64_t number, const std::string& line) {
      prompts.push_back(prompt_of(line, fmt::format("{} line {}", path, number)));
    });
  } else if (a_line) {
    for_each_line(text, [&](int64_t, const std::string& line) { prompts.push_back(line); });
  } else {
    prompts.push_back(without_last_newline(text));
  }
  MG_CHECK(!prompts.empty(), "--prompt-file {} contains no prompt", path);
  return prompts;
}

std::string read_prompt_from_input() {
  std::string text = without_last_newline(read_standard_input());
  MG_CHECK(!text.empty(),
           "standard input contains no prompt; give one there, or with --prompt or --prompt-file");
  return text;
}

}  // namespace

void PromptSettings::fields(Fields& f) {
  f.begin_group("prompts");
  f.add("prompt", &prompts, "prompts to continue; - reads standard input");
  f.add("prompt-file", &file,
        "file with the prompt, possibly compressed (gzip, zstd); .jsonl: one prompt per line, as "
        "{\"prompt\": TEXT}");
  f.add_switch("prompt-a-line", &a_line, true, "each line of --prompt-file is a prompt");
  f.add_switch(
      "interactive", &interactive, true,
      "read lines and continue the text so far; the default on a terminal if no prompt is given");
}

bool PromptSettings::is_conversation() const {
  return interactive || (prompts.empty() && !file && isatty(STDIN_FILENO) == 1);
}

std::vector<std::string> PromptSettings::read() const {
  MG_CHECK(prompts.empty() || !file, "--prompt and --prompt-file are both given; use one of them");
  MG_CHECK(!a_line || file, "--prompt-a-line needs --prompt-file");
  MG_CHECK(!a_line || !data::named_like_json_lines(*file),
           "--prompt-file {} already has one prompt per line; drop --prompt-a-line", *file);
  if (file) return read_prompt_file(*file, a_line);
  if (prompts.empty()) return {read_prompt_from_input()};
  std::vector<std::string> all = prompts;
  bool read = false;
  for (std::string& prompt : all) {
    if (prompt != "-") continue;
    MG_CHECK(!read, "--prompt - is given twice, but standard input can be read only once");
    read = true;
    prompt = read_prompt_from_input();
  }
  return all;
}

}  // namespace megatron::cli
