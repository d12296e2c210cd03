#include "parallel/layer_layout.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/json.h"

namespace megatron::parallel {
namespace {

std::optional<int64_t> number(const Json& entry, std::string_view key) {
  const Json* found = entry.find(key);
  if (found == nullptr || found->is_null()) return std::nullopt;
  return found->as_integer();
}

bool is_set(const Json& entry, std::string_view key) {
  const Json* found = entry.find(key);
  return found != nullptr && found->as_bool();
}

PipelineShape shape_of(int64_t stages, int64_t chunks) {
  PipelineShape shape;
  shape.kind = chunks > 1 ? ScheduleKind::interleaved : ScheduleKind::one_f_one_b;
  shape.stages = static_cast<int>(stages);
  shape.chunks = static_cast<int>(chunks);
  return shape;
}

// [stage, chunk, first layer, layers] of every virtual stage, as the fixture lists them. Where the
// depths of prediction are is not in it.
void compare(const std::vector<ModelPart>& parts, const PipelineShape& shape, const Json& entry) {
  ASSERT_EQ(parts.size(), static_cast<size_t>(shape.virtual_stages()));
  size_t listed = 0;
  for (const Json& row : entry["rank_chunk_offset_count"].as_array()) {
    const auto& numbers = row.as_array();
    const int virtual_stage = shape.virtual_stage(static_cast<int>(numbers[0].as_integer()),
                                                  static_cast<int>(numbers[1].as_integer()));
    const ModelPart expected = {numbers[2].as_integer(), numbers[3].as_integer(),
                                virtual_stage == 0, virtual_stage == shape.virtual_stages() - 1};
    ModelPart found = parts[static_cast<size_t>(virtual_stage)];
    found.predictions = expected.predictions;
    EXPECT_EQ(found, expected) << "virtual stage " << virtual_stage << " of "
                               << entry.dump().substr(0, 120);
    ++listed;
  }
  EXPECT_EQ(listed, parts.size());
}

std::string error_of(int64_t layers, const PipelineShape& shape, const LayerPlacement& placement) {
  try {
    place_layers(layers, shape, placement);
  } catch (const Error& error) {
    return error.what();
  }
  return "(nothing was thrown)";
}

void expect_error(int64_t layers, const PipelineShape& shape, const LayerPlacement& placement,
                  std::initializer_list<std::string_view> parts) {
  const std::string text = error_of(layers, shape, placement);
  for (const auto part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' in: " << text;
}

TEST(PlaceLayers, AsMegatronDoes) {
  int placed = 0, refused = 0;
  const Json file = Json::read(MEGATRON_GOLDEN "/pipeline/layers.json");
  for (const Json& entry : file["placement"].as_array()) {
    const PipelineShape shape = shape_of(*number(entry, "pp"), number(entry, "vpp").value_or(1));
    LayerPlacement placement;
    placement.first_stage_layers = number(entry, "first");
    placement.last_stage_layers = number(entry, "last");
    placement.count_embedding = is_set(entry, "emb");
    placement.count_loss = is_set(entry, "loss");
    const int64_t layers = *number(entry, "layers");
    // Megatron-LM detects a layer without a place elsewhere.
    if (entry.contains("error") || !entry["covers_every_layer_once"].as_bool()) {
      EXPECT_THROW(place_layers(layers, shape, placement), Error) << entry.dump();
      ++refused;
    } else {
      compare(place_layers(layers, shape, placement), shape, entry);
      ++placed;
    }
  }
  EXPECT_EQ(placed, 28);
  EXPECT_EQ(refused, 8);
}

// Text of a layout that the fixture gives as lists of names.
std::string text_of(const Json& layout) {
  if (layout.is_string()) return layout.as_string();
  std::string text;
  for (size_t i = 0; i < layout.as_array().size(); ++i) {
    if (i > 0) text += '|';
    for (const Json& name : layout.as_array()[i].as_array()) {
      switch (name.as_string()[0]) {
        case 'e': text += 'E'; break;
        case 'D':
        case 'd': text += 't'; break;
        case 'l': text += 'L'; break;
        default: text += name.as_string()[0];
      }
    }
  }
  return text;
}

TEST(PlaceLayers, ByMegatronsLayouts) {
  int placed = 0, refused = 0, mtp = 0;
  const Json file = Json::read(MEGATRON_GOLDEN "/pipeline/layers.json");
  for (const Json& entry : file["layouts"].as_array()) {
    LayerPlacement placement;
    placement.layout = text_of(entry["layout"]);
    const int64_t layers = *number(entry, "layers");
    const PipelineShape shape = shape_of(*number(entry, "pp"), number(entry, "vpp").value_or(1));
    if (entry.contains("num_stages")) {
      EXPECT_EQ(virtual_stages_of_layout(placement.layout), entry["num_stages"].as_integer());
    }
    if (number(entry, "mtp")) {
      const size_t m = placement.layout.find('m');
      if (m == std::string::npos) continue;  // another flag sets its number of MTP layers
      ++mtp;
      if (entry.contains("error")) {
        EXPECT_THROW(place_layers(layers, shape, placement), Error) << placement.layout;
      } else {
        compare(place_layers(layers, shape, placement), shape, entry);
        EXPECT_EQ(predictions_of_layout(placement.layout), *number(entry, "mtp"));
      }
    } else if (entry.contains("error")) {
      EXPECT_THROW(place_layers(layers, shape, placement), Error) << placement.layout;
      ++refused;
    } else {
      compare(place_layers(layers, shape, placement), shape, entry);
      ++placed;
    }
  }
  EXPECT_EQ(placed, 12);
  EXPECT_EQ(refused, 10);
  EXPECT_EQ(mtp, 6);
}

TEST(PlaceLayers, ABadLayoutNamesTheCharacter) {
  const auto expect = [](const std::string& layout, std::initializer_list<std::string_view> parts) {
    LayerPlacement placement;
    placement.layout = layout;
    expect_error(4, shape_of(2, 1), placement, parts);
  };
  expect("Ett|xtL", {"'x' at character 5", "made of E"});
  expect("Ett|t tL", {"' ' at character 6"});
  expect("E(tt|ttL", {"'(' at character 2", "no ) closes it"});
  expect("E(t(t|)*2)*2L", {"'(' at character 4", "cannot be nested"});
  expect("E(tt|)ttL", {"'t' at character 7", "*n"});
  expect("Ett|tt)L", {"')' at character 7"});
  expect("E()*2|L", {"')' at character 3", "are empty"});
  expect("Et*|L", {"'*' at character 3", "a number must follow"});
  expect("Et*0|L", {"'*' at character 3", "[1, "});
  expect("Et*99999999999999999999|L", {"'*' at character 3", "[1, "});
  expect("E(t*1000000)*1000000|L", {"'t' at character 3", "too many times"});
  expect("E(tt|)", {"ends too early", "*n"});
  expect("*2tt|L", {"'*' at character 1"});
  expect("tE|tttL", {"'t' at character 1", "must come first"});
  expect("EttE|ttL", {"'E' at character 4", "twice"});
  expect("EttL|ttL", {"'L' at character 4", "once"});
  expect("Ett|tt", {"'t' at character 6", "must come last"});
  expect("EttmttL", {"'t' at character 5", "MTP"});
  expect("Etttt|m|mL", {"'m' at character 9", "MTP", "in one virtual stage"});
  expect("|", {"has no E"});
  expect("Ett|tttL", {"has 5 layers", "--num-layers is 4"});
  expect("Ett|tt|L", {"3 virtual stages", "--pipeline-model-parallel-size 2"});
}

TEST(PlaceLayers, ErrorsNameNumbersAndFlags) {
  expect_error(25, shape_of(4, 1), {},
               {"--num-layers 25", "--pipeline-model-parallel-size 4",
                "--decoder-last-pipeline-num-layers"});
  expect_error(24, shape_of(4, 4), {}, {"the 6 layers", "4 virtual stages"});
  expect_error(26, shape_of(4, 1), {.first_stage_layers = 4},
               {"--decoder-first-pipeline-num-layers 4", "leave 22", "other 3"});
  expect_error(11, shape_of(2, 1), {.first_stage_layers = 5, .last_stage_layers = 5},
               {"first-pipeline-num-layers 5 and --decoder-last", "leave 1 of"});
  expect_error(5, shape_of(4, 1), {.first_stage_layers = 4}, {"need one layer each"});
  expect_error(5, shape_of(4, 1), {.first_stage_layers = 0}, {"is 0; it must lie in [1, "});
  expect_error(5, shape_of(1, 1), {.last_stage_layers = 1}, {"above 1"});
  expect_error(8, shape_of(4, 1), {.first_stage_layers = 2, .count_loss = true},
               {"cannot be combined with --account-for-loss-in-pipeline-split"});
  expect_error(8, shape_of(4, 1), {.count_loss = true, .layout = "Et*8|||L"},
               {"--pipeline-model-parallel-layout", "--account-for-loss"});
}

TEST(PlaceLayers, UnevenlyEveryLayerLiesSomewhere) {
  LayerPlacement placement;
  placement.uneven = true;
  for (int64_t layers = 0; layers <= 9; ++layers) {
    for (const int stages : {1, 2, 3, 4, 5}) {
      const std::vector<ModelPart> parts = place_layers(layers, shape_of(stages, 1), placement);
      int64_t next = 0;
      for (const ModelPart& part : parts) {
        EXPECT_EQ(part.first_layer, next);
        EXPECT_GE(part.layers, layers / stages);
        EXPECT_LE(part.layers, (layers + stages - 1) / stages);
        next += part.layers;
      }
      EXPECT_EQ(next, layers);
      EXPECT_TRUE(parts.front().embedding && parts.back().head);
    }
  }
}

// The depths of prediction and the final norm may have a stage before that of the loss.
TEST(PlaceLayers, PredictionsBeforeTheLoss) {
  using Predictions = ModelPart::Predictions;
  const auto parts = place_layers(3, shape_of(4, 1), {.layout = "Ett|tmm||L"});
  EXPECT_EQ(parts, (std::vector<ModelPart>{{0, 2, true, false},
                                           {2, 1, false, false, Predictions::here},
                                           {3, 0, false, false, Predictions::earlier},
                                           {3, 0, false, true, Predictions::earlier}}));
  EXPECT_EQ(stages_of_uses(std::vector<int64_t>{-1, 3, kHeadPlace}, 3, parts, shape_of(4, 1)),
            (std::vector<int>{0, 1, 3}));
  EXPECT_EQ(place_layers(3, shape_of(2, 1), {.layout = "Ett|tmmL"})[1],
            (ModelPart{2, 1, false, true}));
}

TEST(PlaceLayers, TheTwoArmsOfAV) {
  const PipelineShape shape = {.kind = ScheduleKind::zero_bubble_v, .stages = 2, .chunks = 2};
  const std::vector<ModelPart> parts = place_layers(8, shape, {});
  ASSERT_EQ(parts.size(), 4u);
  EXPECT_EQ(shape.stage_of(3), 0);
  EXPECT_EQ(parts[3], (ModelPart{6, 2, false, true}));
}

}  // namespace
}  // namespace megatron::parallel
