#include "settings/data_settings.h"

#include <span>

#include "base/error.h"

namespace megatron::settings {
namespace {

// A source of data given by flags replaces other sources of a configuration file.
void replace_sources(Fields& f) {
  using Names = std::vector<std::string>;
  const std::vector<Names> sources = {{"mock-data"},
                                      {"data-path"},
                                      {"data-args-path"},
                                      {"train-data-path", "valid-data-path", "test-data-path"},
                                      {"per-split-data-args-path"}};
  for (const Names& source : sources)
    for (const Names& other : sources)
      if (&source != &other) f.replace(source, other);
  f.replace(sources[3], {"split"});
  f.replace(sources[4], {"split"});
}

}  // namespace

void DataSettings::fields(Fields& f) {
  f.begin_group("data");
  f.add("data-path", &data_path,
        "prefix of a .bin/.idx pair, or several prefixes, blended by size; or alternating weights "
        "and prefixes: 0.7 a 0.3 b");
  f.add("data-args-path", &data_args_path, "file with the arguments of --data-path");
  f.add("train-data-path", &train_data_path,
        "like --data-path, but for training only and not divided by --split");
  f.add("valid-data-path", &valid_data_path, "like --train-data-path, for validation");
  f.add("test-data-path", &test_data_path, "like --train-data-path, for testing");
  f.add("per-split-data-args-path", &per_split_data_args_path,
        "JSON file with the lists of data sets of all splits: {\"train\": [...], \"valid\": [...], "
        "\"test\": [...]}");
  f.add("mid-level-dataset-surplus", &mid_level_dataset_surplus,
        "extra share of samples to build for each data set of a weighted blend");
  f.add("num-dataset-builder-threads", &builder_threads,
        "data sets opened and indexed in parallel; default the number of cores");
  f.add("split", &split,
        "shares of the documents for training, validation and test; default 969, 30, 1");
  f.add("data-cache-path", &data_cache_path,
        "folder for the cached sample indices; default: next to the data");
  TokenizerSettings::fields(f);
  f.add_switch("mock-data", &mock_data, true, "train on synthetic tokens instead of --data-path");
  f.add_switch("reset-position-ids", &reset_position_ids, true,
               "restart positions after each end-of-document token");
  f.add_switch("reset-attention-mask", &reset_attention_mask, true,
               "attention does not cross end-of-document tokens");
  f.add_switch("dataloader-inter-document-masking", &inter_document_masking, true,
               "restart positions and attention at the boundaries of stored sequences, whether "
               "or not they end with the end-of-document token");
  f.add_switch("no-mmap-bin-files", &mmap_bin_files, false,
               "read .bin files instead of memory-mapping them");
  f.add_switch("allow-ambiguous-pad-tokens", &allow_ambiguous_pad_tokens, true,
               "exclude labels that are the padding token from the loss, even if it is also the "
               "end-of-document or another special token");
  f.add_switch("eod-mask-loss", &eod_mask_loss, true,
               "no loss where the input is the end-of-document token");
  infilling.fields(f);
  f.add("task", &task,
        {"pretrain", "mlm", "span-corruption", "sft", "dpo", "reward", "classify",
         "token-classification", "question-answering", "seq2seq"},
        "what is trained: pretrain (the next tokens of --data-path's token files), mlm (the masked "
        "tokens of an encoder, from token files of sentences, and whether a text follows another), "
        "span-corruption (the masked spans of an encoder-decoder's text, from the same files); or, "
        "from files of JSON lines or JSON arrays, sft (answers in chats), dpo (preferences "
        "between completions), reward (a score that is higher for the chosen one of two texts), "
        "classify (a label for each text), token-classification (an encoder's label for each word "
        "of a text), question-answering (an encoder's answer, a part of a text) or seq2seq (a text "
        "that an encoder-decoder writes for another)");
  f.add("mask-prob", &mask_prob, "share of the tokens that --task mlm and span-corruption mask");
  f.add("short-seq-prob", &short_seq_prob,
        "fraction of the samples of --task mlm and span-corruption that are "
        "shorter than --seq-length");
  f.add_switch(
      "megatron-data-order", &megatron_data_order, true,
      "samples of --task mlm and span-corruption exactly as Megatron-LM draws them, slips included "
      "(docs/data.md)");
  f.of({"mask-prob", "short-seq-prob", "megatron-data-order"},
       [this] { return reads_sentences() ? "" : "--task is " + task; });
  f.add("labels", &labels,
        "names of the classes of --task classify or token-classification, in the order of the "
        "scores; default: those of the model's head, or else those in the data, sorted");
  f.add("doc-stride", &doc_stride,
        "--task question-answering: tokens by which consecutive windows of a context overlap, if "
        "question and context together are longer than --seq-length")
      .within(0, int64_t{1} << 30);
  f.add("input-key", &input_key,
        "key of the encoder's texts in the records of --task seq2seq; default the first that a "
        "record has of input, inputs and prompt");
  f.add("target-key", &target_key,
        "key of the decoder's texts in the records of --task seq2seq; default target, targets or "
        "completion, as the input's key is");
  f.add("center-rewards-coefficient", &center_rewards_coefficient,
        "weight of the squared sum of a pair's two scores in the loss of --task reward, which "
        "keeps scores near 0");
  f.add(
      "chat-packing", &chat_packing, {"bfd", "bfd_split", "wrapped", "none"},
      "how chats (or texts, or pairs of them) are packed into rows of --seq-length tokens (those "
      "in one row do not attend to each other): bfd (best fit, longest first; longer ones are "
      "cut), bfd_split (longer ones are split), wrapped (a stream cut into rows), none (a row for "
      "each)");
  f.add("chat-truncation", &chat_truncation, {"keep_start", "keep_end"},
        "which tokens of a chat or text longer than --seq-length are kept");
  f.add("chat-template", &chat_template,
        "file with a Jinja template to use instead of the tokenizer's own");
  f.add_switch("sft", &sft, true,
               "--task sft as Megatron-LM has it: each record is a row, in the files' order, whose "
               "conversations begin at system messages, in the format of "
               "--sft-tokenizer-prompt-format");
  f.add("sft-tokenizer-prompt-format", &sft_prompt_format,
        {"nemotron-h-aligned", "nemotron-nano-v2", "identity", "default"},
        "how --sft writes conversations: as Nemotron-H or Nemotron Nano v2 do, identity (only "
        "their contents), with loss on the assistant's tokens; or default (the tokenizer's chat "
        "template, with loss on every token)");
  f.of({"sft-tokenizer-prompt-format"}, [this] { return sft ? "" : "--sft is not given"; });
  f.common({"data-path", "tokenizer-model", "split", "mock-data"});
  replace_sources(f);
  f.begin_group("preferences");
  const size_t first = f.all().size();
  preferences.fields(f);
  f.add("reference-model", &reference_model,
        "Hugging Face directory of the reference model, which must have the trained model's shape; "
        "default: the run's initial weights, or, with adapters, the model without them");
  f.add_switch("precompute-reference", &precompute_reference, true,
               "compute the reference model's log-probabilities once, before the first step, and "
               "keep them in a file next to the data or in --data-cache-path, so that no second "
               "model is in memory");
  f.of({"reference-model", "precompute-reference"}, [this] {
    return preferences.needs_reference() ? "" : "this --preference-loss reads no reference model";
  });
  for (Field& field : std::span(f.all()).subspan(first))
    field.idle = [this, idle = std::move(field.idle)]() -> std::string {
      if (task != "dpo") return "--task is " + task;
      return idle ? idle() : "";
    };
}

void DataSettings::settle_sft() {
  if (!sft) return;
  MG_CHECK(pretrains() || task == "sft", "--sft trains on chats, but --task is {}: leave one out",
           task);
  MG_CHECK(chat_packing == DataSettings().chat_packing,
           "--chat-packing {} has no effect with --sft, whose rows are records: leave it out",
           chat_packing);
  MG_CHECK(chat_truncation == "keep_start",
           "--chat-truncation {} has no effect with --sft, which keeps the beginnings of rows: "
           "leave it out",
           chat_truncation);
  MG_CHECK(
      !chat_template || sft_prompt_format == "default",
      "--chat-template has no effect with --sft-tokenizer-prompt-format {}, which has its own: "
      "leave it out, or give --sft-tokenizer-prompt-format default",
      sft_prompt_format);
  task = "sft";
}

}  // namespace megatron::settings
