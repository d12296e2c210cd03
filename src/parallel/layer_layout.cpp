#include "parallel/layer_layout.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace megatron::parallel {

namespace {

constexpr std::string_view kLayoutFlag = "--pipeline-model-parallel-layout";
constexpr size_t kLongest = size_t{1} << 20;  // length of a layout after expanding all repetitions

// One symbol of a layout and its position in the text.
struct Symbol {
  char symbol;
  size_t place;
};
using Symbols = std::vector<Symbol>;

// Reads a layout: symbols E t m L and '|', each one, or several in parentheses, optionally followed
// by *n for repetition. Commas have no effect.
class LayoutReader {
 public:
  explicit LayoutReader(const std::string& text) : text_(text) {}

  Symbols read() {
    while (!ended()) {
      if (text_[at_] == '(') {
        read_group();
      } else {
        const Symbol symbol = read_symbol();
        repeat({symbol}, has_factor() ? read_factor() : 1);
      }
    }
    return result_;
  }

 private:
  bool ended() {
    while (at_ < text_.size() && text_[at_] == ',') ++at_;
    return at_ == text_.size();
  }

  // `why` begins with a lower-case letter.
  [[noreturn]] void refuse(size_t place, std::string_view why) const {
    if (place >= text_.size()) fail("{} '{}' ends too early: {}", kLayoutFlag, text_, why);
    fail("{} '{}': '{}' at character {}: {}", kLayoutFlag, text_, text_[place], place + 1, why);
  }

  Symbol read_symbol() {
    if (std::string_view("EtmL|").find(text_[at_]) == std::string_view::npos) {
      refuse(at_,
             "a layout is made of E (embedding), t (layer), m (multi-token prediction), L (loss), "
             "| between virtual stages, and *n to repeat one of them or a group in parentheses");
    }
    return {text_[at_], at_++};
  }

  void read_group() {
    const size_t open = at_++;
    Symbols group;
    while (!ended() && text_[at_] != ')') {
      if (text_[at_] == '(') refuse(at_, "parentheses cannot be nested");
      const Symbol symbol = read_symbol();
      group.insert(group.end(), has_factor() ? static_cast<size_t>(read_factor()) : 1, symbol);
      if (group.size() > kLongest) refuse(symbol.place, "it is repeated too many times");
    }
    if (ended()) refuse(open, "no ) closes it");
    if (group.empty()) refuse(at_, "the parentheses are empty");
    ++at_;
    if (!has_factor()) refuse(at_, "a repeat count, *n, must follow the parentheses");
    repeat(group, read_factor());
  }

  bool has_factor() { return !ended() && text_[at_] == '*'; }

  int64_t read_factor() {
    const size_t star = at_++;
    int64_t factor = 0;
    size_t digits = 0;
    for (; !ended() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_, ++digits)
      factor = std::min<int64_t>(factor * 10 + (text_[at_] - '0'), kLongest + 1);
    if (digits == 0) refuse(star, "a number must follow it");
    if (factor < 1 || factor > static_cast<int64_t>(kLongest))
      refuse(star, fmt::format("the number after it must lie in [1, {}]", kLongest));
    return factor;
  }

  void repeat(const Symbols& symbols, int64_t times) {
    if (result_.size() + symbols.size() * static_cast<size_t>(times) > kLongest)
      refuse(symbols[0].place, "it is repeated too many times");
    for (int64_t i = 0; i < times; ++i)
      result_.insert(result_.end(), symbols.begin(), symbols.end());
  }

  const std::string& text_;
  size_t at_ = 0;
  Symbols result_;
};

void check_order(const Symbols& symbols, const std::string& text, int64_t num_layers) {
  const auto refuse = [&](const Symbol& symbol, std::string_view why) {
    fail("{} '{}': '{}' at character {}: {}", kLayoutFlag, text, symbol.symbol, symbol.place + 1,
         why);
  };
  Symbols content;
  for (const Symbol& symbol : symbols) {
    if (symbol.symbol != '|') content.push_back(symbol);
  }
  MG_CHECK(!content.empty(), "{} '{}' has no E, t and L", kLayoutFlag, text);
  if (content.front().symbol != 'E') refuse(content.front(), "the embedding, E, must come first");
  const auto predicts = [](const Symbol& symbol) { return symbol.symbol == 'm'; };
  for (size_t i = 1; i < content.size(); ++i) {
    if (content[i].symbol == 'E') refuse(content[i], "the embedding occurs twice");
    if (content[i].symbol == 'L' && i + 1 < content.size())
      refuse(content[i], "the loss must come last, and only once");
    if (content[i].symbol == 't' && content[i - 1].symbol == 'm')
      refuse(content[i], "a layer cannot follow multi-token prediction (MTP), m");
  }
  bool ended = false;  // the virtual stage of the first m
  for (auto at = std::ranges::find_if(symbols, predicts); at != symbols.end(); ++at) {
    if (at->symbol == 'm' && ended)
      refuse(*at, "all of multi-token prediction (MTP), m, must be in one virtual stage");
    ended = ended || at->symbol == '|';
  }
  if (content.back().symbol != 'L') refuse(content.back(), "the loss, L, must come last");
  const int64_t layers =
      static_cast<int64_t>(content.size()) - 2 - std::ranges::count_if(content, predicts);
  MG_CHECK(layers == num_layers,
           "{} '{}' has {} layers (t), but --num-layers is {}: change one of them", kLayoutFlag,
           text, layers, num_layers);
}

std::vector<ModelPart> place_by_layout(int64_t num_layers, const PipelineShape& shape,
                                       const std::string& text) {
  const Symbols symbols = LayoutReader(text).read();
  check_order(symbols, text, num_layers);
  using Predictions = ModelPart::Predictions;
  std::vector<ModelPart> parts = {{0, 0, false, false}};
  for (const Symbol& symbol : symbols) {
    ModelPart& part = parts.back();
    switch (symbol.symbol) {
      case 'E': part.embedding = true; break;
      case 't': ++part.layers; break;
      case 'm': part.predictions = Predictions::here; break;
      case 'L':
        part.head = true;
        if (part.predictions == Predictions::here) part.predictions = Predictions::with_head;
        break;
      case '|': {
        const bool before = part.predictions != Predictions::with_head;
        parts.push_back({part.first_layer + part.layers, 0, false, false,
                         before ? Predictions::earlier : Predictions::with_head});
        break;
      }
    }
  }
  MG_CHECK(static_cast<int>(parts.size()) == shape.virtual_stages(),
           "{} '{}' has {} virtual stages, and --pipeline-model-parallel-size {} stages with {} "
           "each make {}: the number of virtual stages must be a multiple of the number of stages",
           kLayoutFlag, text, parts.size(), shape.stages, shape.chunks, shape.virtual_stages());
  return parts;
}

// Layers of each virtual stage of a stage with `layers` layers.
int64_t of_piece(int64_t layers, const PipelineShape& shape, std::string_view whose) {
  MG_CHECK(layers % shape.chunks == 0,
           "the {} layers of {} cannot be divided by its {} virtual stages: change "
           "--num-layers-per-virtual-pipeline-stage or --num-virtual-stages-per-pipeline-rank, the "
           "layers of the stage, or give --pipeline-model-parallel-layout",
           layers, whose, shape.chunks);
  return layers / shape.chunks;
}

// Layers of each stage if those of the first or the last are given.
std::vector<int64_t> stages_by_ends(int64_t num_layers, const PipelineShape& shape,
                                    const LayerPlacement& placement) {
  constexpr std::string_view kFirst = "--decoder-first-pipeline-num-layers",
                             kLast = "--decoder-last-pipeline-num-layers";
  MG_CHECK(shape.stages > 1, "{} needs --pipeline-model-parallel-size above 1",
           placement.first_stage_layers ? kFirst : kLast);
  MG_CHECK(!placement.count_embedding && !placement.count_loss,
           "{} cannot be combined with {}: "
           "drop one",
           placement.first_stage_layers ? kFirst : kLast,
           placement.count_embedding ? "--account-for-embedding-in-pipeline-split"
                                     : "--account-for-loss-in-pipeline-split");
  std::string given;
  int64_t left = num_layers;
  int middle = shape.stages;
  for (const auto& [layers, flag] :
       {std::pair{placement.first_stage_layers, kFirst}, {placement.last_stage_layers, kLast}}) {
    if (!layers) continue;
    MG_CHECK(*layers >= 1 && *layers <= num_layers, "{} is {}; it must lie in [1, --num-layers {}]",
             flag, *layers, num_layers);
    left -= *layers;
    --middle;
    given += fmt::format("{}{} {}", given.empty() ? "" : " and ", flag, *layers);
  }
  MG_CHECK(middle == 0 ? left == 0 : left >= middle && left % middle == 0,
           "{} leave {} of --num-layers {} for the other {} of --pipeline-model-parallel-size {} "
           "stages, which {}: change one of them, or give --pipeline-model-parallel-layout",
           given, left, num_layers, middle, shape.stages,
           left < middle ? "need one layer each"
           : middle == 0 ? "has no room for them"
                         : "cannot divide them evenly");
  std::vector<int64_t> stages(static_cast<size_t>(shape.stages), middle == 0 ? 0 : left / middle);
  if (placement.first_stage_layers) stages.front() = *placement.first_stage_layers;
  if (placement.last_stage_layers) stages.back() = *placement.last_stage_layers;
  return stages;
}

std::vector<ModelPart> parts_of(const std::vector<int64_t>& layers) {
  std::vector<ModelPart> parts;
  int64_t first = 0;
  for (const int64_t n : layers) {
    parts.push_back({first, n, parts.empty(), parts.size() + 1 == layers.size()});
    first += n;
  }
  return parts;
}

// Equal number of layers everywhere, with the embedding and the loss counted as a layer if
// requested.
std::vector<int64_t> evenly(int64_t num_layers, const PipelineShape& shape,
                            const LayerPlacement& placement) {
  const int64_t total = num_layers + placement.count_embedding + placement.count_loss;
  MG_CHECK(total % shape.stages == 0,
           "--num-layers {}{}{} cannot be divided evenly by --pipeline-model-parallel-size {}: "
           "change one of them, or place the layers with --decoder-first-pipeline-num-layers, "
           "--decoder-last-pipeline-num-layers, --account-for-embedding-in-pipeline-split, "
           "--account-for-loss-in-pipeline-split or --pipeline-model-parallel-layout",
           num_layers, placement.count_embedding ? " and the embedding" : "",
           placement.count_loss ? " and the loss" : "", shape.stages);
  const int64_t each = of_piece(total / shape.stages, shape, "a pipeline stage");
  std::vector<int64_t> layers(static_cast<size_t>(shape.virtual_stages()), each);
  layers.front() -= placement.count_embedding;
  layers.back() -= placement.count_loss;
  MG_CHECK(layers.front() >= 0 && layers.back() >= 0,
           "--num-layers {} is too few for {} virtual stages, some of which are filled by the "
           "embedding and the loss: lower --pipeline-model-parallel-size",
           num_layers, shape.virtual_stages());
  return layers;
}

}  // namespace

std::vector<ModelPart> place_layers(int64_t num_layers, const PipelineShape& shape,
                                    const LayerPlacement& placement) {
  MG_CHECK(num_layers >= 0, "--num-layers is {}; it must be at least 0", num_layers);
  const bool ends = placement.first_stage_layers || placement.last_stage_layers;
  const bool counted = placement.count_embedding || placement.count_loss;
  if (!placement.layout.empty()) {
    MG_CHECK(!ends && !counted,
             "--pipeline-model-parallel-layout and {} both place the layers: drop one",
             placement.first_stage_layers  ? "--decoder-first-pipeline-num-layers"
             : placement.last_stage_layers ? "--decoder-last-pipeline-num-layers"
             : placement.count_embedding   ? "--account-for-embedding-in-pipeline-split"
                                           : "--account-for-loss-in-pipeline-split");
    return place_by_layout(num_layers, shape, placement.layout);
  }
  if (!ends && (counted || !placement.uneven))
    return parts_of(evenly(num_layers, shape, placement));
  std::vector<int64_t> layers;
  const int virtual_stages = shape.virtual_stages();
  if (ends) {
    const std::vector<int64_t> stages = stages_by_ends(num_layers, shape, placement);
    for (int virtual_stage = 0; virtual_stage < virtual_stages; ++virtual_stage) {
      const int stage = shape.stage_of(virtual_stage);
      layers.push_back(of_piece(stages[static_cast<size_t>(stage)], shape,
                                fmt::format("pipeline stage {}", stage)));
    }
  } else {
    for (int64_t virtual_stage = 0; virtual_stage < virtual_stages; ++virtual_stage)
      layers.push_back((virtual_stage + 1) * num_layers / virtual_stages -
                       virtual_stage * num_layers / virtual_stages);
  }
  return parts_of(layers);
}

int64_t predictions_of_layout(const std::string& layout) {
  const Symbols symbols = LayoutReader(layout).read();
  return std::ranges::count(symbols, 'm', &Symbol::symbol);
}

std::vector<int> stages_of_uses(std::span<const int64_t> used_in, int64_t num_layers,
                                std::span<const ModelPart> parts, const PipelineShape& shape) {
  std::vector<int> stages;
  for (const int64_t place : used_in) {
    const auto part = std::ranges::find_if(parts, [&](const ModelPart& p) {
      if (place < 0) return p.embedding;
      if (place == num_layers) return p.has_predictions();
      if (place == kHeadPlace) return p.head;
      return place >= p.first_layer && place < p.first_layer + p.layers;
    });
    MG_ASSERT(part != parts.end());
    stages.push_back(shape.stage_of(static_cast<int>(part - parts.begin())));
  }
  return stages;
}

int virtual_stages_of_layout(const std::string& layout) {
  const Symbols symbols = LayoutReader(layout).read();
  return 1 + static_cast<int>(std::count_if(symbols.begin(), symbols.end(),
                                            [](const Symbol& s) { return s.symbol == '|'; }));
}

}  // namespace megatron::parallel
