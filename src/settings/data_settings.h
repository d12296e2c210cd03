// Settings of the training data.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/fields.h"
#include "settings/infilling_settings.h"
#include "settings/preference_settings.h"
#include "settings/tokenizer_settings.h"

namespace megatron::settings {

struct DataSettings : TokenizerSettings {
  std::vector<std::string> data_path, train_data_path, valid_data_path, test_data_path;
  std::optional<std::string> data_args_path, per_split_data_args_path;
  std::optional<std::string> split, data_cache_path;
  double mid_level_dataset_surplus = 0.005;
  std::optional<int64_t> builder_threads;
  bool mmap_bin_files = true;
  bool allow_ambiguous_pad_tokens = false;
  bool mock_data = false;
  bool reset_position_ids = false, eod_mask_loss = false;
  bool reset_attention_mask = false, inter_document_masking = false;
  InfillingSettings infilling;
  std::string task = "pretrain";                  // or another (fields())
  double mask_prob = 0.15, short_seq_prob = 0.1;  // of tasks on sentences
  bool megatron_data_order = false;
  std::vector<std::string> labels;
  int64_t doc_stride = 128;                          // of --task question-answering
  std::optional<std::string> input_key, target_key;  // of --task seq2seq
  double center_rewards_coefficient = 0;
  PreferenceSettings preferences;
  std::optional<std::string> reference_model;
  bool precompute_reference = false;
  std::string chat_packing = "bfd", chat_truncation = "keep_start";
  std::optional<std::string> chat_template;
  bool sft = false;  // --task sft with Megatron-LM's rows, order and prompt formats
  std::string sft_prompt_format = "nemotron-h-aligned";

  void fields(Fields& fields);
  // Sets --task sft if --sft is given. Throws Error for flags that contradict it.
  void settle_sft();
  bool pretrains() const { return task == "pretrain"; }
  bool masks() const { return task == "mlm"; }
  bool corrupts_spans() const { return task == "span-corruption"; }
  // True if the data are token files with a sequence for each sentence.
  bool reads_sentences() const { return masks() || corrupts_spans(); }
  // True if the data are token files, not files of examples.
  bool reads_tokens() const { return pretrains() || reads_sentences(); }
  // True if each sample has a text for an encoder and one for a decoder.
  bool reads_two_texts() const { return corrupts_spans() || task == "seq2seq"; }
  // True if attention does not cross documents.
  bool confines_attention() const {
    return reset_attention_mask || inter_document_masking || !pretrains();
  }
};

}  // namespace megatron::settings
