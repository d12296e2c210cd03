#include "data/troff/mdoc.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include "data/troff/characters.h"
#include "data/troff/page.h"

namespace megatron::data::troff {
namespace {

constexpr int kIndent = 6;

struct Enclosure {
  std::string_view whole, open, close, left, right;
};
constexpr Enclosure kEnclosures[] = {
    {"Op", "Oo", "Oc", "[", "]"},    {"Pq", "Po", "Pc", "(", ")"},   {"Bq", "Bo", "Bc", "[", "]"},
    {"Brq", "Bro", "Brc", "{", "}"}, {"Aq", "Ao", "Ac", "<", ">"},   {"Dq", "Do", "Dc", "“", "”"},
    {"Sq", "So", "Sc", "‘", "’"},    {"Qq", "Qo", "Qc", "\"", "\""}, {"Ql", "", "", "‘", "’"}};

constexpr std::string_view kTextMacros[] = {
    "Ad", "An", "Ar", "Cd", "Cm",  "Dv", "Em", "Er", "Ev", "Fa", "Fl", "Ft", "Ic", "Li",
    "Lb", "Ms", "No", "Pa", "Sx",  "Sy", "Tn", "Va", "Vt", "Nm", "Xr", "Ns", "Pf", "Ap",
    "Fn", "Fo", "Fc", "In", "Lk",  "Mt", "St", "Eo", "Ec", "Xo", "Xc", "Ux", "Bx", "Fx",
    "Nx", "Ox", "Dx", "At", "Bsx", "Ta", "Bk", "Ek", "Bf", "Ef", "Es", "En", "Db", "Tg"};

constexpr std::pair<std::string_view, std::string_view> kStandards[] = {
    {"-p1003.1-88", "IEEE Std 1003.1-1988 (“POSIX.1”)"},
    {"-p1003.1-90", "IEEE Std 1003.1-1990 (“POSIX.1”)"},
    {"-p1003.1-96", "ISO/IEC 9945-1:1996 (“POSIX.1”)"},
    {"-p1003.1-2001", "IEEE Std 1003.1-2001 (“POSIX.1”)"},
    {"-p1003.1-2004", "IEEE Std 1003.1-2004 (“POSIX.1”)"},
    {"-p1003.1-2008", "IEEE Std 1003.1-2008 (“POSIX.1”)"},
    {"-p1003.1", "IEEE Std 1003.1 (“POSIX.1”)"},
    {"-p1003.2-92", "IEEE Std 1003.2-1992 (“POSIX.2”)"},
    {"-p1003.2", "IEEE Std 1003.2 (“POSIX.2”)"},
    {"-ansiC", "ANSI X3.159-1989 (“ANSI C89”)"},
    {"-isoC", "ISO/IEC 9899:1990 (“ISO C90”)"},
    {"-isoC-99", "ISO/IEC 9899:1999 (“ISO C99”)"},
    {"-isoC-2011", "ISO/IEC 9899:2011 (“ISO C11”)"},
    {"-susv2", "Version 2 of the Single UNIX Specification (“SUSv2”)"},
    {"-susv3", "Version 3 of the Single UNIX Specification (“SUSv3”)"},
    {"-xpg4.2", "X/Open Portability Guide Issue 4, Version 2 (“XPG4.2”)"}};

constexpr std::pair<std::string_view, std::string_view> kSystems[] = {
    {"Ux", "UNIX"},    {"Bx", "BSD"},       {"Fx", "FreeBSD"}, {"Nx", "NetBSD"},
    {"Ox", "OpenBSD"}, {"Dx", "DragonFly"}, {"Bsx", "BSD/OS"}, {"At", "AT&T UNIX"}};

bool closes(std::string_view word) {
  return word.size() == 1 && std::string_view(".,:;)]?!").find(word[0]) != word.npos;
}
bool opens(std::string_view word) { return word == "(" || word == "["; }

bool callable(std::string_view word) {
  if (std::find(std::begin(kTextMacros), std::end(kTextMacros), word) != std::end(kTextMacros))
    return true;
  return !word.empty() &&
         std::any_of(std::begin(kEnclosures), std::end(kEnclosures), [&](const Enclosure& e) {
           return word == e.whole || word == e.open || word == e.close;
         });
}

}  // namespace

void Mdoc::Line::attach(std::string_view word) {
  if (!opened) text += kJoin;
  text += word;
  opened = true;
  glue = false;
}

void Mdoc::Line::add(std::string_view word) {
  if (opened && !glue && spacing) text += ' ';
  text += word;
  opened = true;
  glue = false;
}

Mdoc::Line Mdoc::new_line() const {
  Line line;
  line.spacing = spacing_;
  return line;
}

void Mdoc::put(const Line& line) {
  if (!line.opened) return;
  std::string text = line.glue ? line.text + kJoin : line.text;
  if (!spacing_ && unspaced_) text.insert(text.begin(), kJoin);
  unspaced_ = !spacing_;
  if (!collecting_) return page_.text(text);
  if (!head_.empty() && head_.back() != kJoin && text.front() != kJoin) head_ += ' ';
  head_ += text;
}

std::string Mdoc::render_all(const Words& words, size_t at) {
  Line line = new_line();
  render(words, at, words.size(), line);
  return line.text;
}

void Mdoc::call(const std::string& name, const Words& words) {
  if (block(name, words)) return;
  if (!callable(name)) return;
  const bool synopsis = section_ == "SYNOPSIS" && !collecting_;
  if (synopsis && name == "Nm") {  // further lines hang behind the name
    const int width = display_width(words.empty() || callable(words[0]) ? name_ : words[0]);
    page_.layout().begin_at(page_.margin());
    page_.layout().set_indent(page_.margin() + std::min(width + 1, 24));
  }
  if (synopsis && (name == "Ft" || name == "Fn" || name == "Fo" || name == "In" || name == "Vt")) {
    page_.layout().flush();
  }
  Line line = new_line();
  const size_t next = apply(name, words, 0, words.size(), line);
  render(words, next, words.size(), line);
  put(line);
  if (collecting_ && (name == "Xc" || std::find(words.begin(), words.end(), "Xc") != words.end())) {
    collecting_ = false;
    head(std::move(head_));
  }
  if (synopsis && (name == "Ft" || name == "Fn" || name == "Fc" || name == "In"))
    page_.layout().flush();
}

bool Mdoc::block(const std::string& name, const Words& words) {
  Layout& layout = page_.layout();
  if (name == "Sh") {
    section_ = render_all(words);
    lists_.clear();
    displays_.clear();
    collecting_ = false;
    page_.heading(section_, false);
  } else if (name == "Ss") {
    page_.heading(render_all(words), true);
  } else if (name == "Pp" || name == "Lp") {
    layout.blank();
  } else if (name == "Nd") {
    page_.text("- " + render_all(words));
  } else if (name == "Bl") {
    begin_list(words);
  } else if (name == "It") {
    item(words);
  } else if (name == "El") {
    layout.flush();
    if (!lists_.empty()) {
      layout.set_indent(lists_.back().base);
      lists_.pop_back();
    }
  } else if (name == "Bd" || name == "D1" || name == "Dl") {
    display(name == "Bd" ? words : Words{"-filled", "-offset", "indent", "-compact"});
    if (name != "Bd") {
      page_.text(render_all(words));
      call("Ed", {});
    }
  } else if (name == "Ed") {
    page_.set_fill(true);
    layout.flush();
    if (!displays_.empty()) {
      layout.set_indent(displays_.back());
      displays_.pop_back();
    }
  } else if (name == "Rs") {
    layout.blank();
  } else if (name.size() == 2 && name[0] == '%') {
    reference_part(name, words);
  } else if (name == "Ex") {
    const std::string who = words.size() > 1 ? words[1] : name_;
    page_.text("The " + who + " utility exits 0 on success, and >0 if an error occurs.");
  } else if (name == "Rv") {
    const std::string who = words.size() > 1 ? words[1] : name_;
    page_.text(
        "The " + who +
        "() function returns the value 0 if successful; otherwise the value -1 is returned and the "
        "global variable errno is set to indicate the error.");
  } else if (name == "Fd") {
    layout.flush();
    page_.text(render_all(words));
    layout.flush();
  } else if (name == "Sm") {
    spacing_ = words.empty() ? !spacing_ : words[0] == "on";
    unspaced_ = false;
  } else {
    return name == "Os" || name == "Re";
  }
  return true;
}

void Mdoc::reference_part(const std::string& name, const Words& words) {
  const std::string text = render_all(words);
  page_.text(name == "%T" ? "“" + text + "”," : text + ",");
}

void Mdoc::display(const Words& words) {
  Layout& layout = page_.layout();
  const auto has = [&](std::string_view word) {
    return std::find(words.begin(), words.end(), word) != words.end();
  };
  has("-compact") ? layout.flush() : layout.blank();
  displays_.push_back(layout.indent());
  if (displays_.size() > 1000) displays_.pop_back();
  const auto offset = std::find(words.begin(), words.end(), "-offset");
  int columns = 0;
  if (offset != words.end() && offset + 1 != words.end()) {
    const std::string& by = offset[1];
    columns = by == "indent"                                         ? kIndent
              : by == "indent-two"                                   ? 2 * kIndent
              : by == "left"                                         ? 0
              : std::isdigit(static_cast<unsigned char>(by[0])) != 0 ? page_.reader().columns(by)
                                                                     : display_width(by);
  }
  layout.set_indent(std::min(layout.indent() + std::clamp(columns, 0, 30), layout.width() - 24));
  if (has("-literal") || has("-unfilled")) page_.set_fill(false);
}

void Mdoc::begin_list(const Words& words) {
  List list;
  Layout& layout = page_.layout();
  list.base = layout.indent();
  list.kind = "item";
  int offset = 0;
  const auto measure = [&](const std::string& text) {
    if (text == "indent") return kIndent;
    if (!text.empty() && std::isdigit(static_cast<unsigned char>(text[0])) != 0)
      return page_.reader().columns(text);
    return display_width(text);
  };
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "-compact") list.compact = true;
    else if (word == "-width" && i + 1 < words.size())
      list.width = std::clamp(measure(words[++i]), 0, 40);
    else if (word == "-offset" && i + 1 < words.size())
      offset = std::clamp(measure(words[++i]), 0, 30);
    else if (word.starts_with('-') && i == 0) list.kind = word.substr(1);
    else if (list.kind == "column") list.columns.push_back(display_width(word));
  }
  if (list.width == 0)
    list.width = list.kind == "tag" || list.kind == "hang" ? 8 : list.kind == "enum" ? 2 : 1;
  list.base = std::min(list.base + offset, layout.width() - 24);
  if (lists_.size() < 1000) lists_.push_back(std::move(list));
}

void Mdoc::item(const Words& words) {
  if (lists_.empty()) return page_.text(render_all(words));
  List& list = lists_.back();
  Layout& layout = page_.layout();
  list.compact || list.kind == "column" ? layout.flush() : layout.blank();
  if (list.kind == "bullet") return head("•");
  if (list.kind == "dash" || list.kind == "hyphen") return head("-");
  if (list.kind == "enum") return head(std::to_string(++list.number) + ".");
  if (list.kind != "column") {
    head_ = render_all(words);
    const auto has = [&](std::string_view word) {
      return std::find(words.begin(), words.end(), word) != words.end();
    };
    collecting_ = has("Xo") && !has("Xc");
    if (!collecting_) head(std::move(head_));
    return;
  }
  layout.set_indent(list.base);
  std::string row;
  int column = 0;
  Words cell;
  size_t index = 0;
  const auto finish = [&] {
    row +=
        std::string(static_cast<size_t>(std::max(column - display_width(row), row.empty() ? 0 : 1)),
                    ' ') +
        render_all(cell);
    column += (index < list.columns.size() ? list.columns[index] : 10) + 2;
    ++index;
    cell.clear();
  };
  for (const std::string& word : words) {
    if (word == "Ta") finish();
    else cell.push_back(word);
  }
  finish();
  layout.line(row);
}

void Mdoc::head(std::string text) {
  head_.clear();
  if (lists_.empty()) return page_.text(text);
  const List& list = lists_.back();
  Layout& layout = page_.layout();
  if (list.kind == "item" || list.kind == "diag" || list.kind == "inset" || list.kind == "ohang") {
    layout.set_indent(list.base);
    if (!text.empty()) page_.text(text);
    if (list.kind == "ohang") layout.flush();
    return;
  }
  const int body = std::min(list.base + list.width + 2, layout.width() - 20);
  layout.set_indent(body);
  layout.tag(text, list.base, body);
}

void Mdoc::plain(std::string_view word, Line& line) {
  if (closes(word)) return line.attach(word);
  line.add(word);
  if (opens(word)) line.glue = true;
}

void Mdoc::render(const Words& words, size_t at, size_t end, Line& line) {
  while (at < end) {
    const std::string& word = words[at];
    if (callable(word)) {
      at = apply(word, words, at + 1, end, line);
    } else {
      plain(word, line);
      ++at;
    }
  }
}

// Applies a macro to the words from `at` on; returns where the line goes on.
size_t Mdoc::apply(const std::string& macro, const Words& words, size_t at, size_t end,
                   Line& line) {
  for (const Enclosure& e : kEnclosures) {
    if (macro == e.whole) {
      size_t stop = end;
      while (stop > at && closes(words[stop - 1])) --stop;
      line.add(e.left);
      line.glue = true;
      render(words, at, stop, line);
      line.attach(e.right);
      return stop;
    }
    if (macro == e.open) {
      line.add(e.left);
      line.glue = true;
      return at;
    }
    if (macro == e.close) {
      line.attach(e.right);
      return at;
    }
  }
  if (macro == "Ns") {
    line.glue = true;
    if (!line.opened) line.attach("");
    line.glue = true;
    return at;
  }
  if (macro == "Ap") {
    line.attach("'");
    line.glue = true;
    return at;
  }
  if (macro == "Pf" || macro == "Eo") {
    if (at < end) line.add(words[at++]);
    line.glue = true;
    return at;
  }
  if (macro == "Ec") {
    if (at < end) line.attach(words[at++]);
    return at;
  }
  if (macro == "Xo" || macro == "Xc" || macro == "Ta") return at;
  if (macro == "Bk" || macro == "Ek" || macro == "Bf" || macro == "Ef" || macro == "Db" ||
      macro == "Tg" || macro == "Es")
    return end;
  if (macro == "Fn" || macro == "Fo" || macro == "Fc") {
    if (macro == "Fn") return function(words, at, end, line);
    if (macro == "Fo") {
      line.add((at < end ? words[at] : std::string()) + "(");
      line.glue = in_function_ = first_argument_ = true;
      return std::min(at + 1, end);
    }
    in_function_ = false;
    line.attach(section_ == "SYNOPSIS" ? ");" : ")");
    return at;
  }
  if (macro == "Xr" && at < end) {
    const bool numbered = at + 1 < end && !closes(words[at + 1]) && !callable(words[at + 1]);
    line.add(numbered ? words[at] + "(" + words[at + 1] + ")" : words[at]);
    return at + (numbered ? 2 : 1);
  }
  if (macro == "In" && at < end) {
    line.add((section_ == "SYNOPSIS" ? "#include <" : "<") + words[at] + ">");
    return at + 1;
  }
  if (macro == "Lk" && at < end) {
    const std::string url = words[at++];
    std::string title;
    while (at < end && !closes(words[at])) title += words[at++] + " ";
    if (!title.empty()) title.back() = ':';
    if (!title.empty()) line.add(title);
    line.add(url);
    return at;
  }
  if (macro == "St" && at < end) {
    const auto found = std::find_if(std::begin(kStandards), std::end(kStandards),
                                    [&](const auto& s) { return s.first == words[at]; });
    line.add(found != std::end(kStandards) ? std::string(found->second)
                                           : words[at].substr(words[at].starts_with('-') ? 1 : 0));
    return at + 1;
  }
  if (macro == "Lb" && at < end) {
    line.add(words[at] == "libc" ? "Standard C Library (libc, -lc)"
                                 : "library “" + words[at] + "”");
    return at + 1;
  }
  if (system_name(macro, words, at, end, line)) {
    while (at < end && !closes(words[at]) && !callable(words[at])) ++at;
    return at;
  }
  if (macro == "An" && at < end && (words[at] == "-split" || words[at] == "-nosplit"))
    return at + 1;

  bool any = false;
  while (at < end && !callable(words[at])) {
    const std::string& word = words[at++];
    if (closes(word) || opens(word) || word == "|") {
      if (!any && macro == "Nm" && !name_.empty()) line.add(name_);
      any = any || macro == "Nm";
      plain(word, line);
      continue;
    }
    if (macro == "Fa" && in_function_) {
      if (!first_argument_) line.attach(",");
      first_argument_ = false;
    }
    if (macro == "Nm" && name_.empty()) name_ = word;
    line.add(macro == "Fl" ? "-" + word : word);
    any = true;
  }
  if (any) return at;
  if (macro == "Fl") line.add("-"), line.glue = at < end;
  if (macro == "Ar") line.add("file ...");
  if (macro == "Pa") line.add("~");
  if (macro == "Nm" && !name_.empty()) line.add(name_);
  return at;
}

size_t Mdoc::function(const Words& words, size_t at, size_t end, Line& line) {
  if (at >= end) return at;
  size_t stop = at + 1;
  while (stop < end && !closes(words[stop]) && !callable(words[stop])) ++stop;
  std::string call = words[at] + "(";
  for (size_t i = at + 1; i < stop; ++i) call += (i > at + 1 ? ", " : "") + words[i];
  line.add(call + (section_ == "SYNOPSIS" ? ");" : ")"));
  return stop;
}

bool Mdoc::system_name(const std::string& macro, const Words& words, size_t at, size_t end,
                       Line& line) {
  const auto found = std::find_if(std::begin(kSystems), std::end(kSystems),
                                  [&](const auto& s) { return s.first == macro; });
  if (found == std::end(kSystems)) return false;
  const bool versioned = at < end && !closes(words[at]) && !callable(words[at]);
  if (!versioned) {
    line.add(found->second);
  } else if (macro == "Bx") {
    line.add(words[at] + "BSD");
  } else if (macro == "At") {
    line.add(words[at].starts_with('v') ? "Version " + words[at].substr(1) + " AT&T UNIX"
                                        : "AT&T System " + words[at] + " UNIX");
  } else {
    line.add(std::string(found->second) + " " + words[at]);
  }
  return true;
}

}  // namespace megatron::data::troff
