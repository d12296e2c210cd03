#include "golden/cli/flag_effects.h"

namespace megatron::testing {
namespace {

const std::string kFile = "!mock-data --data-path {data}/a --split 1 ";
const std::string kBlend = "!mock-data --data-path 0.5 {data}/a 0.5 {data}/b --split 1 ";
const std::string kMany = "--global-batch-size 8 --seed 7";
const std::string kSets = "!mock-data --train-data-path {data}/a ";

std::vector<FlagRow> source_flags() {
  return {
      {"data-path", "loss", "--data-path {data}/b", kFile},
      {"data-args-path", "loss", "!mock-data --split 1 --data-args-path {data}/list"},
      {"train-data-path", "loss", "!mock-data --train-data-path {data}/a"},
      {"valid-data-path", "validation", "--valid-data-path {data}/c",
       kSets + "--valid-data-path {data}/b --eval-interval 3 --eval-iters 2"},
      {"test-data-path", "validation", "--test-data-path {data}/c",
       kSets + "--valid-data-path {data}/b --eval-interval 3 --eval-iters 2"},
      {"per-split-data-args-path", "loss",
       "!mock-data --per-split-data-args-path {data}/splits.json"},
      // The samples are so long that each epoch has only two.
      {"mid-level-dataset-surplus", "index", "--mid-level-dataset-surplus 1",
       kBlend + "--seq-length 1024 --data-cache-path {w}/cache"},
      {"num-dataset-builder-threads", "threads", "--num-dataset-builder-threads 1",
       kBlend + "--num-dataset-builder-threads 2", "--num-dataset-builder-threads 2"},
      {"split", "loss", "--split 50,50,0", kFile},
      {"data-cache-path", "files", "--data-cache-path {w}/cache", kFile},
      {"mock-data", "end", "--mock-data", "!mock-data"},
      {"reset-position-ids", "loss", "--reset-position-ids", kFile + kMany},
      {"reset-attention-mask", "loss", "--reset-attention-mask", kFile + kMany},
      {"dataloader-inter-document-masking", "loss", "--dataloader-inter-document-masking",
       kFile + kMany},
      {"no-mmap-bin-files", "maps", "--no-mmap-bin-files", kFile},
      {"allow-ambiguous-pad-tokens", "loss", "--allow-ambiguous-pad-tokens",
       kFile + "--null-tokenizer-pad-id 63"},
      {"eod-mask-loss", "loss", "--eod-mask-loss", kFile},
      {"dataloader-type", "loss", "--dataloader-type cyclic", kFile},
      {"no-data-sharding", "loss", "--no-data-sharding",
       kFile + "--dataloader-type cyclic --ranks 2"},
  };
}

std::vector<FlagRow> chat_flags() {
  const std::string files =
                        "!mock-data !vocab-size --seq-length 48 --data-path {data}/chats.jsonl "
                        "--tokenizer-model {vectors}/post_training/sft/chatml ",
                    chats = files + "--task sft ",
                    masked =
                        "!mock-data !vocab-size --task mlm --seq-length 48 "
                        "--data-path {vectors}/bert_dataset/data/docs60 "
                        "--tokenizer-model {vectors}/bert_dataset/data/wordpiece ",
                    texts =
                        "!mock-data !vocab-size --seq-length 48 --data-path {data}/pairs.jsonl "
                        "--task seq2seq --input-key prompt --target-key chosen "
                        "--tokenizer-model {vectors}/bert_dataset/data/wordpiece ";
  return {
      {"task", "end", "--task sft", files},
      {"epochs", "batch", "!train-iters --epochs 5", chats},
      {"log-entropy", "log", "--log-entropy", chats},
      {"sft", "loss", "--sft --sft-tokenizer-prompt-format default", chats},
      {"sft-tokenizer-prompt-format", "loss",
       "!sft-tokenizer-prompt-format --sft-tokenizer-prompt-format identity",
       chats + "--sft --sft-tokenizer-prompt-format default",
       "!sft-tokenizer-prompt-format --sft-tokenizer-prompt-format default"},
      {"chat-packing", "loss", "--chat-packing wrapped", chats, "--chat-packing bfd"},
      {"chat-truncation", "loss", "--chat-truncation keep_end", chats,
       "--chat-truncation keep_start"},
      {"chat-template", "loss", "--chat-template {data}/chat.jinja", chats},
      {"center-rewards-coefficient", "loss", "--center-rewards-coefficient 0.5",
       "!mock-data !vocab-size --seq-length 48 --data-path {data}/pairs.jsonl --task reward "
       "--tokenizer-model {vectors}/post_training/sft/chatml "},
      {"mask-prob", "loss", "--mask-prob 0.4", masked, "", "", kFile},
      {"short-seq-prob", "loss", "--short-seq-prob 0.4", masked, "", "", kFile},
      {"megatron-data-order", "loss", "--megatron-data-order", masked, "", "", kFile},
      {"bert-no-binary-head", "shape", "--bert-no-binary-head", masked, "", "", kFile},
      {"labels", "loss", "--labels yes no",
       "!mock-data !vocab-size --seq-length 48 --data-path {data}/labels.jsonl --task classify "
       "--tokenizer-model {vectors}/post_training/sft/chatml ",
       "--labels no yes"},
      {"input-key", "loss", "!input-key --input-key rejected", texts,
       "!input-key --input-key prompt"},
      {"target-key", "loss", "!target-key --target-key rejected", texts,
       "!target-key --target-key chosen"},
      {"doc-stride", "loss", "!doc-stride --doc-stride 0",
       "!mock-data !vocab-size !num-layers !hidden-size !num-attention-heads --model-config "
       "{vectors}/hf/bert/config.json --data-path {data}/questions.jsonl --task question-answering "
       "--tokenizer-model {data}/words.txt --doc-stride 8 ",
       "!doc-stride --doc-stride 8"},
  };
}

std::vector<FlagRow> infilling_flags() {
  const std::string plain =
      "!mock-data !vocab-size --seq-length 96 --global-batch-size 8 --split 1 "
      "--data-path {vectors}/fim_dataset/data/repos --data-cache-path {w}/cache "
      "--tokenizer-model {vectors}/indexed/preprocess/tokenizer_bpe2k "
      "--tokenizer-special-tokens <fim_prefix> <fim_middle> <fim_suffix> <fim_pad> <|file|> ";
  const std::string filled = plain + "--fim-data ", all = filled + "--fim-rate 1 ",
                    split = all + "--fim-split-sample <|file|> --fim-fragment-rate 1 ";
  return {
      {"fim-data", "loss", "--fim-data", plain},
      {"fim-rate", "loss", "--fim-rate 1", filled, "", "", plain},
      {"fim-spm-rate", "loss", "--fim-spm-rate 1", filled, "", "", plain},
      {"fim-split-sample", "loss", "--fim-split-sample <|file|> --fim-fragment-rate 1", all, "", "",
       plain},
      {"fim-fragment-rate", "loss", "--fim-fragment-rate 0", split, "", "", plain},
      {"fim-no-prefix", "loss", "--fim-no-prefix #skip", all, "", "", plain},
      {"fim-prefix-token", "loss", "--fim-prefix-token <|file|>", filled, "", "", plain},
      {"fim-middle-token", "loss", "--fim-middle-token <|file|>", filled, "", "", plain},
      {"fim-suffix-token", "loss", "--fim-suffix-token <|file|>", filled, "", "", plain},
      {"fim-pad-token", "error", "--fim-pad-token <none>", filled, "", "", plain},
      {"fim-eod-token", "error", "--fim-eod-token <|file|>", filled, "", "", plain},
  };
}

std::vector<FlagRow> preference_flags() {
  const std::string chatml =
                        "!mock-data !vocab-size --seq-length 48 "
                        "--tokenizer-model {vectors}/post_training/sft/chatml ",
                    dpo = chatml + "--data-path {data}/pairs.jsonl --task dpo ",
                    chats = chatml + "--data-path {data}/chats.jsonl --task sft ",
                    simpo = dpo + "--preference-loss simpo ", kto = dpo + "--preference-loss kto ";
  return {
      {"preference-loss", "loss", "--preference-loss hinge", dpo, "", "", chats},
      {"preference-loss-weights", "loss", "--preference-loss-weights 2", dpo, "", "", chats},
      {"beta", "loss", "--beta 0.5", dpo, "", "", chats},
      {"label-smoothing", "loss", "--label-smoothing 0.2", dpo + "--preference-loss conservative ",
       "", "", dpo},
      {"ld-alpha", "loss", "--ld-alpha 0.5", dpo, "", "", simpo},
      {"f-divergence-type", "loss", "--f-divergence-type forward_kl", dpo, "", "", simpo},
      {"f-alpha-divergence-coef", "loss", "--f-alpha-divergence-coef 0.2",
       dpo + "--f-divergence-type alpha_divergence ", "", "", dpo},
      {"reference-free", "loss", "--reference-free", dpo, "", "", simpo},
      {"use-weighting", "loss", "--use-weighting", dpo, "", "", chats},
      {"discopop-tau", "loss", "--discopop-tau 0.5", dpo + "--preference-loss discopop ", "", "",
       dpo},
      {"desirable-weight", "loss", "--desirable-weight 2", kto, "", "", dpo},
      {"undesirable-weight", "loss", "--undesirable-weight 2", kto, "", "", dpo},
      {"simpo-gamma", "loss", "--simpo-gamma 1", simpo, "", "", dpo},
      {"cpo-alpha", "loss", "--cpo-alpha 0.5", simpo, "", "", dpo},
      {"alphapo-alpha", "loss", "--alphapo-alpha 0.5", simpo, "", "", dpo},
      {"reference-model", "loss", "--reference-model {w}/base", dpo, "",
       dpo + "--save {w}/base --seed 7", simpo},
      {"precompute-reference", "files", "--precompute-reference",
       dpo + "--data-cache-path {w}/cache", "", "", simpo + "--data-cache-path {w}/cache"},
  };
}

std::vector<FlagRow> evaluation_flags() {
  const std::string sets = kSets +
                           "--valid-data-path {data}/b {data}/c --eval-interval 3 --eval-iters 1 "
                           "--full-validation ";
  return {
      {"eval-interval", "validation", "--eval-interval 1", "--eval-iters 2"},
      {"eval-iters", "validation", "--eval-iters 2", "--eval-interval 3"},
      {"full-validation", "validation", "--full-validation",
       "!mock-data --data-path {data}/a --split 60,40,0 --eval-interval 3 --eval-iters 1"},
      {"multiple-validation-sets", "validation", "--multiple-validation-sets", sets},
      {"validation-set-names", "validation", "--validation-set-names one two",
       sets + "--multiple-validation-sets"},
      {"eval-global-batch-size", "validation", "--eval-global-batch-size 4",
       "--eval-interval 3 --eval-iters 1", "--eval-global-batch-size 2"},
      {"eval-micro-batch-size", "memory", "--eval-micro-batch-size 8",
       "--eval-interval 1 --eval-iters 1 --eval-global-batch-size 8", "--eval-micro-batch-size 1",
       "", "--eval-global-batch-size 8"},
      {"start-eval-at-iter", "validation", "--start-eval-at-iter 2",
       "--eval-interval 1 --eval-iters 1", "--start-eval-at-iter 0"},
      {"skip-train", "batch", "--skip-train", "--eval-iters 1"},
      {"iterations-to-skip", "batch", "--iterations-to-skip 1"},
  };
}

std::vector<FlagRow> tokenizer_flags() {
  const std::string bytes =
      "!vocab-size --tokenizer-model {vectors}/tokenizers/trained/gpt2/tokenizer.json";
  const std::string pair =
      "!vocab-size --tokenizer-type GPT2BPETokenizer --vocab-file {data}/vocab.json "
      "--merge-file {data}/merges.txt";
  const std::string word =
      "!vocab-size --tokenizer-type BertWordPieceLowerCase --vocab-file {data}/vocab.txt";
  const std::string tik =
      "--tokenizer-type TikTokenizer --tokenizer-model {data}/tik.json "
      "--vocab-size 300 --tiktoken-num-special-tokens 10";
  return {
      {"tokenizer-type", "tokenizer", "--tokenizer-type ByteTokenizer", "--vocab-size 256",
       "--tokenizer-type NullTokenizer"},
      {"tokenizer-model", "tokenizer", bytes, ""},
      {"vocab-file", "tokenizer", "--vocab-file {data}/other.json", pair},
      {"merge-file", "tokenizer", "--merge-file {data}/no_merges.txt", pair},
      {"vocab-extra-ids", "tokenizer", "--vocab-extra-ids 3", word},
      {"tokenizer-special-tokens", "tokenizer", "--tokenizer-special-tokens <new>", bytes},
      {"tiktoken-pattern", "tokenizer", "--tiktoken-pattern v1", tik, "--tiktoken-pattern v2"},
      {"tiktoken-num-special-tokens", "tokenizer", "--tiktoken-num-special-tokens 20", tik,
       "--tiktoken-num-special-tokens 10"},
      {"no-tokenizer-sentencepiece-ignore-extra-whitespaces", "error",
       "--no-tokenizer-sentencepiece-ignore-extra-whitespaces",
       "!vocab-size --tokenizer-model "
       "{vectors}/tokenizers/sentencepiece/unigram_nfkc_cf/tokenizer.model"},
      {"disable-tokenizer-sentencepiece-ignore-extra-whitespaces", "error",
       "--disable-tokenizer-sentencepiece-ignore-extra-whitespaces",
       "!vocab-size --tokenizer-model "
       "{vectors}/tokenizers/sentencepiece/unigram_nfkc_cf/tokenizer.model"},
      {"tokenizer-hf-no-include-special-tokens", "tokenizer",
       "--tokenizer-hf-no-include-special-tokens",
       "!vocab-size --tokenizer-model {vectors}/tokenizers/trained/llama2/tokenizer.json"},
      {"null-tokenizer-eod-id", "loss", "--null-tokenizer-eod-id 5", kFile + "--eod-mask-loss",
       "--null-tokenizer-eod-id 63"},
      {"null-tokenizer-pad-id", "loss", "--null-tokenizer-pad-id 5", kFile},
      {"make-vocab-size-divisible-by", "plan", "--make-vocab-size-divisible-by 96", "", "", "",
       "--padded-vocab-size 256"},
      {"padded-vocab-size", "plan", "--padded-vocab-size 256", "", "--padded-vocab-size 128"},
      {"no-pad-vocab-size", "plan", "--no-pad-vocab-size", "", "", "", "--padded-vocab-size 256"},
      {"disable-pad-vocab-size", "plan", "--disable-pad-vocab-size", "", "", "",
       "--padded-vocab-size 256"},
  };
}

}  // namespace

std::vector<FlagRow> data_flags() {
  std::vector<FlagRow> all;
  for (auto& rows : {source_flags(), chat_flags(), infilling_flags(), preference_flags(),
                     evaluation_flags(), tokenizer_flags()})
    all.insert(all.end(), rows.begin(), rows.end());
  return all;
}

}  // namespace megatron::testing
