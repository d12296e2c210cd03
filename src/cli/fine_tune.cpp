// The commands that train on examples: megatron train with another --task, a model directory as its
// beginning, and resuming by the same command.
#include <fmt/core.h>
#include <unistd.h>

#include <filesystem>

#include "base/error.h"
#include "cli/command.h"
#include "cli/training_command.h"
#include "corpus/chat/chat_corpus.h"
#include "post_training/tasks.h"

namespace megatron::cli {
namespace {

// The model's directory gives the initial weights; a run that is started again resumes from its own
// checkpoints.
void complete(settings::TrainSettings& s) {
  settings::CheckpointSettings& c = s.checkpoint;
  if (s.run.model && !c.pretrained_checkpoint) {
    c.pretrained_checkpoint = s.run.model;
    c.pretrained_flag = "--model";
    s.run.model.reset();
  }
  if (c.save && !c.load) c.load = c.save;
}

// Facts of the model that the task would train. Chats and pairs of texts can be shown without a
// model.
models::ModelFacts shown_facts(const settings::TrainSettings& s,
                               const corpus::Vocabulary& vocabulary) {
  const auto& directory = s.checkpoint.pretrained_checkpoint;
  if (!directory) {
    MG_CHECK(s.data.task != "token-classification" && s.data.task != "question-answering",
             "--show of --task {} needs the encoder, whose form the texts take: give --model DIR",
             s.data.task);
    return {};
  }
  const models::Model model = models::model_from_directory(*directory);
  const auto task = post_training::make_task(s.data);
  return task == nullptr ? model->facts() : task->model(model, vocabulary)->facts();
}

int show(const settings::TrainSettings& s, int64_t count) {
  const auto& directory = s.checkpoint.pretrained_checkpoint;
  MG_CHECK(!directory || std::filesystem::exists(*directory), "{} {} does not exist",
           s.checkpoint.pretrained_flag, directory.value_or(""));
  settings::TokenizerSettings flags = s.data;
  if (!flags.tokenizer_model && directory) flags.tokenizer_model = directory;
  MG_CHECK(flags.tokenizer_model.has_value(),
           "--show needs a tokenizer: give --model DIR, or --tokenizer-model");
  MG_CHECK(!s.data.data_path.empty() || !s.data.train_data_path.empty(),
           "--show needs examples: give --data-path FILE");
  const corpus::Vocabulary vocabulary = corpus::open_vocabulary(flags, s.shape.vocab_size);
  const int64_t length = s.batch.seq_length.value_or(int64_t{1} << 40);
  fmt::print("{}", corpus::shown_examples(s.data, vocabulary, count, length, isatty(1) != 0,
                                          shown_facts(s, vocabulary),
                                          s.batch.decoder_seq_length.value_or(length)));
  return 0;
}

struct ExampleCommand {
  std::string_view name, description;
  const char* data;  // help of --data-path
  std::vector<std::string_view> common;
};

int fine_tune(const ExampleCommand& command, const Arguments& arguments) {
  settings::TrainSettings settings;
  settings.data.task = command.name;
  Fields fields = settings.fields();
  std::optional<int64_t> shown;
  fields.begin_group("data");
  fields
      .add("show", &shown,
           "print this many examples as the model reads them, with the tokens that carry loss in "
           "green (in [[ ]] if the output is not a terminal), and exit")
      .within(1, 1'000'000);
  fields.common({"show", "epochs", "chat-packing", "chat-truncation", "save"});
  for (const std::string_view name : command.common) fields.find(std::string(name))->common = true;
  fields.find("data-path")->doc = command.data;
  fields.find("model")->doc = "Hugging Face directory with weights, tokenizer and chat template";
  for (const char* unused :
       {"mock-data", "preset", "num-layers", "hidden-size", "num-attention-heads", "vocab-size"})
    fields.find(unused)->common = false;
  return run_training(
      {.name = command.name,
       .description = command.description,
       .complete =
           [&](settings::TrainSettings& s) {
             MG_CHECK(
                 s.data.task == command.name,
                 "--task {} is not that of megatron {}: use megatron train --task {}, or leave "
                 "--task out",
                 s.data.task, command.name, s.data.task);
             complete(s);
           }},
      settings, fields, arguments, [&]() -> std::optional<int> {
        if (!shown) return std::nullopt;
        return show(settings, *shown);
      });
}

}  // namespace

int sft(const Arguments& arguments) {
  return fine_tune(
      {.name = "sft",
       .description =
           "Fine-tunes a model on chats (supervised fine-tuning): --model DIR gives the first "
           "weights, the tokenizer and the chat template, --data-path FILE the chats. The "
           "assistant's tokens carry loss. All other flags are those of megatron train.",
       .data = "files of chats, as JSON lines or a JSON array; or directories",
       .common = {}},
      arguments);
}

int dpo(const Arguments& arguments) {
  return fine_tune(
      {.name = "dpo",
       .description =
           "Trains a model on preferences between completions of a prompt, with DPO or another "
           "--preference-loss. --model DIR gives the initial weights (by default also those of the "
           "reference model), the tokenizer and the chat template; --data-path FILE gives the "
           "preferences. All other flags are those of megatron train.",
       .data =
           "files of prompts with a chosen and a rejected completion, or with one completion and "
           "its label, as JSON lines or JSON arrays",
       .common = {"preference-loss", "beta", "reference-model", "precompute-reference"}},
      arguments);
}

int reward(const Arguments& arguments) {
  return fine_tune(
      {.name = "reward",
       .description =
           "Trains a reward model, which gives each text a score, on pairs of texts of which one "
           "is preferred. --model DIR gives a language model, whose output layer is replaced by a "
           "score, and the tokenizer and chat template; --data-path FILE gives the pairs. All "
           "other flags are those of megatron train.",
       .data =
           "files of pairs of a chosen and a rejected text or chat, as JSON lines or JSON arrays",
       .common = {"center-rewards-coefficient"}},
      arguments);
}

int classify(const Arguments& arguments) {
  return fine_tune(
      {.name = "classify",
       .description =
           "Trains a classifier of texts. --model DIR gives a language model or an encoder, whose "
           "output layer is replaced by a score for each class, and the tokenizer; --data-path "
           "FILE gives the texts and their labels. All other flags are those of megatron train.",
       .data = "files of texts or chats with labels, as JSON lines or JSON arrays",
       .common = {"labels"}},
      arguments);
}

int token_classification(const Arguments& arguments) {
  return fine_tune(
      {.name = "token-classification",
       .description =
           "Trains an encoder to label each word of a text, for example to recognize names. "
           "--model DIR gives the encoder, whose output layer is replaced by a score for each "
           "label, and the tokenizer; --data-path FILE gives the words and their labels. All other "
           "flags are those of megatron train.",
       .data = "files of words with labels (tokens, ner_tags), as JSON lines or JSON arrays",
       .common = {"labels"}},
      arguments);
}

int question_answering(const Arguments& arguments) {
  return fine_tune(
      {.name = "question-answering",
       .description =
           "Trains an encoder to find the answer to a question in a text. --model DIR gives the "
           "encoder, whose output layer is replaced by two scores for each token (that the answer "
           "begins and that it ends there), and the tokenizer; --data-path FILE gives the "
           "questions. All other flags are those of megatron train.",
       .data =
           "files of questions with their contexts and answers (question, context, answers), as "
           "JSON lines or JSON arrays",
       .common = {"doc-stride"}},
      arguments);
}

int seq2seq(const Arguments& arguments) {
  return fine_tune(
      {.name = "seq2seq",
       .description =
           "Trains an encoder-decoder (such as T5) to write a target text for an input text, for "
           "example a translation, a summary or an answer. --model DIR gives the initial weights "
           "and the tokenizer, --data-path FILE the pairs of texts. The target's tokens and its "
           "end-of-sequence token carry loss. All other flags are those of megatron train.",
       .data =
           "files of pairs of texts (input and target, or prompt and completion), as JSON lines or "
           "JSON arrays",
       .common = {"decoder-seq-length", "input-key", "target-key"}},
      arguments);
}

}  // namespace megatron::cli
