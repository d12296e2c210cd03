#include "report/log/timers.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "comm/values.h"

namespace megatron::report {
namespace {

constexpr std::array<std::string_view, 8> kNames = {
    "forward-backward", "all-grads-sync",  "optimizer-clip-main-grad", "optimizer-inner-step",
    "optimizer",        "batch-generator", "forward-compute",          "backward-compute"};
constexpr size_t kOfLevel1 = 5;

}  // namespace

double TimerFigure::least() const { return *std::ranges::min_element(ranks); }
double TimerFigure::most() const { return *std::ranges::max_element(ranks); }

void Timers::add(const StepTimes& t, double data_wait) {
  ++steps_;
  sum_.forward_backward += t.forward_backward;
  sum_.reduction += t.reduction;
  sum_.norm += t.norm;
  sum_.update += t.update;
  sum_.forward += t.forward;
  sum_.backward += t.backward;
  data_wait_ += data_wait;
}

std::vector<TimerFigure> Timers::take(comm::Group& world, Stream& stream) {
  MG_ASSERT(steps_ > 0);
  const StepTimes t = std::exchange(sum_, {});
  const std::array mine = {t.forward_backward, t.reduction,       t.norm,
                           t.update,           t.norm + t.update, std::exchange(data_wait_, 0),
                           t.forward,          t.backward};
  const auto steps = static_cast<double>(std::exchange(steps_, 0));
  const size_t count = level_ >= 2 ? kNames.size() : kOfLevel1;
  const auto ranks = static_cast<size_t>(world.size());
  // Each rank fills its row; the other rows are 0, below any time.
  std::vector<double> rows(ranks * count, 0.0);
  for (size_t i = 0; i < count; ++i)
    rows[static_cast<size_t>(world.rank()) * count + i] = mine[i] / steps;
  std::vector<TimerFigure> figures;
  comm::largest(world, stream, rows, "timers");
  for (size_t i = 0; i < count; ++i) {
    TimerFigure figure{kNames[i], {}};
    for (size_t rank = 0; rank < ranks; ++rank) figure.ranks.push_back(rows[rank * count + i]);
    figures.push_back(std::move(figure));
  }
  return figures;
}

std::string timer_text(const std::vector<TimerFigure>& figures, std::string_view option) {
  constexpr size_t kNameWidth = 48;
  std::string text = option == "max"   ? "max time across ranks (ms):"
                     : option == "all" ? "times across ranks (ms):"
                                       : "(min, max) time across ranks (ms):";
  for (const TimerFigure& f : figures) {
    const std::string name = fmt::format("{} {:.<{}}", f.name, "", kNameWidth - f.name.size() - 1);
    if (option == "max") {
      text += fmt::format("\n    {}: {:.2f}", name, 1e3 * f.most());
    } else if (option == "minmax") {
      text += fmt::format("\n    {}: ({:.2f}, {:.2f})", name, 1e3 * f.least(), 1e3 * f.most());
    } else {
      text += fmt::format("\n  {}:", f.name);
      for (size_t rank = 0; rank < f.ranks.size(); ++rank)
        text += fmt::format("\n     rank {:2}: {:.2f}", rank, 1e3 * f.ranks[rank]);
    }
  }
  return text;
}

Json timers_to_json(const std::vector<TimerFigure>& figures, std::string_view option) {
  Json::Object object;
  for (const TimerFigure& f : figures) {
    Json::Object one;
    if (option != "max") one.emplace_back("least", f.least());
    one.emplace_back("most", f.most());
    if (option == "all") {
      Json::Array ranks;
      for (const double seconds : f.ranks) ranks.emplace_back(seconds);
      one.emplace_back("ranks", std::move(ranks));
    }
    object.emplace_back(std::string(f.name), std::move(one));
  }
  return object;
}

}  // namespace megatron::report
