#include "settings/tokenizer_settings.h"

#include "base/divide.h"
#include "base/error.h"

namespace megatron::settings {

void TokenizerSettings::fields(Fields& f) {
  f.add("tokenizer-type", &tokenizer_type,
        "HuggingFaceTokenizer (or SFTTokenizer, as Megatron-LM calls it with --sft), "
        "GPT2BPETokenizer, SentencePieceTokenizer, GPTSentencePieceTokenizer, Llama2Tokenizer, "
        "TikTokenizer, BertWordPieceLowerCase, BertWordPieceCase, NullTokenizer "
        "(the text consists of token ids), or ByteTokenizer (ids are bytes; Megatron-LM implements "
        "it, but has no type for it); default: detected from --tokenizer-model; without that, "
        "GPT2BPETokenizer with --vocab-file and --merge-file, BertWordPieceLowerCase with "
        "--vocab-file alone, else NullTokenizer");
  f.add("tokenizer-model", &tokenizer_model,
        "the tokenizer's directory or file (tokenizer.json, SentencePiece .model, TikToken file)");
  f.add("vocab-file", &vocab_file, "vocab.json of GPT2BPETokenizer, vocab.txt of BertWordPiece");
  f.add("merge-file", &merge_file, "merges.txt of GPT2BPETokenizer");
  f.add("vocab-extra-ids", &vocab_extra_ids,
        "BertWordPiece: number of tokens <extra_id_0>, <extra_id_1> ... appended to the "
        "vocabulary");
  f.add("tokenizer-special-tokens", &tokenizer_special_tokens,
        "special tokens appended to the vocabulary (HuggingFaceTokenizer, GPT2BPETokenizer, "
        "BertWordPiece); TikTokenizer: the first special tokens, including the standard seven");
  f.add("tiktoken-pattern", &tiktoken_pattern, "TikTokenizer: split pattern, v1 or v2; default v2");
  f.add("tiktoken-num-special-tokens", &tiktoken_num_special_tokens,
        "TikTokenizer: number of ids reserved for special tokens, before the tokens of the file");
  for (const char* name : {"no-tokenizer-sentencepiece-ignore-extra-whitespaces",
                           "disable-tokenizer-sentencepiece-ignore-extra-whitespaces"}) {
    f.add_switch(name, &ignore_extra_whitespaces, false,
                 "require a SentencePiece model that preserves white space; others are refused");
  }
  f.add_switch("tokenizer-hf-no-include-special-tokens", &hf_include_special_tokens, false,
               "do not add the tokens that the tokenizer puts around each text (BOS, EOS)");
  f.add("null-tokenizer-eod-id", &null_tokenizer_eod_id,
        "NullTokenizer: end-of-document id; default the last id");
  f.add("null-tokenizer-pad-id", &null_tokenizer_pad_id, "NullTokenizer: padding id; -1 for none");
  f.add("make-vocab-size-divisible-by", &make_vocab_size_divisible_by,
        "Megatron-LM pads the vocabulary to a multiple of this times the tensor-parallel size; "
        "here it only changes what is reported")
      .of([this] {
        if (padded_vocab_size) return "--padded-vocab-size takes precedence";
        return pad_vocab_size ? "" : "the vocabulary is not padded";
      });
  f.add("padded-vocab-size", &padded_vocab_size,
        "Megatron-LM's padded vocabulary size; default from --make-vocab-size-divisible-by");
  for (const char* name : {"no-pad-vocab-size", "disable-pad-vocab-size"})
    f.add_switch(name, &pad_vocab_size, false, "do not pad the vocabulary").of([this] {
      return padded_vocab_size ? "--padded-vocab-size takes precedence" : "";
    });
  const std::vector<std::string> lists = {"vocab-file", "merge-file"};
  f.replace({"tokenizer-model"}, lists);
  f.replace(lists, {"tokenizer-model"});
  f.replace({"tokenizer-type"}, {"tokenizer-model", "vocab-file", "merge-file"},
            [](const Field& field) {
              return field.get() == "NullTokenizer" || field.get() == "ByteTokenizer";
            });
  f.replace({"make-vocab-size-divisible-by", "no-pad-vocab-size", "disable-pad-vocab-size"},
            {"padded-vocab-size"});
}

std::optional<std::string> TokenizerSettings::type_by_flags() const {
  if (tokenizer_type || tokenizer_model) return tokenizer_type;
  if (!vocab_file) return "NullTokenizer";
  return merge_file ? "GPT2BPETokenizer" : "BertWordPieceLowerCase";
}

int64_t padded_vocabulary_size(const TokenizerSettings& s, int64_t size, int64_t tensor_parallel) {
  constexpr int64_t kLimit = int64_t{1} << 31;
  MG_CHECK(s.make_vocab_size_divisible_by > 0 && s.make_vocab_size_divisible_by < kLimit,
           "--make-vocab-size-divisible-by is {}; it must lie in [1, 2^31)",
           s.make_vocab_size_divisible_by);
  if (s.padded_vocab_size) {
    MG_CHECK(
        *s.padded_vocab_size >= size && *s.padded_vocab_size < kLimit,
        "--padded-vocab-size is {}, but the vocabulary has {} tokens; give at least as many, or "
        "drop the flag",
        *s.padded_vocab_size, size);
    MG_CHECK(*s.padded_vocab_size % tensor_parallel == 0,
             "--padded-vocab-size {} is not a multiple of --tensor-model-parallel-size {}",
             *s.padded_vocab_size, tensor_parallel);
    return *s.padded_vocab_size;
  }
  if (!s.pad_vocab_size) return size;
  const int64_t multiple = s.make_vocab_size_divisible_by * tensor_parallel;
  return round_up(size, multiple);
}

}  // namespace megatron::settings
