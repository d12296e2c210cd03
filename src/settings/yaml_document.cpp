#include "settings/yaml_document.h"

#include <yaml-cpp/eventhandler.h>

#include <algorithm>
#include <sstream>

#include "base/error.h"
#include "base/utf8.h"

namespace megatron::settings {
namespace {

// Discards a document's events.
class Nothing : public YAML::EventHandler {
  using Mark = YAML::Mark;
  using Anchor = YAML::anchor_t;
  using Style = YAML::EmitterStyle::value;
  using Text = std::string;

  void OnDocumentStart(const Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const Mark&, Anchor) override {}
  void OnAlias(const Mark&, Anchor) override {}
  void OnScalar(const Mark&, const Text&, Anchor, const Text&) override {}
  void OnSequenceStart(const Mark&, const Text&, Anchor, Style) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const Mark&, const Text&, Anchor, Style) override {}
  void OnMapEnd() override {}
};

// Documents of a text, at most `limit`. (YAML::LoadAll() never ends on a text such as ", a: 1".)
int count_documents(const std::string& text, int limit) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  Nothing handler;
  int count = 0;
  while (count < limit && parser.HandleNextDocument(handler)) ++count;
  return count;
}

// Returns the text of a file, changed so that every unclosed quote is an error.
std::string checked(std::string text, const std::string& path) {
  const size_t zero = text.find('\0');
  const auto line_of = [&](size_t at) {
    return std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n') + 1;
  };
  MG_CHECK(zero == text.npos, "{}:{}: a zero byte; a configuration file must be UTF-8 text", path,
           line_of(zero));
  MG_CHECK(is_utf8(text), "{} is not valid UTF-8; a configuration file must be UTF-8 text", path);
  // yaml-cpp takes the end of a file after a line's end for the closing quote. Within quotes the
  // added character precedes the end of the file; elsewhere it is a comment.
  if (text.ends_with('\n') || text.ends_with('\r')) text += '#';
  return text;
}

}  // namespace

std::optional<YAML::Node> load_yaml(std::string content, const std::string& path) {
  const std::string text = checked(std::move(content), path);
  try {
    const int documents = count_documents(text, 2);
    MG_CHECK(
        documents < 2,
        "{} contains more than one YAML document, or text after the end of one; give one document",
        path);
    if (documents == 0) return {};
    return YAML::Load(text);
  } catch (const YAML::Exception& e) {
    MG_CHECK(e.msg != YAML::ErrorMsg::EOF_IN_SCALAR,
             "{} ends inside a quoted string; close the quote", path);
    fail("{}:{}: not valid YAML: {}", path, e.mark.line + 1, e.msg);
  }
}

}  // namespace megatron::settings
