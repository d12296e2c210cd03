#include "base/error.h"
#include "base/utf8.h"
#include "tokenizers/pre_tokenizers/pre_tokenizer_kinds.h"
#include "tokenizers/pre_tokenizers/spans.h"
#include "tokenizers/settings.h"

namespace megatron::tokenizers {
namespace {

enum class Scheme { always, first, never };

class Metaspace final : public PreTokenizer {
 public:
  Metaspace(std::string replacement, Scheme scheme, bool split)
      : replacement_(std::move(replacement)), scheme_(scheme), split_(split) {}

  void split(TextView text, RegexScratch&, EmitPiece emit) const override {
    Text marked(text);
    mark(marked);
    const TextView view = marked.view();
    if (!split_) return emit(view);
    size_t begin = 0;
    for (size_t at; (at = view.bytes.find(replacement_, begin + 1)) != std::string_view::npos;
         begin = at) {
      emit(view.part(begin, at));
    }
    emit(view.part(begin, view.bytes.size()));
  }

 private:
  void mark(Text& text) const {
    const TextView view = text.view();
    const std::string_view bytes = view.bytes;
    const bool asked =
        scheme_ == Scheme::always || (scheme_ == Scheme::first && view.begins_input());
    const bool prefixed = asked && bytes[0] != ' ' && !bytes.starts_with(replacement_);
    size_t space = bytes.find(' ');
    if (!prefixed && space == std::string_view::npos) return;
    TextEdit edit(text);
    if (prefixed) {
      const auto first = static_cast<size_t>(character_size(bytes[0]));
      edit.replace(replacement_);
      edit.insert(bytes.substr(0, first));
    }
    for (; space != std::string_view::npos; space = bytes.find(' ', space + 1)) {
      edit.keep(space - edit.position());
      edit.replace(replacement_);
    }
    edit.keep_all();
  }

  std::string replacement_;
  Scheme scheme_;
  bool split_;
};

Scheme scheme_of(const Json& settings) {
  const bool add_prefix_space = flag(settings, "add_prefix_space", true);
  const Json* scheme = settings.find("prepend_scheme");
  if (!scheme) return add_prefix_space ? Scheme::always : Scheme::never;
  const std::string& name = text_field(settings, "prepend_scheme");
  MG_CHECK(add_prefix_space || name == "never",
           "Metaspace: add_prefix_space is false, but prepend_scheme is '{}'", name);
  if (name == "always") return Scheme::always;
  if (name == "first") return Scheme::first;
  if (name == "never") return Scheme::never;
  fail("Metaspace: prepend_scheme '{}' is unknown; supported are always, first and never", name);
}

}  // namespace

std::unique_ptr<PreTokenizer> make_metaspace(const Json& settings) {
  return std::make_unique<Metaspace>(character_field(settings, "replacement"), scheme_of(settings),
                                     flag(settings, "split", true));
}

}  // namespace megatron::tokenizers
