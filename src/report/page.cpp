#include "report/page.h"

#include <fmt/core.h>

#include <utility>

#include "base/error.h"
#include "base/progress.h"
#include "base/version.h"
#include "report/markup.h"
#include "report/page_sources.h"
#include "report/tables.h"

namespace megatron::report {
namespace {

using Parts = std::vector<std::pair<std::string_view, std::string>>;

// Replaces each {{name}} in the page by the part of that name. Inserted text is not scanned again.
std::string filled(std::string_view page, const Parts& parts) {
  std::string result;
  while (true) {
    const size_t begin = page.find("{{");
    result += page.substr(0, begin);
    if (begin == page.npos) return result;
    const size_t end = page.find("}}", begin);
    MG_ASSERT(end != page.npos);
    const std::string_view name = page.substr(begin + 2, end - begin - 2);
    bool found = false;
    for (const auto& [part, text] : parts) {
      if (part != name) continue;
      result += text;
      found = true;
    }
    MG_ASSERT(found);
    page.remove_prefix(end + 2);
  }
}

std::string title_of(const std::vector<RunHistory>& histories) {
  if (histories.size() > 3) return fmt::format("{} runs", histories.size());
  std::string title;
  for (const RunHistory& h : histories) title += (title.empty() ? "" : ", ") + h.name;
  return title;
}

// Lists the sources of the numbers, and how many of them the page shows.
std::string sources(const std::vector<RunHistory>& histories) {
  std::string result = "<ul>\n";
  for (const RunHistory& h : histories) {
    const auto kept = static_cast<int64_t>(h.steps.column(kIteration).size());
    result += fmt::format(
        "<li><code>{}</code>: {}, {} {}{}</li>\n", html(h.path),
        format_bytes(static_cast<double>(h.bytes)), grouped(h.steps.seen()),
        h.steps.seen() == 1 ? "step record" : "step records",
        h.steps.thinned()
            ? fmt::format(", {} of them on this page (all peaks and dips are kept)", grouped(kept))
            : "");
  }
  return result + "</ul>\n";
}

std::string section(std::string_view id, std::string_view heading, const std::string& body) {
  if (body.empty()) return "";
  return fmt::format(
      "<section id=\"{}\" aria-labelledby=\"{}-heading\">\n<h2 id=\"{}-heading\">{}</h2>\n{}"
      "</section>\n",
      id, id, id, heading, body);
}

}  // namespace

std::string report_page(const std::vector<RunHistory>& histories, const std::string& title) {
  MG_CHECK(!histories.empty(), "there is no run to report");
  const std::string shown = html(title.empty() ? title_of(histories) : title);
  return filled(kPageHtml, {{"title", shown},
                            {"style", std::string(kPageCss)},
                            {"figures", key_figures(histories)},
                            {"memory", section("memory", "Memory", memory_by_class(histories))},
                            {"layers", section("layers", "Layers", metrics_by_layer(histories))},
                            {"samples", section("samples", "Samples", samples(histories))},
                            {"configuration",
                             section("configuration", "Configuration", configuration(histories))},
                            {"events", section("events", "Events", saves_and_notes(histories))},
                            {"sources", sources(histories)},
                            {"version", html(version())},
                            {"data", curve_data(histories)},
                            {"script", std::string(kPageScript)}});
}

bool is_report_page(std::string_view beginning) {
  return beginning.starts_with("<!DOCTYPE html>") &&
         beginning.find("<p class=\"kicker\">Training report</p>") != beginning.npos;
}

}  // namespace megatron::report
