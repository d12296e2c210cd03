#include "cli/generate_lines.h"

#include "base/clock.h"
#include "base/log.h"
#include "checkpoint/file_list.h"
#include "checkpoint/fingerprint.h"

namespace megatron::cli {
namespace {

Json settings_of(const ContinuationLines::Source& source, const std::vector<std::string>& prompts) {
  std::string all;
  for (const std::string& prompt : prompts) all += Json(prompt).dump() + "\n";
  Json::Object settings = {{"the model", source.model},
                           {"the tokenizer", checkpoint::fingerprint(source.tokenizer)},
                           {"the prompts", checkpoint::hexadecimal(checkpoint::checksum(all))}};
  settings.insert(settings.end(), source.flags.begin(), source.flags.end());
  return Json(std::move(settings));
}

}  // namespace

Json::Object flags_of_texts(const Fields& fields) {
  Json::Object flags;
  for (const Field& field : fields.all()) {
    // The file of --tokenizer-model counts by its content.
    const bool of_tokenizer =
        field.group == "tokenizer" && field.given && field.name != "tokenizer-model";
    if (field.group != "sampling" && field.name != "logprobs" &&
        field.name != "return-routed-experts" && field.name != "bf16" && !of_tokenizer)
      continue;
    Json value(field.get());
    if (field.many) {
      Json::Array values;
      for (const std::string& one : field.get_all()) values.emplace_back(one);
      value = Json(std::move(values));
    }
    flags.emplace_back("--" + field.name, std::move(value));
  }
  return flags;
}

ContinuationLines::ContinuationLines(const Source& source, const std::vector<std::string>& prompts)
    : count_(std::ssize(prompts)),
      parts_(source.parts),
      lines_({.path = source.output,
              .flag = "--output",
              .settings = settings_of(source, prompts),
              .count = count_,
              .number = [](const Json& line) { return line["request"].as_integer(); }}),
      progress_("generating", count_, "prompts", lines_.done()),
      begin_(now_seconds()) {
  if (lines_.done() > 0)
    log::info("{}.partial: {} of {} prompts are done", source.output, lines_.done(), count_);
}

std::vector<size_t> ContinuationLines::missing() const {
  std::vector<size_t> numbers;
  for (int64_t n = 0; n < count_; ++n)
    if (!lines_.has(n)) numbers.push_back(static_cast<size_t>(n));
  return numbers;
}

void ContinuationLines::count_token() {
  const double speed = static_cast<double>(++tokens_) / (now_seconds() - begin_);
  progress_.update(lines_.done(), format_count(speed) + " tokens/s");
}

void ContinuationLines::add(size_t number, const Continuation& continuation) {
  lines_.append(static_cast<int64_t>(number), json_line(continuation, number, parts_));
}

void ContinuationLines::commit() {
  lines_.commit();
  progress_.update(count_);
}

}  // namespace megatron::cli
