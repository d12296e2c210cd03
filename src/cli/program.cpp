#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <exception>
#include <new>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/version.h"
#include "cli/command.h"
#include "device/stream.h"
#include "training/same_settings.h"

namespace megatron::cli {
namespace {

constexpr Subcommand kCommands[] = {
    {"train", "train a model: data, steps, evaluation, checkpoints", train, true},
    {"sft", "fine-tune a model on chats", sft, true},
    {"dpo", "train a model on preferences between completions", dpo, true},
    {"reward", "train a model that scores texts, on pairs of which one was preferred", reward,
     true},
    {"classify", "train a classifier of texts", classify, true},
    {"token-classification", "train an encoder to label the words of texts", token_classification,
     true},
    {"question-answering", "train an encoder to find answers in texts", question_answering, true},
    {"seq2seq", "train an encoder-decoder to write a text for another", seq2seq, true},
    {"plan", "show what a training run needs: parameters, memory, FLOPs, time", plan},
    {"launch", "run a command on many ranks, one process each, under MPI", launch},
    {"eval", "compute loss and perplexity of a model on a data set, or its task scores", evaluate,
     true},
    {"generate", "continue a prompt", generate, true},
    {"serve", "serve a model over HTTP with OpenAI's API", serve, true},
    {"tokenizer", "train, run and check tokenizers; render chats", tokenizer},
    {"preprocess", "tokenize text into token files (.bin/.idx)", preprocess},
    {"merge", "merge several pairs of token files into one", merge},
    {"merge-adapter", "merge a LoRA adapter into its base model", merge_adapter},
    {"quantize", "write a model with weights of 8 bits", quantize},
    {"index", "build the sample indices of token files ahead of training", index},
    {"verify", "compare a Hugging Face directory or a training trajectory with its expected values",
     verify},
    {"bench",
     "measure speed on this machine: training, GEMMs, tokenizing, preprocessing, indices, "
     "generation",
     bench},
    {"report", "show runs as one HTML page: curves, samples, configuration", report},
    {"selftest", "check every kernel and layout on this machine", selftest},
    {"inspect", "show what is in a model directory, checkpoint, data set or tokenizer", inspect},
};

// Opens /dev/null at each of the file descriptors 0, 1 and 2 that is closed, so that no file opened
// later gets that number and receives printed output. Input from it and output to it still fail, as
// on a closed descriptor. Must be called before anything is opened.
void occupy_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) != -1 || errno != EBADF) continue;
    // Uses the lowest free number, which is this one. It is opened for the direction opposite to
    // its use.
    ::open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

void end_at_bus_error(int) {
  constexpr std::string_view kText =
      "error: a memory-mapped file (token files, an index cache, weights) was truncated while in "
      "use, or its disk cannot be read: start again when nothing is writing to it (with "
      "--no-mmap-bin-files the message names the token file)\n";
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kText.data(), kText.size());
  _exit(2);
}

// Reports the reason for signals on which the system would end the program silently.
void say_why_it_ends() {
  ::signal(SIGXFSZ,
           SIG_IGN);  // so that write() fails at a file size limit and its caller reports it
  ::signal(SIGBUS, end_at_bus_error);
}

// Threads get stacks of the limit's size; smaller ones than this would overflow.
constexpr rlim_t kMinStack = 512 << 10;

void check_stack() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= kMinStack) return;
  fail(
      "stacks are limited to {} KiB (ulimit -s); the program needs {} KiB: 'ulimit -s 8192' sets "
      "the "
      "usual limit",
      limit.rlim_cur >> 10, kMinStack >> 10);
}

// Throws Error unless all of standard output was written.
void check_written() {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return;
  std::clearerr(stdout);
  // The reason of an earlier write error is no longer known, so writes another byte, which fails
  // for the same reason.
  if (std::fputc('\n', stdout) == '\n' && std::fflush(stdout) == 0)
    fail("writing to standard output failed for a while, and part of the output is missing");
  fail("standard output cannot be written: {}", write_failure(errno));
}

void print_commands(std::string_view name, std::string_view summary,
                    std::span<const Subcommand> commands) {
  fmt::print("{}\n\nUsage: {} COMMAND [flags]\n\n", summary, name);
  for (const Subcommand& c : commands) fmt::print("  {:<11}{}\n", c.name, c.summary);
  fmt::print("\n{0} help COMMAND, or {0} COMMAND --help, shows its flags.\n", name);
}

}  // namespace

std::span<const Subcommand> commands() { return kCommands; }

int dispatch(std::string_view name, std::string_view summary, std::span<const Subcommand> commands,
             const Arguments& arguments) {
  const bool help = !arguments.empty() &&
                    (arguments[0] == "--help" || arguments[0] == "-h" || arguments[0] == "help");
  const size_t at = help ? 1 : 0;
  if (arguments.size() == at) {
    print_commands(name, summary, commands);
    return help ? 0 : 2;
  }
  std::vector<std::string> names;
  for (const Subcommand& c : commands) {
    names.emplace_back(c.name);
    if (c.name != arguments[at]) continue;
    Arguments rest(arguments.begin() + static_cast<std::ptrdiff_t>(at) + 1, arguments.end());
    if (help) rest.insert(rest.begin(), "--help");
    return c.run(rest);
  }
  const std::string near = nearest(arguments[at], names);
  fail("{} has no command '{}'; {} {} --help", name, arguments[at],
       near.empty() ? "see" : fmt::format("did you mean '{}'? See", near), name);
}

std::string read_standard_input() {
  std::string text;
  char buffer[65536];
  size_t n = 0;
  while ((n = std::fread(buffer, 1, sizeof buffer, stdin)) > 0) text.append(buffer, n);
  MG_CHECK(std::ferror(stdin) == 0, "standard input cannot be read: {}",
           std::system_category().message(errno));
  return text;
}

namespace {

// The reason and the exit code of the exception that is being handled.
std::pair<std::string, int> current_failure() {
  try {
    throw;
  } catch (const Error& e) {
    return {e.what(), 2};
  } catch (const std::system_error& e) {
    const bool output = std::ferror(stdout) != 0;
    return {
        output ? "standard output cannot be written: " + write_failure(e.code().value()) : e.what(),
        2};
  } catch (const std::bad_alloc&) {
    return {
        "the machine is out of memory; use a smaller --micro-batch-size or --seq-length, or "
        "fewer --ranks",
        2};
  } catch (const std::exception& e) {
    return {e.what(), 3};
  }
}

// True once this process has met the other processes of its run, if any.
bool met = false;

bool joins_ranks(const Arguments& arguments) {
  return !arguments.empty() && std::ranges::any_of(kCommands, [&](const Subcommand& c) {
    return c.joins_ranks && c.name == arguments[0];
  });
}

void require_same_settings(comm::Processes& processes, std::string_view command,
                           const Fields& fields) {
  if (processes.size() == 1) return;
  Runtime host({DeviceKind::cpu, 0}, 1);
  training::require_same(processes.group(), host.stream(),
                         training::compared_settings(command, fields, processes.size()));
}

}  // namespace

int with_processes(std::string_view command, const Fields& fields,
                   const std::function<int(comm::Processes&)>& body) {
  met = true;
  comm::Processes processes;
  if (!processes.lead()) log::set_level(log::Level::error);
  if (!processes.note().empty()) log::info("{}", processes.note());
  try {
    require_same_settings(processes, command, fields);
    return body(processes);
  } catch (...) {
    processes.wait_for_lead();
    const auto [reason, code] = current_failure();
    const std::string rank = processes.size() > 1 ? fmt::format("rank {}: ", processes.rank()) : "";
    log::error("{}{}", rank, reason);
    processes.abort(code);
    return code;
  }
}

int run(const Arguments& arguments) {
  occupy_standard_streams();
  say_why_it_ends();
  try {
    check_stack();
    int code = 0;
    if (!arguments.empty() && arguments[0] == "--version") fmt::print("megatron {}\n", version());
    else
      code = dispatch("megatron",
                      "Trains transformers, from raw text to a model, on one CPU or many ranks.",
                      kCommands, arguments);
    check_written();
    return code;
  } catch (...) {
    const auto [reason, code] = current_failure();
    log::error("{}", reason);
    if (!met && joins_ranks(arguments)) comm::tell_failed_start(reason);
    return code;
  }
}

}  // namespace megatron::cli
