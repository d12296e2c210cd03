#include "models/model.h"

#include <fmt/ranges.h>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/model_directory.h"
#include "models/adapters/lora_config.h"
#include "models/decoder/definition.h"
#include "models/decoder/flags.h"
#include "models/families/family.h"
#include "models/model_flags.h"
#include "models/stage.h"
#include "models/upcycling.h"

namespace megatron::models {

std::unique_ptr<Stage> Model::build(Runtime& runtime, DType type, uint64_t seed,
                                    const parallel::ModelPart& part,
                                    const parallel::ModelRanks& ranks) const {
  return definition_->build(runtime, type, seed, part, ranks);
}

std::unique_ptr<Stage> Model::build(Runtime& runtime, DType type, uint64_t seed) const {
  if (definition_->low_precision() != nullptr)
    return definition_->with({.leaves_low_precision = true}).build(runtime, type, seed);
  auto stage = build(runtime, type, seed, {.layers = definition_->num_layers()}, {});
  parallel::allocate(tensors_of(*stage), runtime);
  return stage;
}

UpcycledModel ModelDefinition::upcycled(const UpcyclingFlags&) const {
  fail(
      "--moe-use-upcycling: a model of type {} has no feed-forward blocks that could become "
      "experts",
      family());
}

Model ModelDefinition::base() const { throw InternalError("the model has no adapter"); }

Model without_adapter(const Model& model) {
  return model->adapter() == nullptr ? model : model->base();
}

std::vector<std::string_view> family_names() {
  std::vector<std::string_view> names;
  for (const DecoderFamily* family : families()) names.push_back(family->name);
  return names;
}

namespace {

// The model with the head of `new_scores` labels that an adapter brings; 0: it brings none.
Model with_new_head(const Model& model, const Json& config, const Json& adapter,
                    int64_t new_scores) {
  if (new_scores == 0 || model->score_labels() > 0) return model;
  ScoreHead head;
  for (int64_t i = 0; i < new_scores; ++i) head.label_names.push_back(fmt::format("LABEL_{}", i));
  const Json* task = adapter.is_object() ? adapter.find("task_type") : nullptr;
  if (task != nullptr && *task == Json("TOKEN_CLS")) head.scored = ScoredTokens::each_token;
  if (task != nullptr && *task == Json("QUESTION_ANS")) {
    head.scored = ScoredTokens::span;
    if (new_scores == 2) head.label_names = {"start", "end"};
  }
  const Json* problem = config.find("problem_type");
  head.multi_label = problem != nullptr && *problem == Json("multi_label_classification");
  const Json* padding = config.find("pad_token_id");
  if (padding != nullptr && padding->is_integer()) head.padding = padding->as_integer();
  return model->with({.score_head = std::move(head)});
}

enum class Part { model, base };  // what is wanted of an adapter's directory

Model with_adapter(const Model& model, const Json& config, int64_t new_scores, Part part) {
  const Json* adapter = config.find(checkpoint::kAdapterConfig);
  if (adapter == nullptr) return model;
  const Model base = with_new_head(model, config, *adapter, new_scores);
  if (part == Part::base) return base;
  return base->with({.adapter = std::make_shared<const LoraConfig>(
                         lora_from_json(*adapter, std::string(checkpoint::kAdapterConfig)))});
}

// new_scores: of a head that an adapter brings, if its model has none; 0: it brings none.
Model read_model(const Json& config, int64_t new_scores, Part part) {
  const Json* named = config.is_object() ? config.find("model_type") : nullptr;
  MG_CHECK(named != nullptr, "config.json has no model_type; supported: {}",
           fmt::join(family_names(), ", "));
  const std::string type = named->is_string() ? named->as_string() : named->dump();
  for (const DecoderFamily* family : families())
    if (family->name == type)
      return with_adapter(decoder_model(read_config(*family, config), *family, form_of(config))
                              ->with({.prediction = PredictionChange{}}),
                          config, new_scores, part);
  fail("config.json has model_type '{}'; supported: {}", type, fmt::join(family_names(), ", "));
}

Model model_of_config(const Json& config, const std::string& path, int64_t new_scores, Part part) {
  try {
    return read_model(config, new_scores, part);
  } catch (const Error& error) {
    constexpr std::string_view kFile = "config.json";
    const std::string text = error.what();
    fail("{}{}", path, text.starts_with(kFile) ? text.substr(kFile.size()) : ": " + text);
  }
}

Model part_of(const checkpoint::ModelDirectory& directory, Part part) {
  // PEFT does not say how many labels the head has that is saved with an adapter. These are the
  // names of heads in transformers' classes.
  int64_t labels = 0;
  for (const char* name : {"score", "classifier", "classifier.out_proj", "qa_outputs"}) {
    const checkpoint::TensorInfo* head =
        directory.find(std::string(checkpoint::kAdapterPrefix) + name + ".weight");
    if (head != nullptr && head->shape.rank() == 2) labels = head->shape[0];
  }
  return model_of_config(directory.config(), directory.base_path() + "/config.json", labels, part);
}

}  // namespace

Model model_from_config_json(const Json& config, const std::string& path) {
  return model_of_config(config, path, 0, Part::model);
}

Model model_of(const checkpoint::ModelDirectory& directory) {
  return part_of(directory, Part::model);
}

Model base_model_of(const checkpoint::ModelDirectory& directory) {
  return part_of(directory, Part::base);
}

Model model_from_directory(const std::string& directory) {
  if (checkpoint::is_adapter(directory)) return model_of(checkpoint::ModelDirectory(directory));
  const std::string path = directory + "/config.json";
  return model_from_config_json(Json::read_python(path), path);
}

Model with_context_length(const Model& model, int64_t length) {
  if (length == 0) return model;
  if (length > model->context_length())
    log::info("--inference-max-seq-length {} is above the model's context length of {} tokens",
              length, model->context_length());
  return model->with({.context_length = length});
}

void require_language_model(const Model& model, std::string_view purpose) {
  MG_CHECK(
      model->facts().encoder_layers == 0,
      "the model is an encoder-decoder ({}), which reads two texts, and {} gives it one: use a "
      "decoder; megatron generate, serve, eval, verify and inspect take encoder-decoders, and "
      "megatron train --task span-corruption and megatron seq2seq train them",
      model->family(), purpose);
  MG_CHECK(
      !model->facts().two_sided,
      "the model is an encoder ({}), which does not continue texts, and {} needs a decoder; "
      "megatron generate --fill-mask fills the masks of texts, megatron serve gives embeddings "
      "and scores, megatron eval --input the pseudo-perplexity, and megatron train --task mlm "
      "and megatron classify train encoders",
      model->family(), purpose);
  MG_CHECK(model->score_labels() == 0,
           "the model scores texts (its config.json has a ForSequenceClassification architecture "
           "with {} labels), and {} needs one with a language-model head; megatron serve gives the "
           "scores of texts (POST /v1/classify), megatron eval --input compares them with labels",
           model->score_labels(), purpose);
}

void require_generating_model(const Model& model, std::string_view purpose) {
  if (model->facts().encoder_layers == 0) require_language_model(model, purpose);
}

Model model_from_flags(const ModelFlags& flags, int64_t seq_length) {
  DecoderValue value = value_of(flags, seq_length);
  const DecoderFamily& family = family_to_save(value, flags.model_family);
  zero_default_dropouts(family, flags, value);
  return decoder_model(value, family);
}

namespace {

// Flags that define a model of these sizes, and those that other flags require. Leaves out flags
// that `typed` excludes.
ModelFlags flags_of_sizes(const ModelFacts& facts, const ModelFlags& typed) {
  ModelFlags f{.num_layers = facts.num_layers,
               .hidden_size = facts.hidden_size,
               .max_position_embeddings = facts.max_position_embeddings,
               .vocab_size = facts.vocab_size};
  const AttentionFacts a =
      facts.attention.value_or(AttentionFacts{.heads = 1, .key_heads = 1, .head_size = 1});
  f.num_attention_heads = a.heads;
  f.kv_channels = a.head_size;
  f.group_query_attention = true;
  f.num_query_groups = a.key_heads;
  if (facts.feed_forward) f.ffn_hidden_size = facts.feed_forward->width;
  const FeedForwardFacts block = facts.feed_forward ? *facts.feed_forward
                                 : facts.experts    ? facts.experts->each
                                                    : FeedForwardFacts{.bias = true};
  f.add_bias_linear = block.bias;
  f.swiglu = block.gated && block.activation == kernels::Activation::silu && !typed.squared_relu &&
             !typed.quick_geglu;
  if (facts.positions == Positions::rotary) f.position_embedding = PositionEmbedding::rope;
  if (!facts.experts) return f;
  f.moe.num_experts = facts.experts->count;
  f.moe.topk = facts.experts->chosen;
  f.moe.pre_softmax = f.moe.topk == 1 && typed.moe.score == kernels::RouterScore::softmax;
  f.moe.ffn_hidden_size = facts.experts->each.width;
  return f;
}

// If layers differ, the first one's value represents all of them.
const Json* described(const Json& description, const std::string& name) {
  const Json* layers = description.find("layers");
  const Json* own = description.find(name);
  return own != nullptr || layers == nullptr ? own : layers->as_array().at(0).find(name);
}

}  // namespace

Disagreement disagreement(const Model& model, const ModelFlags& flags) {
  const ModelFacts& facts = model->facts();
  ModelFlags sizes = flags_of_sizes(facts, flags), typed = flags;
  const auto describe = [&] {
    return model_from_flags(sizes, facts.max_position_embeddings)->describe();
  };
  const Json before = describe(), own = model->describe();
  Fields now, given;
  sizes.fields(now);
  typed.fields(given);
  ModelFlags plain;
  Fields defaults;
  plain.fields(defaults);
  for (size_t i = 0; i < given.all().size(); ++i)
    if (const Field& f = given.all()[i]; f.get() != defaults.all()[i].get())
      now.all()[i].set(f.many ? f.get_all() : std::vector{f.get()});
  const Json after = describe();
  Disagreement found;
  const auto compare = [&](const std::string& name) {
    const Json *was = before.find(name), *is = described(after, name),
               *there = described(own, name);
    const auto same = [](const Json* a, const Json* b) {
      return a == nullptr || b == nullptr ? a == b : *a == *b;
    };
    if (same(was, is) || same(is, there)) return;
    if (is != nullptr) found.flags.set(name, *is);
    if (there != nullptr) found.model.set(name, *there);
  };
  for (const auto& [name, value] : after.as_object()) compare(name);
  for (const auto& [name, value] : before.as_object())
    if (!after.contains(name)) compare(name);
  return found;
}

}  // namespace megatron::models
