#include <unicode/normalizer2.h>
#include <unicode/uniset.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "base/error.h"
#include "base/utf8.h"
#include "tokenizers/normalizers/normalizer_kinds.h"

namespace megatron::tokenizers {
namespace {

// A character of the result, with the `change` argument of TextEdit::write.
struct Written {
  char32_t character;
  uint8_t combining_class;
  int change;
};

class Form final : public Normalizer {
 public:
  explicit Form(NormalForm kind);
  void normalize(Text& text) const override;

 private:
  void decompose(std::string_view bytes, std::vector<Written>& out) const;
  void compose(std::vector<Written>& run) const;
  std::optional<char32_t> compose(char32_t first, char32_t second) const;

  bool composes_;
  const icu::Normalizer2* tables_ = nullptr;
  icu::UnicodeSet known_;   // Unicode 9
  icu::UnicodeSet active_;  // those that a text in this form cannot have, at least in some contexts
};

UProperty quick_check(NormalForm kind) {
  switch (kind) {
    case NormalForm::nfc: return UCHAR_NFC_QUICK_CHECK;
    case NormalForm::nfd: return UCHAR_NFD_QUICK_CHECK;
    case NormalForm::nfkc: return UCHAR_NFKC_QUICK_CHECK;
    default: return UCHAR_NFKD_QUICK_CHECK;
  }
}

Form::Form(NormalForm kind) : composes_(kind == NormalForm::nfc || kind == NormalForm::nfkc) {
  const bool canonical = kind == NormalForm::nfc || kind == NormalForm::nfd;
  UErrorCode status = U_ZERO_ERROR;
  tables_ = canonical ? icu::Normalizer2::getNFCInstance(status)
                      : icu::Normalizer2::getNFKCInstance(status);
  known_ = icu::UnicodeSet(u"[:age=9.0:]", status);
  icu::UnicodeSet starters, allowed;
  starters.applyIntPropertyValue(UCHAR_CANONICAL_COMBINING_CLASS, 0, status);
  allowed.applyIntPropertyValue(quick_check(kind), UNORM_YES, status);
  MG_CHECK(U_SUCCESS(status), "ICU's normalization data cannot be read: {}", u_errorName(status));
  active_ = known_;
  active_.removeAll(allowed.retainAll(starters));
  known_.freeze();
  active_.freeze();
}

// Appends full decompositions, with each run of combining characters ordered by their classes.
void Form::decompose(std::string_view bytes, std::vector<Written>& out) const {
  icu::UnicodeString mapping;
  const auto put = [&](UChar32 c, bool first) {
    const bool is_known = known_.contains(c);
    out.push_back({static_cast<char32_t>(c), is_known ? tables_->getCombiningClass(c) : uint8_t{0},
                   first ? 0 : 1});
  };
  for (size_t i = 0; i < bytes.size(); i += static_cast<size_t>(character_size(bytes[i]))) {
    const auto c = static_cast<UChar32>(character_at(bytes, i));
    if (!known_.contains(c) || !tables_->getDecomposition(c, mapping)) {
      put(c, true);
      continue;
    }
    for (int32_t k = 0; k < mapping.length(); k = mapping.moveIndex32(k, 1)) {
      put(mapping.char32At(k), k == 0);
    }
  }
  const auto is_starter = [](const Written& w) { return w.combining_class == 0; };
  for (auto at = out.begin(); at != out.end();) {
    at = std::find_if_not(at, out.end(), is_starter);
    const auto end = std::find_if(at, out.end(), is_starter);
    std::stable_sort(at, end, [](const Written& a, const Written& b) {
      return a.combining_class < b.combining_class;
    });
    at = end;
  }
}

std::optional<char32_t> Form::compose(char32_t first, char32_t second) const {
  const UChar32 c = tables_->composePair(static_cast<UChar32>(first), static_cast<UChar32>(second));
  if (c < 0 || !known_.contains(c)) return std::nullopt;
  return static_cast<char32_t>(c);
}

// Composes each starter with the following characters that are not blocked from it.
void Form::compose(std::vector<Written>& run) const {
  size_t size = 0;
  std::optional<size_t> starter;
  int last_class = 0;  // class of the last character between it and the next one; 0: none
  for (const Written next : run) {
    const bool blocked = last_class != 0 && last_class >= next.combining_class;
    if (starter && !blocked) {
      Written& first = run[*starter];
      if (const auto composed = compose(first.character, next.character)) {
        first.character = *composed;
        first.change += next.change - 1;
        continue;
      }
    }
    if (next.combining_class == 0) starter = size;
    last_class = next.combining_class;
    run[size++] = next;
  }
  run.resize(size);
}

bool is_same(const std::vector<Written>& run, std::string_view bytes) {
  size_t i = 0;
  for (const Written& w : run) {
    if (w.change != 0 || i == bytes.size() || character_at(bytes, i) != w.character) return false;
    i += static_cast<size_t>(character_size(bytes[i]));
  }
  return i == bytes.size();
}

void Form::normalize(Text& text) const {
  const std::string_view bytes = text.bytes();
  MG_CHECK(bytes.size() < (size_t{1} << 31),
           "a text of {} bytes is too long to normalize; the limit is 2 GB", bytes.size());
  const auto span = [&](size_t from, USetSpanCondition condition) {
    return from + static_cast<size_t>(active_.spanUTF8(
                      bytes.data() + from, static_cast<int32_t>(bytes.size() - from), condition));
  };
  std::optional<TextEdit> edit;
  std::vector<Written> run;
  size_t done = 0;
  while (true) {
    size_t begin = span(done, USET_SPAN_NOT_CONTAINED);
    if (begin == bytes.size()) break;
    const size_t end = span(begin, USET_SPAN_CONTAINED);
    if (composes_ && begin > done) begin = character_start_before(bytes, begin);
    const std::string_view old = bytes.substr(begin, end - begin);
    run.clear();
    decompose(old, run);
    if (composes_) compose(run);
    done = end;
    if (is_same(run, old)) continue;
    if (!edit) edit.emplace(text);
    edit->keep(begin - edit->position());
    for (const Written& w : run) edit->write(w.character, w.change);
  }
  if (edit) edit->keep_all();
}

}  // namespace

std::unique_ptr<Normalizer> make_normal_form(NormalForm form) {
  return std::make_unique<Form>(form);
}

}  // namespace megatron::tokenizers
