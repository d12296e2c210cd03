#include "report/tables.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "base/progress.h"
#include "base/utf8.h"
#include "report/figures.h"
#include "report/markup.h"

namespace megatron::report {
namespace {

constexpr size_t kLongestSample = 20000, kOpenSamples = 3, kShownSamples = 12;

std::string status_mark(const RunHistory& history) {
  const Status status = status_of(history);
  return fmt::format("<span class=\"status {}\">{}</span>", status.kind, html(status.text));
}

// Writes the day only once if it is the same.
std::string period(double begin, double end) {
  const std::string from = moment(begin), to = moment(end);
  const size_t day = from.find(' ');
  const bool same = day != from.npos && from.compare(0, day, to, 0, day) == 0;
  return from + " to " + (same ? to.substr(day + 1) : to);
}

std::string figure_tiles(const RunHistory& history) {
  std::string result = "<dl class=\"figures\">\n";
  for (const Figure& f : figures_of(history))
    result += fmt::format("<div><dt>{}</dt><dd><b>{}</b><span>{}</span></dd></div>\n",
                          html(f.label), html(f.value), html(f.detail));
  return result + "</dl>\n";
}

std::string figure_table(const std::vector<RunHistory>& histories) {
  std::vector<std::string> head = {"Run"};
  std::vector<std::vector<std::string>> rows;
  for (const Figure& f : figures_of(histories[0])) head.push_back(html(f.label));
  for (size_t i = 0; i < histories.size(); ++i) {
    std::vector<std::string> row = {swatch(i) + "<b>" + html(histories[i].name) + "</b> " +
                                    status_mark(histories[i])};
    for (const Figure& f : figures_of(histories[i]))
      row.push_back(fmt::format("{}<small>{}</small>", html(f.value), html(f.detail)));
    rows.push_back(std::move(row));
  }
  return table("Key figures", head, rows, "keys");
}

double memory_of(const RunHistory& history, int memory_class) {
  return history.steps.last_finite(kFirstMemoryClass + static_cast<size_t>(memory_class));
}

double memory_sum(const RunHistory& history) {
  double sum = 0;
  for (int i = 0; i < kMemoryClasses; ++i)
    if (const double bytes = memory_of(history, i); bytes > 0) sum += bytes;
  return sum;
}

std::string bytes_text(double bytes) { return std::isfinite(bytes) ? format_bytes(bytes) : "–"; }

std::string memory_bar(const RunHistory& history, double widest) {
  std::string parts, text;
  for (int i = 0; i < kMemoryClasses; ++i) {
    const double bytes = memory_of(history, i);
    if (!(bytes > 0)) continue;
    parts += fmt::format("<span class=\"part memory-{}\" style=\"width:{:.3f}%\"></span>", i,
                         100 * bytes / widest);
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name(static_cast<MemoryClass>(i)),
                        format_bytes(bytes));
  }
  return fmt::format("<div class=\"bar\" role=\"img\" aria-label=\"{}: {}\">{}</div>\n",
                     html(history.name), text, parts);
}

std::string cut_text(std::string_view text) {
  const std::string_view kept = whole_characters(text, kLongestSample);
  if (kept.size() == text.size()) return html(text);
  return html(kept) + fmt::format("<i> … {} bytes more</i>",
                                  grouped(static_cast<int64_t>(text.size() - kept.size())));
}

std::string left_out(const Records& records, std::string_view what) {
  const auto kept = static_cast<int64_t>(records.kept.size());
  if (records.seen == kept) return "";
  return fmt::format("<p class=\"aside\">{} of {} {} are shown.</p>\n", grouped(kept),
                     grouped(records.seen), what);
}

std::string iteration_text(const Json& record) {
  const double iteration = number_of(record, "iteration");
  return std::isfinite(iteration) ? grouped(static_cast<int64_t>(std::fmin(iteration, 1e15))) : "–";
}

std::string run_cell(const std::vector<RunHistory>& histories, size_t run) {
  return swatch(run) + html(histories[run].name);
}

std::string saves(const std::vector<RunHistory>& histories) {
  std::vector<std::vector<std::string>> rows;
  std::string more;
  const bool several = histories.size() > 1;
  for (size_t i = 0; i < histories.size(); ++i) {
    const Records& all = histories[i].saves;
    more += left_out(all, "saves of " + html(histories[i].name));
    for (auto r = all.kept.rbegin(); r != all.kept.rend(); ++r) {
      std::vector<std::string> row;
      if (several) row.push_back(run_cell(histories, i));
      const double wait = number_of(*r, "wait"), seconds = number_of(*r, "seconds");
      row.insert(row.end(), {iteration_text(*r), time_cell(number_of(*r, "time")),
                             bytes_text(number_of(*r, "bytes")),
                             std::isfinite(seconds) ? fmt::format("{:.2f} s", seconds) : "–",
                             std::isfinite(wait) ? fmt::format("{:.2f} s", wait) : "–",
                             "<code>" + html(text_of(*r, "path")) + "</code>"});
      rows.push_back(std::move(row));
    }
  }
  if (rows.empty()) return "<p class=\"aside\">The log contains no checkpoints.</p>\n";
  std::vector<std::string> head = {"Iteration",  "Time (UTC)",     "Size",
                                   "Written in", "Training stood", "Directory"};
  if (several) head.insert(head.begin(), "Run");
  return table("Checkpoints", head, rows, "long events") + more;
}

std::string notes(const std::vector<RunHistory>& histories) {
  std::vector<std::vector<std::string>> rows;
  std::string more;
  const bool several = histories.size() > 1;
  const auto add = [&](size_t run, const std::string& iteration, double time, bool warning,
                       const std::string& text) {
    std::vector<std::string> row;
    if (several) row.push_back(run_cell(histories, run));
    row.insert(row.end(),
               {iteration, time_cell(time),
                warning ? "<span class=\"status stopped\">warning</span>" : "note", text});
    rows.push_back(std::move(row));
  };
  for (size_t i = 0; i < histories.size(); ++i) {
    const RunHistory& h = histories[i];
    for (const Json& r : h.notes.kept)
      add(i, iteration_text(r), number_of(r, "time"), text_of(r, "level") == "warning",
          html(text_of(r, "text")));
    more += left_out(h.notes, "notes of " + html(h.name));
    for (const std::string& d : h.damages) add(i, "–", 0, true, html("passed over: " + d));
    const auto listed = static_cast<int64_t>(h.damages.size());
    if (h.damaged > listed)
      add(i, "–", 0, true,
          fmt::format("{} more lines are not records", grouped(h.damaged - listed)));
    if (h.cut) add(i, "–", 0, false, "the last line of the log is truncated and ignored");
    if (h.replaced > 0)
      add(i, "–", 0, false,
          fmt::format("{} records are ignored: a later session resumed from an earlier step and "
                      "repeated these iterations",
                      grouped(h.replaced)));
  }
  if (rows.empty()) return "<p class=\"aside\">No notes or warnings.</p>\n";
  std::vector<std::string> head = {"Iteration", "Time (UTC)", "Level", "Text"};
  if (several) head.insert(head.begin(), "Run");
  return table("Notes and warnings", head, rows, "long events") + more;
}

}  // namespace

std::string swatch(size_t run) {
  const char* stroke = run < 8 ? "" : run < 16 ? " dashed" : " dotted";
  return fmt::format("<i class=\"swatch run-{}{}\"></i>", run % 8, stroke);
}

std::string time_cell(double seconds_since_1970) {
  return "<time>" + moment(seconds_since_1970) + "</time>";
}

std::string table(const std::string& label, const std::vector<std::string>& head,
                  const std::vector<std::vector<std::string>>& rows, const std::string& kind) {
  std::string result = fmt::format(
      "<div class=\"scroll {}\" role=\"region\" tabindex=\"0\" aria-label=\"{}\"><table>\n<thead>"
      "<tr>",
      kind, html(label));
  for (const std::string& h : head) result += "<th scope=\"col\">" + h + "</th>";
  result += "</tr></thead>\n<tbody>\n";
  for (const auto& row : rows) {
    result += "<tr>";
    for (size_t i = 0; i < row.size(); ++i)
      result += i == 0 ? "<th scope=\"row\">" + row[i] + "</th>" : "<td>" + row[i] + "</td>";
    result += "</tr>\n";
  }
  return result + "</tbody>\n</table></div>\n";
}

std::string key_figures(const std::vector<RunHistory>& histories) {
  if (histories.size() > 1) return figure_table(histories);
  return "<p class=\"state\">" + status_mark(histories[0]) +
         fmt::format("<span>{} UTC</span></p>\n",
                     period(histories[0].first_time, histories[0].last_time)) +
         figure_tiles(histories[0]);
}

std::string memory_by_class(const std::vector<RunHistory>& histories) {
  double widest = 0;
  for (const RunHistory& h : histories) widest = std::max(widest, memory_sum(h));
  if (!(widest > 0) || !std::isfinite(widest)) return "";
  std::string bars;
  std::vector<std::string> head = {"Class"};
  std::vector<std::vector<std::string>> rows;
  for (const RunHistory& h : histories) {
    if (histories.size() > 1) bars += fmt::format("<p class=\"bar-name\">{}</p>", html(h.name));
    bars += memory_bar(h, widest);
    head.push_back(histories.size() > 1 ? html(h.name) : "Peak");
  }
  for (int i = 0; i < kMemoryClasses; ++i) {
    if (static_cast<MemoryClass>(i) == MemoryClass::offload &&
        std::ranges::none_of(histories, [i](const RunHistory& h) { return memory_of(h, i) > 0; }))
      continue;
    rows.push_back({fmt::format("<i class=\"swatch memory-{}\"></i>{}", i,
                                name(static_cast<MemoryClass>(i)))});
    for (const RunHistory& h : histories) rows.back().push_back(bytes_text(memory_of(h, i)));
  }
  rows.push_back({"all classes"});
  for (const RunHistory& h : histories) rows.back().push_back(bytes_text(memory_sum(h)));
  rows.push_back({"process, resident"});
  for (const RunHistory& h : histories)
    rows.back().push_back(bytes_text(h.steps.last_finite(kProcessMemory)));
  return "<div class=\"bars\">" + bars + "</div>\n" +
         table("Memory by class", head, rows, "numbers memory");
}

std::string samples(const std::vector<RunHistory>& histories) {
  struct Place {
    double iteration;
    size_t run;
    const Json* record;
  };
  std::vector<Place> all;
  std::string more;
  for (size_t i = 0; i < histories.size(); ++i) {
    for (const Json& r : histories[i].samples.kept)
      all.push_back({number_of(r, "iteration"), i, &r});
    more += left_out(histories[i].samples, "samples of " + html(histories[i].name));
  }
  if (all.empty()) return "<p class=\"aside\">The log contains no generated text.</p>\n";
  std::stable_sort(all.begin(), all.end(), [](const Place& a, const Place& b) {
    return std::isfinite(a.iteration) && (!std::isfinite(b.iteration) || a.iteration > b.iteration);
  });
  std::string result, earlier;
  for (size_t i = 0; i < all.size(); ++i) {
    const bool open = i < std::max(kOpenSamples, histories.size()) && i < 8;
    (i < kShownSamples ? result : earlier) += fmt::format(
        "<details class=\"sample\"{}><summary>{}iteration {}</summary>\n<p dir=\"auto\"><span "
        "class=\"prompt\">{}</span>{}</p></details>\n",
        open ? " open" : "", histories.size() > 1 ? run_cell(histories, all[i].run) + " · " : "",
        iteration_text(*all[i].record), cut_text(text_of(*all[i].record, "prompt")),
        cut_text(text_of(*all[i].record, "text")));
  }
  if (!earlier.empty())
    result +=
        fmt::format("<details class=\"sample\"><summary>{} earlier ones</summary>\n{}</details>\n",
                    all.size() - kShownSamples, earlier);
  return result + more;
}

std::string saves_and_notes(const std::vector<RunHistory>& histories) {
  return "<h3>Checkpoints</h3>\n" + saves(histories) + "<h3>Notes and warnings</h3>\n" +
         notes(histories);
}

}  // namespace megatron::report
