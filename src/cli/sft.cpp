#include <fmt/core.h>
#include <unistd.h>

#include "base/error.h"
#include "cli/command.h"
#include "cli/training_command.h"
#include "corpus/chat/chat_corpus.h"

namespace megatron::cli {
namespace {

// The model's directory gives the first weights; a run that is started again goes on from its own
// checkpoints.
void complete(settings::TrainSettings& s) {
  settings::CheckpointSettings& c = s.checkpoint;
  s.data.chats = true;
  if (s.run.model && !c.pretrained_checkpoint) {
    c.pretrained_checkpoint = s.run.model;
    s.run.model.reset();
  }
  if (c.save && !c.load) c.load = c.save;
}

int show(const settings::TrainSettings& s, int64_t count) {
  const auto& directory = s.checkpoint.pretrained_checkpoint;
  settings::TokenizerSettings flags = s.data;
  if (!flags.tokenizer_model && directory) flags.tokenizer_model = directory;
  MG_CHECK(flags.tokenizer_model.has_value(),
           "--show needs a tokenizer: give --model DIR, or --tokenizer-model");
  MG_CHECK(!s.data.data_path.empty() || !s.data.train_data_path.empty(),
           "--show needs chats: give --data-path FILE");
  const corpus::Vocabulary vocabulary = corpus::open_vocabulary(flags, s.shape.vocab_size);
  const int64_t length = s.batch.seq_length.value_or(int64_t{1} << 40);
  fmt::print("{}", corpus::shown_chats(s.data, vocabulary, count, length, isatty(1) != 0));
  return 0;
}

}  // namespace

int sft(const Arguments& arguments) {
  settings::TrainSettings settings;
  settings.data.chats = true;
  Fields fields = settings.fields();
  std::optional<int64_t> shown;
  fields.begin_group("data");
  fields
      .add("show", &shown,
           "print this many chats, with what carries loss in green (in [[ ]] if the output is no "
           "terminal), and end")
      .within(1, 1'000'000);
  fields.common({"show", "chat-packing", "chat-truncation", "save"});
  fields.find("data-path")->doc = "files of chats, as JSON lines or a JSON array; or directories";
  fields.find("model")->doc = "Hugging Face directory with weights, tokenizer and chat template";
  for (const char* unused :
       {"mock-data", "preset", "num-layers", "hidden-size", "num-attention-heads", "vocab-size"})
    fields.find(unused)->common = false;
  return run_training(
      {.name = "sft",
       .description =
           "Fine-tunes a model on chats (supervised fine-tuning): --model DIR gives the first "
           "weights, the tokenizer and the chat template, --data-path FILE the chats. The "
           "assistant's tokens carry loss. All other flags are those of megatron train.",
       .complete = complete},
      settings, fields, arguments, [&]() -> std::optional<int> {
        if (!shown) return std::nullopt;
        return show(settings, *shown);
      });
}

}  // namespace megatron::cli
