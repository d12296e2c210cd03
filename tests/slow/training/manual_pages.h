// Debian's English manual pages as token files, for the slow tests.
#pragma once

#include <sys/wait.h>

#include <cstdlib>
#include <string>

#include "corpus/preprocess.h"
#include "data/text_source.h"
#include "golden/training/support.h"
#include "tokenizers/trainer/bpe_trainer.h"

namespace megatron::training {

inline constexpr const char* kNoManualPages =
    "apt-get download manpages manpages-dev did not succeed here (it needs Debian's archive), or "
    "mandoc is missing";

// Writes the pages as plain text to `folder`/text. Returns false if they are not available.
inline bool fetch_manual_pages(const std::string& folder) {
  const std::string command =
      "mkdir -p " + folder + " && cd " + folder +
      " && apt-get download -q manpages manpages-dev >log 2>&1"
      " && for package in *.deb; do dpkg-deb -x $package pages || exit 1; done"
      " && " MEGATRON_TEST_SOURCES "/../tools/manual_pages pages/usr/share/man text";
  const int status = std::system(command.c_str());
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

inline void train_tokenizer(const std::string& texts, int64_t vocabulary,
                            const std::string& output) {
  tokenizers::BpeTrainerOptions options;
  options.vocabulary_size = vocabulary;
  options.threads = 2;
  tokenizers::BpeTrainer trainer(options);
  data::TextSource source(texts);
  std::string text, name;
  while (source.next(text, name)) trainer.add(text);
  trainer.train().save(output);
}

// Makes a tokenizer (`folder`/tokenizer) and token files of the texts in `folder`/packages. Returns
// the prefix.
inline std::string tokenized_manual_pages(const TemporaryDirectory& folder, int64_t vocabulary) {
  const std::string texts = folder / "packages/text";
  train_tokenizer(texts, vocabulary, folder / "tokenizer");
  corpus::PreprocessSettings settings;
  settings.input = {texts};
  settings.whole_files = true;
  settings.output_prefix = folder / "manual";
  settings.tokenizer_model = folder / "tokenizer";
  settings.append_eod = true;
  return preprocess(settings).front().prefix;
}

}  // namespace megatron::training
