#include "data/troff/page.h"

#include <fmt/core.h>

#include <algorithm>
#include <tuple>

#include "data/troff/characters.h"
#include "data/troff/mdoc.h"

namespace megatron::data::troff {
namespace {

constexpr int kHang = 7, kSubsection = 3;

bool one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string joined(const std::vector<std::string>& words, std::string_view between) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i) {
    if (i > 0) text += between;
    text += words[i];
  }
  return text;
}

}  // namespace

Page::Page(Reader& reader, int width, int margin)
    : reader_(reader),
      layout_(width),
      base_(margin),
      margin_(margin),
      hang_(kHang),
      previous_indent_(margin) {
  layout_.set_indent(margin);
  reader_.set_register("an-margin", margin);
}

Page::~Page() = default;

void Page::set_fill(bool fill) {
  if (fill != fill_) layout_.flush();
  fill_ = fill;
}

void Page::text(std::string_view line) {
  if (equation_) return;
  if (next_ == Next::tag) return put_tag(line);
  if (next_ != Next::body) {
    const bool sub = next_ == Next::subheading;
    next_ = Next::body;
    return heading(line, sub);
  }
  if (line.find_first_not_of(" \t") == line.npos) return layout_.blank();
  if (center_ > 0) {
    --center_;
    return layout_.line(line);
  }
  if (!fill_) return layout_.line(line);
  const size_t leading = line.find_first_not_of(' ');
  if (leading > 0)
    layout_.begin_at(layout_.indent() + static_cast<int>(std::min<size_t>(leading, 40)));
  layout_.fill(line);
}

void Page::call(const std::string& name, const Arguments& arguments) {
  if (name == "Dd" || name == "Dt") {
    if (mdoc_ == nullptr) mdoc_ = std::make_unique<Mdoc>(*this);
    return;
  }
  if (name == "EQ" || name == "EN") equation_ = name == "EQ";
  if (equation_ || request(name, arguments)) return;
  if (mdoc_ != nullptr) return mdoc_->call(name, arguments);
  if (!paragraph(name, arguments)) inline_macro(name, arguments);
}

bool Page::request(const std::string& name, const Arguments& arguments) {
  if (name == "br") layout_.flush();
  else if (name == "sp") layout_.blank();
  else if (name == "nf") set_fill(false);
  else if (name == "fi") set_fill(true);
  else if (name == "in") indent_request(arguments);
  else if (name == "ti")
    layout_.begin_at(layout_.indent() +
                     (arguments.empty() ? 0 : std::clamp(reader_.columns(arguments[0]), -20, 20)));
  else if (name == "ce")
    center_ = arguments.empty() ? 1 : std::clamp(reader_.columns(arguments[0]), 0, 1000);
  else return false;
  return true;
}

void Page::indent_request(const Arguments& arguments) {
  layout_.flush();
  const int before = layout_.indent();
  int after = previous_indent_;
  if (!arguments.empty() && !arguments[0].empty()) {
    const int columns = std::clamp(reader_.columns(arguments[0]), -60, 60);
    const char sign = arguments[0][0];
    after = sign == '+' || sign == '-' ? before + columns : columns;
  }
  previous_indent_ = before;
  layout_.set_indent(std::clamp(after, 0, layout_.width() - 20));
}

void Page::heading(std::string_view title, bool sub) {
  margins_.clear();
  margin_ = base_;
  hang_ = kHang;
  set_fill(true);
  layout_.heading(title, sub ? kSubsection : 0);
  layout_.set_indent(margin_);
  reader_.set_register("an-margin", margin_);
}

void Page::space() {
  if (next_ == Next::tag && !tag_.empty()) put_tag("");
  next_ = Next::body;
  spaced_ ? layout_.blank() : layout_.flush();
}

void Page::start_paragraph() {
  space();
  hang_ = kHang;
  layout_.set_indent(margin_);
}

void Page::begin_tag(const Arguments& arguments, size_t width_at) {
  if (arguments.size() > width_at) hang_ = std::clamp(reader_.columns(arguments[width_at]), 0, 40);
  layout_.set_indent(margin_ + hang_);
}

void Page::put_tag(std::string_view text) {
  tag_ += text;
  if (tag_.ends_with(kJoin)) {
    tag_.pop_back();
    return;
  }
  next_ = Next::body;
  layout_.tag(tag_, margin_, margin_ + hang_);
  tag_.clear();
}

void Page::relative(const Arguments& arguments, bool in) {
  layout_.flush();
  next_ = Next::body;
  if (in) {
    margins_.emplace_back(margin_, hang_);
    if (margins_.size() > 1000) margins_.pop_back();
    const int by = arguments.empty() ? hang_ : std::clamp(reader_.columns(arguments[0]), -60, 60);
    margin_ = std::clamp(margin_ + by, 0, std::max(layout_.width() - 24, 0));
    hang_ = kHang;
  } else if (!margins_.empty()) {
    std::tie(margin_, hang_) = margins_.back();
    margins_.pop_back();
  }
  layout_.set_indent(margin_);
  reader_.set_register("an-margin", margin_);
}

bool Page::paragraph(const std::string& name, const Arguments& arguments) {
  if (name == "SH" || name == "SS") {
    if (!arguments.empty()) heading(joined(arguments, " "), name == "SS");
    else next_ = name == "SH" ? Next::heading : Next::subheading;
  } else if (one_of(name, {"PP", "P", "LP", "Pp"})) {
    start_paragraph();
  } else if (name == "TP" || name == "TQ") {
    if (name == "TQ") layout_.flush();
    else space();
    begin_tag(arguments, 0);
    next_ = Next::tag;
  } else if (name == "IP") {
    space();
    begin_tag(arguments, 1);
    if (!arguments.empty() && display_width(arguments[0]) > 0)
      layout_.tag(arguments[0], margin_, margin_ + hang_);
  } else if (name == "HP") {
    space();
    begin_tag(arguments, 0);
    layout_.begin_at(margin_);
  } else if (name == "RS" || name == "RE") {
    relative(arguments, name == "RS");
  } else if (name == "PD") {
    spaced_ = arguments.empty() || reader_.columns(arguments[0]) > 0;
  } else if (name == "EX" || name == "EE") {
    set_fill(name == "EE");
  } else if (name == "SY" || name == "YS") {
    layout_.flush();
    layout_.set_indent(margin_);
    if (name == "SY" && !arguments.empty()) {
      layout_.fill(arguments[0]);
      layout_.set_indent(margin_ + std::min(display_width(arguments[0]) + 1, 24));
    }
  } else {
    return false;
  }
  return true;
}

bool Page::inline_macro(const std::string& name, const Arguments& arguments) {
  if (one_of(name, {"B", "I", "R", "SM", "SB", "CW", "L"})) {
    if (!arguments.empty()) text(joined(arguments, " "));
  } else if (one_of(name, {"BI", "BR", "IB", "IR", "RB", "RI"})) {
    if (!arguments.empty()) text(joined(arguments, ""));
  } else if (name == "OP") {
    if (!arguments.empty())
      text(fmt::format("[{}]", joined(arguments, std::string(1, kHardSpace))));
  } else if (name == "UR" || name == "MT") {
    url_ = arguments.empty() ? "" : arguments[0];
  } else if (name == "UE" || name == "ME") {
    const std::string shown = url_.empty() ? std::string() : fmt::format("<{}>", url_);
    if (!shown.empty() || !arguments.empty()) text(shown + joined(arguments, " "));
    url_.clear();
  } else {
    return false;
  }
  return true;
}

void Page::table(const std::vector<std::string>& lines) {
  layout_.flush();
  for (const std::string& line : render_table(lines, reader_, layout_.width() - layout_.indent())) {
    if (line.empty()) layout_.blank();
    else layout_.line(line);
  }
}

}  // namespace megatron::data::troff
