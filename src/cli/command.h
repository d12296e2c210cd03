// The sub-commands of the program, one file each.
#pragma once

#include <functional>
#include <span>
#include <string_view>

#include "cli/options.h"
#include "comm/processes.h"

namespace megatron::cli {

// Each returns the process's exit code and throws Error for problems that the user can fix. The
// arguments are those after the command's name.
int train(const Arguments& arguments);
int sft(const Arguments& arguments);
int reward(const Arguments& arguments);
int classify(const Arguments& arguments);
int token_classification(const Arguments& arguments);
int question_answering(const Arguments& arguments);
int seq2seq(const Arguments& arguments);
int dpo(const Arguments& arguments);
int evaluate(const Arguments& arguments);
int generate(const Arguments& arguments);
int serve(const Arguments& arguments);
int tokenizer(const Arguments& arguments);  // train | encode | decode | verify | chat
int tokenizer_verify(const Arguments& arguments);
int tokenizer_chat(const Arguments& arguments);
int preprocess(const Arguments& arguments);
int merge(const Arguments& arguments);
int merge_adapter(const Arguments& arguments);
int quantize(const Arguments& arguments);
int verify(const Arguments& arguments);
int bench(const Arguments& arguments);
int bench_step(const Arguments& arguments);
int selftest(const Arguments& arguments);
int selftest_device(const Arguments& arguments);
int inspect(const Arguments& arguments);
int plan(const Arguments& arguments);
int report(const Arguments& arguments);
int index(const Arguments& arguments);
int launch(const Arguments& arguments);

// Runs the program: finds the command, prints errors, and returns the exit code: 0 success, 1 a
// check failed, 2 an error that the user can fix (flags, files), 3 a defect of the program, 4
// training ended early by a signal, after a save.
int run(const Arguments& arguments);

// Runs `body` in a run of several processes, which a launcher must have started with the same
// settings (training/same_settings.h). A failure is reported, by rank 0 if all ranks have it, and
// ends all processes. Ranks above 0 print nothing else. command, fields: the sub-command and its
// flags.
int with_processes(std::string_view command, const Fields& fields,
                   const std::function<int(comm::Processes&)>& body);

// Reads all of standard input. Throws Error if it cannot be read.
std::string read_standard_input();

// `name` with its sub-commands: prints their list for --help or a wrong name.
struct Subcommand {
  std::string_view name, summary;
  int (*run)(const Arguments&);
  bool joins_ranks = false;  // may run as one of several processes that wait for each other
};
std::span<const Subcommand> commands();  // the program's subcommands
int dispatch(std::string_view name, std::string_view summary, std::span<const Subcommand> commands,
             const Arguments& arguments);

}  // namespace megatron::cli
