#include "cli/missing_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "base/shell_line.h"
#include "corpus/corpus.h"
#include "data/indexed_dataset.h"
#include "report/log/machine.h"
#include "settings/presets.h"
#include "training/settle.h"

namespace megatron::cli {
namespace {

namespace fs = std::filesystem;
using settings::TrainSettings;

constexpr size_t kWidth = 96;
constexpr int64_t kLength = 128;  // sequence length in the suggested command
// Limit on the data set that is scanned for its largest id.
constexpr uintmax_t kMaxBytes = 64 << 20;
constexpr int64_t kFewestTokens = 50 * kLength;  // minimum for the suggested command to train on

// Needed flags of one purpose.
struct Missing {
  std::vector<std::string> flags;  // "--lr FLOAT"
  std::string purpose;
};

struct LocalData {
  std::string prefix;
  int64_t vocabulary = 0;
};

bool needs_shape(const TrainSettings& s) {
  if (s.run.model || s.run.model_config || s.checkpoint.upcycle || s.checkpoint.use_checkpoint_args)
    return false;
  const bool from_checkpoint = s.checkpoint.load || s.checkpoint.pretrained_checkpoint;
  return !from_checkpoint || !s.shape.first_shape_flag().empty();
}

bool needs_vocabulary(const TrainSettings& s) {
  const std::string type = s.data.tokenizer_type.value_or("NullTokenizer");
  return needs_shape(s) && !s.shape.vocab_size && !s.data.tokenizer_model && !s.data.vocab_file &&
         type == "NullTokenizer";
}

// False for a hybrid without attention.
bool attends(const TrainSettings& s) {
  const std::optional<std::string> pattern = s.shape.layer_pattern();
  return !pattern || pattern->find_first_of("*+") != std::string::npos;
}

void add_shape(const TrainSettings& s, std::vector<Missing>& all) {
  if (!needs_shape(s)) return;
  Missing shape{{},
                "the model's shape; or --preset NAME, or --model DIR for that of a Hugging Face "
                "directory, or --recipe NAME for a whole run"};
  const std::optional<std::string> pattern = s.shape.layer_pattern();
  if (!s.shape.num_layers && !pattern) shape.flags.push_back("--num-layers INT");
  if (!s.shape.hidden_size) shape.flags.push_back("--hidden-size INT");
  if (!s.shape.num_attention_heads && attends(s))
    shape.flags.push_back("--num-attention-heads INT");
  all.push_back(std::move(shape));
  if (needs_vocabulary(s))
    all.push_back({{"--vocab-size INT"}, "number of tokens, or --tokenizer-model DIR"});
}

const char* examples_of(const std::string& task) {
  if (task == "sft") return "chats: JSON lines with \"messages\"";
  if (task == "dpo") return "preferences: JSON lines with \"prompt\", \"chosen\" and \"rejected\"";
  if (task == "reward") return "pairs: JSON lines with \"chosen\" and \"rejected\"";
  if (task == "token-classification") return "words: JSON lines with \"tokens\" and \"ner_tags\"";
  if (task == "question-answering")
    return "questions: JSON lines with \"question\", \"context\" and \"answers\"";
  if (task == "seq2seq") return "pairs: JSON lines with \"input\" and \"target\"";
  return "texts: JSON lines with \"text\" and \"label\"";
}

std::vector<Missing> missing_flags(const TrainSettings& s, bool planned) {
  std::vector<Missing> all;
  add_shape(s, all);
  if (!s.batch.seq_length) all.push_back({{"--seq-length INT"}, "sequence length in tokens"});
  if (!s.batch.micro_batch_size)
    all.push_back({{"--micro-batch-size INT"}, "sequences per rank and forward pass"});
  if (!planned) {
    if (!s.batch.train_iters && !s.batch.train_samples && !s.batch.epochs)
      all.push_back({{"--train-iters INT"},
                     s.data.reads_tokens()
                         ? "optimizer steps, or --train-samples INT"
                         : "optimizer steps, or --epochs INT: passes over the data"});
    if (!s.optimizer.lr) all.push_back({{"--lr FLOAT"}, "peak learning rate"});
    if (!corpus::names_data(s.data) && !s.data.reads_tokens())
      all.push_back({{"--data-path FILE"}, examples_of(s.data.task)});
    else if (!corpus::names_data(s.data))
      all.push_back({{"--data-path PREFIX"},
                     s.data.reads_sentences()
                         ? "output of megatron preprocess --split-sentences, or --mock-data"
                         : "output of megatron preprocess, or --mock-data for synthetic tokens"});
  }
  std::erase_if(all, [](const Missing& m) { return m.flags.empty(); });
  return all;
}

// The first data set of this folder that is large enough, and small enough to be read now.
std::optional<LocalData> local_data() {
  std::vector<std::string> prefixes;
  std::error_code error;
  for (auto at = fs::directory_iterator(".", error); !error && at != fs::directory_iterator();
       at.increment(error))
    if (at->path().extension() == ".idx") prefixes.push_back(at->path().stem().string());
  std::ranges::sort(prefixes);
  for (const std::string& prefix : prefixes) {
    const uintmax_t bytes = fs::file_size(prefix + ".bin", error);
    if (error || bytes > kMaxBytes) continue;
    try {
      const data::IndexedDataset set(prefix);
      const auto range = set.token_range();
      if (!range || range->smallest < 0 || set.token_count() < kFewestTokens) continue;
      return LocalData{prefix, range->largest + 1};
    } catch (const Error&) {  // another kind of file, or a damaged one
      continue;
    }
  }
  return std::nullopt;
}

std::string heads_for(const std::optional<int64_t>& hidden) {
  for (const int64_t heads : {4, 2})
    if (hidden.value_or(128) % heads == 0) return std::to_string(heads);
  return "1";
}

// Values for the missing flags, which give a run of a few seconds if the rest is not given either.
Arguments completion(const TrainSettings& s, bool planned) {
  Arguments words;
  const auto add = [&words](const std::string& flag, const std::string& value) {
    words.push_back("--" + flag);
    words.push_back(value);
  };
  if (!s.data.reads_tokens())
    return {"--model",      "DIR",  "--data-path",        "FILE.jsonl", "--save",   "OUT",
            "--seq-length", "2048", "--micro-batch-size", "1",          "--epochs", "3",
            "--lr",         "2e-5"};
  std::optional<LocalData> local;
  const bool needs_data = !planned && !corpus::names_data(s.data);
  if (needs_data && s.data.pretrains()) local = local_data();
  if (needs_shape(s)) {
    if (!s.shape.num_layers && !s.shape.hybrid_layer_pattern) add("num-layers", "2");
    if (!s.shape.hidden_size)
      add("hidden-size", std::to_string(32 * s.shape.num_attention_heads.value_or(4)));
    if (!s.shape.num_attention_heads && attends(s))
      add("num-attention-heads", heads_for(s.shape.hidden_size));
    if (needs_vocabulary(s))
      add("vocab-size", std::to_string(local ? local->vocabulary : int64_t{256}));
  }
  if (!s.batch.seq_length)
    add("seq-length",
        std::to_string(std::min(kLength, s.shape.max_position_embeddings.value_or(kLength))));
  if (!s.batch.micro_batch_size) add("micro-batch-size", s.batch.global_batch_size ? "1" : "4");
  if (planned) return words;
  if (!s.batch.train_iters && !s.batch.train_samples) add("train-iters", "20");
  if (!s.optimizer.lr) add("lr", "1e-3");
  if (!needs_data) return words;
  if (local) add("data-path", local->prefix);
  else words.push_back("--mock-data");
  return words;
}

// True if the settings, with more flags, pass all checks that precede opening files.
bool is_accepted(TrainSettings settings, const Arguments& more, bool planned) {
  Fields fields = settings.fields();
  try {
    parse("", "", fields, {}, more);
    training::check_settings(settings, planned);
  } catch (const Error&) {
    return false;
  }
  return true;
}

// Formats the command for a shell, in lines that end in a backslash.
std::string shell_command(const std::string& command, const Arguments& words) {
  const std::vector<std::string> line = report::command_line();
  std::string text = "  ", last;
  last = shell_word(line.empty() ? "megatron" : line[0]) + " " + command;
  const auto end_flag = [&](const std::string& next) {
    const size_t begin = text.rfind('\n') == text.npos ? 0 : text.rfind('\n') + 1;
    if (text.size() - begin + last.size() > kWidth && text.size() > 2) text += "\\\n      ";
    text += last + (next.empty() ? "" : " ");
    last = next;
  };
  for (const std::string& word : words) {
    if (word.starts_with("--")) end_flag(shell_word(word));
    else last += " " + shell_word(word);
  }
  end_flag("");
  return text;
}

}  // namespace

void require_flags(const TrainSettings& settings, const std::string& command,
                   const Arguments& arguments) {
  const bool planned = command == "plan";
  const std::vector<Missing> missing = missing_flags(settings, planned);
  if (missing.empty()) return;
  size_t count = 0;
  std::string lines;
  for (const Missing& m : missing) {
    count += m.flags.size();
    lines += fmt::format("  {}: {}\n", fmt::join(m.flags, ", "), m.purpose);
  }
  Arguments whole = arguments;
  std::erase(whole, "--print-config");
  const Arguments added = completion(settings, planned);
  whole.insert(whole.end(), added.begin(), added.end());
  const bool accepted = settings.data.reads_tokens() && is_accepted(settings, added, planned);
  if (!accepted) whole = !settings.data.reads_tokens() ? added : completion({}, planned);
  fail("megatron {} needs {} more flag{}:\n{}{}\n{}\n{}See megatron {} --help.", command, count,
       count == 1 ? "" : "s", lines,
       accepted ? "A complete command that runs here:" : "A complete command from another run:",
       shell_command(command, whole),
       settings.preset.empty() && needs_shape(settings)
           ? fmt::format("Presets: {}. ", fmt::join(settings::preset_names(), ", "))
           : "",
       command);
}

}  // namespace megatron::cli
