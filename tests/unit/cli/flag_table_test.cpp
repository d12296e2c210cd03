// The status of each Megatron-LM flag.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <map>
#include <set>

#include "base/error.h"
#include "cli/flags/foreign_flags.h"
#include "cli/flags/table.h"
#include "cli/options.h"
#include "settings/settings.h"
#include "text.h"

namespace megatron::cli {
namespace {

using testing::has;

using Words = std::vector<std::string>;

// The settings of `megatron train`, and the result of parse_training() for a command line.
struct Train {
  settings::TrainSettings settings;
  Fields fields = settings.fields();
  Words notes;

  std::optional<int> read(const Words& arguments) {
    return parse_training("megatron train [flags]", "Trains.", fields, arguments, notes);
  }
  std::string error(const Words& arguments) {
    try {
      read(arguments);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  }
  std::string value(const std::string& name) { return fields.find(name)->get(); }
};

// Runs the program and returns its exit code and message.
std::pair<int, std::string> run(const std::string& arguments) {
  const std::string command = std::string(MEGATRON_BINARY) + " " + arguments + " 2>&1";
  std::FILE* pipe = ::popen(command.c_str(), "r");
  std::string text;
  std::array<char, 4096> buffer;
  while (const size_t n = std::fread(buffer.data(), 1, buffer.size(), pipe))
    text.append(buffer.data(), n);
  const int status = ::pclose(pipe);
  return {WEXITSTATUS(status), text};
}

// A value of the flag: its last choice if it has choices, otherwise one of its type.
Words some_value(const FlagRow& row) {
  if (row.is_switch()) return {};
  if (!row.choices.empty()) return {std::string(split_list(row.choices, '|').back())};
  return {row.value.starts_with("TEXT") ? "text" : "7"};
}

TEST(FlagTable, Counts) {
  const FlagTable table;
  std::map<Verdict, int> verdicts;
  std::map<std::string, int> reasons;
  for (const FlagRow& row : table.today()) {
    ++verdicts[row.verdict];
    if (row.verdict != Verdict::supported) ++reasons[std::string(row.why)];
  }
  EXPECT_EQ(table.today().size(), 878u);
  EXPECT_EQ(verdicts[Verdict::supported], 333);
  EXPECT_EQ(verdicts[Verdict::ignored], 220);
  EXPECT_EQ(verdicts[Verdict::refused], 325);
  const std::map<std::string, int> expected = {
      {"absent", 9},
      {"always", 15},
      {"attention-shape", 5},
      {"buffers", 5},
      {"checkpoint-format", 3},
      {"checkpoint-shape", 3},
      {"context-parallel", 2},
      {"contradiction", 1},
      {"data-source", 2},
      {"debug-files", 4},
      {"distillation", 11},
      {"dumps", 10},
      {"encoder", 17},
      {"expert-form", 2},
      {"expert-memory", 4},
      {"expert-recompute", 1},
      {"experts", 1},
      {"fault-tests", 11},
      {"follows", 1},
      {"fp32-sums", 1},
      {"frozen", 1},
      {"fsdp", 7},
      {"gpu", 27},
      {"graph-parts", 2},
      {"host", 10},
      {"imagined-ranks", 1},
      {"index-cache", 2},
      {"inference", 59},
      {"initial-weights", 1},
      {"iteration-number", 1},
      {"launch", 3},
      {"local-checkpoints", 8},
      {"log-curves", 2},
      {"log-elsewhere", 3},
      {"log-files", 2},
      {"loss-checks", 5},
      {"low-precision", 7},
      {"masks", 1},
      {"master-weights", 1},
      {"module-offload", 2},
      {"multi-token", 4},
      {"muon-slices", 1},
      {"no-positions", 1},
      {"older-engine", 4},
      {"one-implementation", 2},
      {"one-kernel", 28},
      {"other-signal", 2},
      {"outer-sharding", 2},
      {"overlap", 25},
      {"padding", 2},
      {"phases", 1},
      {"positions", 1},
      {"precision-choice", 7},
      {"python", 4},
      {"pytorch-profiler", 6},
      {"quantized-weights", 2},
      {"random", 3},
      {"reader", 2},
      {"reinforcement", 51},
      {"remote-code", 1},
      {"remote-files", 2},
      {"replicas", 1},
      {"rerun", 1},
      {"reshard", 1},
      {"residual-form", 7},
      {"routing", 1},
      {"scale-interval", 1},
      {"self-tests", 1},
      {"sparse-attention", 22},
      {"state-space", 4},
      {"straggler", 4},
      {"strictness", 1},
      {"sums", 1},
      {"supervision", 21},
      {"telemetry", 3},
      {"tokenizer-files", 2},
      {"tokenizer-variant", 2},
      {"torch-files", 28},
      {"transport", 8},
      {"unmeasured", 2},
      {"vision", 24},
      {"weight-shards", 5},
      {"yaml-layout", 1},
  };
  EXPECT_EQ(reasons, expected);
  std::map<Verdict, int> older;
  for (const FlagRow& row : table.older()) ++older[row.verdict];
  EXPECT_EQ(older[Verdict::supported], 15);
  EXPECT_EQ(older[Verdict::ignored], 20);
  EXPECT_EQ(older[Verdict::refused], 18);
}

TEST(FlagTable, SupportedFlagsAreFieldsOfTrain) {
  const FlagTable table;
  Train train;
  for (const FlagRow& row : table.today()) {
    if (row.verdict != Verdict::supported || row.why == "help") continue;
    const bool other = row.why.starts_with("=");
    const std::string_view flag = other ? row.why.substr(1, row.why.find(' ') - 1) : row.flag;
    const Field* field = train.fields.find(flag.substr(2));
    ASSERT_NE(field, nullptr) << row.flag;
    if (other) continue;
    EXPECT_EQ(field->is_switch, row.is_switch()) << row.flag;
    EXPECT_EQ(field->many, row.many()) << row.flag;
    EXPECT_EQ(field->is_switch ? "switch" : field->type, row.value) << row.flag;
    const bool choices = fmt::format("{}", fmt::join(field->choices, "|")) == row.choices;
    EXPECT_NE(choices, has(std::string(row.detail), "choices")) << row.flag;
  }
  for (const Field& field : train.fields.all()) {
    const FlagRow* row = table.find("--" + field.name);
    if (row != nullptr) {
      EXPECT_EQ(row->verdict, Verdict::supported) << field.name;
    }
  }
}

TEST(FlagTable, EachRefusedFlagIsNamedWithItsReason) {
  const FlagTable table;
  for (const std::span<const FlagRow> rows : {table.today(), table.older()}) {
    for (const FlagRow& row : rows) {
      // Refused only together with another flag: see AFlagThatContradictsAnotherIsRefused.
      if (row.verdict != Verdict::refused || row.detail.ends_with(" false")) continue;
      Train train;
      ForeignFlags foreign(train.fields);
      foreign.take(row, row.is_switch() ? Words() : Words{"12345"});
      try {
        foreign.finish();
        ADD_FAILURE() << row.flag << " is not refused";
      } catch (const Error& e) {
        EXPECT_TRUE(std::string(e.what()).starts_with(std::string(row.flag) + " ")) << e.what();
        EXPECT_TRUE(has(e.what(), std::string(table.reason(row)))) << e.what();
      }
    }
  }
}

TEST(FlagTable, ValuesThatAskForWhatHappensAnywayAreAccepted) {
  const FlagTable table;
  int accepted = 0;
  for (const FlagRow& row : table.today()) {
    if (row.verdict != Verdict::refused || row.detail.starts_with("when ")) continue;
    for (const std::string_view value : split_list(row.detail, '|')) {
      Train train;
      ForeignFlags foreign(train.fields);
      foreign.take(row, {std::string(value)});
      EXPECT_NO_THROW(foreign.finish()) << row.flag << ' ' << value;
      EXPECT_TRUE(foreign.notes().empty()) << row.flag;
      ++accepted;
    }
  }
  EXPECT_GT(accepted, 100);
  EXPECT_EQ(
      Train().error({"--tensor-model-parallel-size", "1", "--expert-model-parallel-size", "1"}),
      "");
  EXPECT_EQ(Train().error({"--position-embedding-type=rope", "--no-position-embedding"}), "");
  EXPECT_EQ(Train().error({"--no-position-embedding", "--position-embedding-type=rope"}), "");
  EXPECT_TRUE(has(Train().error({"--no-position-embedding"}), "--no-position-embedding"));
  EXPECT_EQ(Train().error({"--multi-latent-attention=false"}), "");
}

TEST(FlagTable, AFlagThatContradictsAnotherIsRefused) {
  std::set<std::string> tested;
  for (const auto& [flag, other] :
       {std::pair<std::string, std::string>{"--bias-gelu-fusion", "--no-bias-gelu-fusion"},
        {"--overlap-p2p-communication", "--no-overlap-p2p-communication"},
        {"--deterministic-mode", "--allow-nondeterministic"}}) {
    Train alone;
    EXPECT_EQ(alone.error({flag}), "");
    ASSERT_EQ(alone.notes.size(), 1u) << flag;
    EXPECT_TRUE(has(alone.notes[0], flag)) << alone.notes[0];
    EXPECT_TRUE(has(alone.notes[0], "what this program does anyway")) << alone.notes[0];
    EXPECT_EQ(Train().error({flag + "=false", other}), "");
    for (const Words& both : {Words{flag, other}, Words{other, flag}}) {
      const std::string text = Train().error(both);
      EXPECT_TRUE(has(text, flag + " is refused: it ")) << text;
      EXPECT_TRUE(has(text, other)) << text;
    }
    tested.insert(flag);
  }
  const FlagTable table;
  std::set<std::string> all;
  for (const std::span<const FlagRow> rows : {table.today(), table.older()})
    for (const FlagRow& row : rows)
      if (row.detail.starts_with("when ") && row.detail.ends_with(" false")) all.emplace(row.flag);
  EXPECT_EQ(tested, all);
}

TEST(FlagTable, IgnoredFlagsAreToldAndTheirValuesRead) {
  const FlagTable table;
  for (const std::span<const FlagRow> rows : {table.today(), table.older()}) {
    for (const FlagRow& row : rows) {
      if (row.verdict != Verdict::ignored) continue;
      Train train;
      ForeignFlags foreign(train.fields);
      foreign.take(row, some_value(row));
      EXPECT_NO_THROW(foreign.finish());
      ASSERT_EQ(foreign.notes().size(), 1u) << row.flag;
      EXPECT_TRUE(has(foreign.notes()[0], fmt::format("{} ({})", row.flag, table.reason(row))));
      if (row.value.starts_with("TEXT") && row.choices.empty()) continue;
      EXPECT_THROW(ForeignFlags(train.fields).take(row, {"no-such-value"}), Error) << row.flag;
    }
  }
}

TEST(FlagTable, IgnoredFlagsOfALineAreToldTogether) {
  Train train;
  EXPECT_EQ(train.read({"--use-flash-attn", "--num-workers", "8", "--num-layers", "3",
                        "--transformer-impl", "local", "--num-workers=2"}),
            std::nullopt);
  EXPECT_EQ(train.value("num-layers"), "3");
  ASSERT_EQ(train.notes.size(), 1u);
  EXPECT_TRUE(train.notes[0].starts_with("ignored, because they have no effect here: "));
  EXPECT_TRUE(has(train.notes[0], "--use-flash-attn, --transformer-impl ("));
  EXPECT_TRUE(has(train.notes[0], "; --num-workers ("));
  EXPECT_TRUE(has(train.error({"--num-workers", "many"}), "--num-workers is 'many'"));
  EXPECT_TRUE(has(train.error({"--num-workers", "1", "2"}), "unexpected argument '2'"));
  EXPECT_TRUE(has(train.error({"--transformer-impl", "x"}), "transformer_engine"));
}

TEST(FlagTable, AllRefusedFlagsOfALineAreToldTogether) {
  const std::string text = Train().error({"--max-seqlen-per-dp-cp-rank", "8", "--num-layers", "3",
                                          "--use-kitchen-attention", "--offload-modules", "mlp",
                                          "core_attn", "--use-flash-attn"});
  EXPECT_TRUE(text.starts_with("3 flags cannot be used:\n"));
  EXPECT_TRUE(has(text, "\n  --max-seqlen-per-dp-cp-rank 8 is refused: it "));
  EXPECT_TRUE(has(text, "\n  --use-kitchen-attention is refused: it requests "));
  EXPECT_TRUE(has(text, "\n  --offload-modules mlp core_attn is refused: it offloads "));
  const std::string mixed =
      Train().error({"--use-kitchen-attention", "--modelopt-enabled", "--num-layres", "3"});
  EXPECT_TRUE(mixed.starts_with("3 flags cannot be used:\n")) << mixed;
  EXPECT_TRUE(has(mixed, "\n  there is no flag --modelopt-enabled; see --help")) << mixed;
  EXPECT_TRUE(has(mixed, "\n  there is no flag --num-layres; did you mean --num-layers?"));
  EXPECT_EQ(Train().error({"--context-parallel-size=2", "--context-parallel-size=1"}), "");
  for (const char* signal : {"SIGINT", "SIGHUP"})
    EXPECT_EQ(Train().error({"--exit-signal", signal}), "") << "the handler listens to it anyway";
  EXPECT_TRUE(has(Train().error({"--exit-signal", "SIGUSR2"}), "--exit-signal SIGUSR2 is refused"));
}

TEST(FlagTable, OtherSpellingsSetTheFlagOfToday) {
  const FlagTable table;
  int spellings = 0;
  for (const std::span<const FlagRow> rows : {table.today(), table.older()}) {
    for (const FlagRow& row : rows) {
      if (row.verdict != Verdict::supported || !row.why.starts_with("=")) continue;
      Train older, today;
      const size_t space = row.why.find(' ');
      const std::string flag(row.why.substr(1, space - 1));
      Words arguments = {std::string(row.flag)}, same = {flag};
      const Field& field = *today.fields.find(flag.substr(2));
      if (!row.is_switch())
        arguments.push_back(!field.choices.empty() ? field.choices.back()
                            : field.type == "INT"  ? "3"
                                                   : "0.25");
      if (!row.is_switch()) same.push_back(arguments[1]);
      if (space != row.why.npos) same = {flag + "=" + std::string(row.why.substr(space + 1))};
      older.read(arguments);
      today.read(same);
      EXPECT_TRUE(changed(today.fields, older.fields).empty()) << row.flag;
      EXPECT_TRUE(older.fields.find(flag.substr(2))->given) << row.flag;
      ASSERT_EQ(older.notes.size(), 1u);
      const std::string shown = fmt::format("{}", fmt::join(arguments, " "));
      EXPECT_TRUE(older.notes[0].starts_with(shown + " is an older spelling, read as " + flag));
      ++spellings;
    }
  }
  EXPECT_EQ(spellings, 23);
}

// If a setting is given in several spellings, the last one counts, and the note names it.
TEST(FlagTable, OfTwoSpellingsTheLastCounts) {
  const auto notes = [](const Words& arguments, const std::string& flag, const std::string& value) {
    Train train;
    EXPECT_EQ(train.error(arguments), "");
    EXPECT_EQ(train.value(flag), value);
    return train.notes;
  };
  EXPECT_EQ(notes({"--warmup", "0.01", "--lr-warmup-fraction", "0.5"}, "lr-warmup-fraction", "0.5"),
            (Words{"--warmup 0.01 is an older spelling of --lr-warmup-fraction and is overridden "
                   "by --lr-warmup-fraction 0.5, which follows it"}));
  EXPECT_EQ(
      notes({"--lr-warmup-fraction", "0.5", "--warmup", "0.01"}, "lr-warmup-fraction", "0.01"),
      (Words{"--warmup 0.01 is an older spelling, read as --lr-warmup-fraction 0.01, instead of "
             "0.5 given before it"}));
  EXPECT_EQ(notes({"--batch-size", "4", "--micro-batch-size", "2"}, "micro-batch-size", "2").size(),
            1u);
  EXPECT_EQ(notes({"--batch-size", "4", "--micro-batch-size", "4"}, "micro-batch-size", "4"),
            (Words{"--batch-size 4 is an older spelling, read as --micro-batch-size 4"}));
  EXPECT_EQ(notes({"--batch-size", "4", "--batch-size", "3"}, "micro-batch-size", "3"),
            (Words{"--batch-size 3 is an older spelling, read as --micro-batch-size 3, instead of "
                   "4 given before it"}));
}

// Spellings from Megatron-LM's older documentation cause a note, or a refusal by name.
TEST(FlagTable, OlderSpellingsAreTold) {
  const std::string taken = " is an older spelling, read as ";
  for (const auto& [line, note] : {
           std::pair<Words, std::string>{{"--data-impl", "mmap"},
                                         "--data-impl mmap is an older spelling for what this "
                                         "program does anyway"},
           {{"--virtual-pipeline-model-parallel-size", "2"},
            "--virtual-pipeline-model-parallel-size 2" + taken +
                "--num-virtual-stages-per-pipeline-rank 2"},
           {{"--model-parallel-size", "2"},
            "--model-parallel-size 2" + taken + "--tensor-model-parallel-size 2"},
           {{"--batch-size", "4"}, "--batch-size 4" + taken + "--micro-batch-size 4"},
           {{"--warmup", "0.1"}, "--warmup 0.1" + taken + "--lr-warmup-fraction 0.1"},
           {{"--checkpoint-activations"},
            "--checkpoint-activations" + taken + "--recompute-granularity full"},
           {{"--layernorm-epsilon", "0.1"},
            "--layernorm-epsilon 0.1" + taken + "--norm-epsilon 0.1"},
           {{"--fp8-hybrid"}, "--fp8-hybrid" + taken + "--fp8-format hybrid"},
       }) {
    Train train;
    EXPECT_EQ(train.error(line), "");
    EXPECT_EQ(train.notes, Words{note});
  }
  EXPECT_TRUE(has(Train().error({"--fp8-dot-product-attention"}),
                  "--fp8-dot-product-attention is refused: it computes attention in 8 bits"));
  EXPECT_TRUE(has(Train().error({"--data-impl", "lazy"}), "--data-impl lazy is refused: it is"));
  // A flag of this program. The plan and the run report it by the settings that it changes.
  const auto [code, text] =
      run("plan --no-time --num-layers 1 --hidden-size 16 --num-attention-heads 2 --vocab-size 64 "
          "--seq-length 16 --micro-batch-size 1 --ranks 2 --mock-data --use-custom-fsdp");
  EXPECT_EQ(code, 0) << text;
  EXPECT_TRUE(has(text, "--data-parallel-sharding-strategy optim_grads_params")) << text;
  EXPECT_TRUE(has(text, "   --use-custom-fsdp: the same sharding, implemented here\n")) << text;
}

// A flag without effect under the other flags is reported together with the flag responsible.
TEST(FlagTable, FlagsOfAModeThatIsOffAreTold) {
  for (const auto& [line, note] : {
           std::pair<std::string, std::string>{
               "--lion-beta1 0.9 --lion-beta2=0.95",
               "--lion-beta1 0.9, --lion-beta2 0.95 have no effect: --optimizer is adam"},
           {"--adam-beta1 0.9 --optimizer sgd",
            "--adam-beta1 0.9 has no effect: --optimizer is sgd"},
           {"--sgd-momentum 0.5 --optimizer muon",
            "--sgd-momentum 0.5 has no effect: --optimizer is muon"},
           {"--lion-beta1 0.9 --optimizer muon",
            "--lion-beta1 0.9 has no effect: --optimizer is muon with --muon-scalar-optimizer "
            "adam"},
           {"--muon-nesterov", "--muon-nesterov has no effect: --optimizer is adam"},
           {"--lr-wsd-decay-iters 5 --lr-wsd-decay-style linear",
            "--lr-wsd-decay-style linear, --lr-wsd-decay-iters 5 have no effect: --lr-decay-style "
            "is linear"},
           {"--min-lr 0.1 --lr-decay-style constant",
            "--min-lr 0.1 has no effect: --lr-decay-style is constant"},
           {"--num-layers 1 --rotary-base 500",
            "--rotary-base 500 has no effect: --position-embedding-type is learned_absolute"},
           {"--swiglu --no-bias-gelu-fusion",
            "--no-bias-gelu-fusion has no effect: no GELU is computed with --swiglu"},
           {"--add-qkv-bias",
            "--add-qkv-bias has no effect: without --disable-bias-linear all linear layers have "
            "biases"},
           {"--profile-step-start 4",
            "--profile-step-start 4 has no effect: --profile is not given"},
           {"--distributed-timeout-minutes 3 --distributed-timeout-seconds-after-init 60",
            "--distributed-timeout-minutes 3 has no effect: "
            "--distributed-timeout-seconds-after-init takes precedence"},
       }) {
    Train train;
    Words words;
    for (const std::string_view word : split_list(line, ' ')) words.emplace_back(word);
    EXPECT_EQ(train.error(words), "");
    EXPECT_EQ(train.notes, Words{note});
  }
  for (const Words& line : {Words{"--lion-beta1", "0.9", "--optimizer", "lion"},
                            {"--optimizer", "muon", "--adam-beta1", "0.8"},
                            {"--rotary-base", "500", "--model", "some/llama"},
                            {"--muon-nesterov=false"},
                            {"--no-bias-gelu-fusion"}}) {
    Train train;
    EXPECT_EQ(train.error(line), "");
    EXPECT_EQ(train.notes, Words{}) << line[0];
  }
}

TEST(FlagTable, FlagsAreToldFromMisspellings) {
  Fields fields;
  int64_t hidden = 0;
  fields.add("hidden-size", &hidden, "width");
  const auto error = [&](const Words& arguments) -> std::string {
    try {
      parse("megatron x", "x", fields, {}, arguments);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_TRUE(has(error({"--fp16"}), "--fp16 is a flag of Megatron-LM that this command does not"));
  EXPECT_TRUE(has(error({"--hiden-size", "3"}), "did you mean --hidden-size"));
  EXPECT_TRUE(has(Train().error({"--use-flash-atn"}), "did you mean --use-flash-attn"));
  EXPECT_TRUE(has(error({"--use-flash-atn"}), "there is no flag --use-flash-atn; see --help"));
  Words notes;
  try {
    parse_training("megatron x", "x", fields, {"--num-layers", "2"}, notes);
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_TRUE(has(e.what(), "--num-layers is a flag of megatron train")) << e.what();
  }
}

TEST(FlagTable, TheProgramRefuses) {
  for (const std::string flag :
       {"train --hybrid-context-parallel", "plan --moe-mlp-glu-interleave-size 2",
        "bench step --use-kitchen-attention", "train --save-params-interval 5",
        "eval --perform-rl-step", "train --yaml-cfg x.yaml",
        "train --pipeline-model-parallel-split-rank 2", "preprocess --data-impl lazy",
        "train --fine-grained-activation-offloading", "train --offload-modules mlp"}) {
    const auto [code, text] = run(flag);
    EXPECT_EQ(code, 2) << flag;
    EXPECT_TRUE(has(text, flag.substr(flag.find("--")) + " is refused: it ")) << text;
  }
  const auto [code, text] = run("train --use-flash-attn --batch-size 3 --print-config");
  EXPECT_EQ(code, 2);
  EXPECT_TRUE(has(text, "  --seq-length INT: ")) << text;
  EXPECT_TRUE(has(text, "\nmicro-batch-size: 3\n")) << text;
  EXPECT_TRUE(has(text, "# ignored, because they have no effect here: --use-flash-attn (")) << text;
}

}  // namespace
}  // namespace megatron::cli
