#include "training/run_settings.h"

namespace megatron::training {

void RunSettings::fields(Fields& f) {
  f.add("eval-interval", &eval_interval,
        "steps between evaluations on the validation split; default: none");
  f.add("eval-iters", &eval_iters, "global batches of an evaluation");
  f.add_switch("full-validation", &full_validation, true,
               "each evaluation takes the whole validation split, once, instead of --eval-iters");
  f.add_switch("multiple-validation-sets", &multiple_validation_sets, true,
               "the data sets of --valid-data-path are evaluated one by one, instead of mixed; "
               "needs --full-validation");
  f.add("validation-set-names", &validation_set_names,
        "their names in the log; default their prefixes");
  f.add("dataloader-type", &dataloader_type,
        "order of the training samples: single (as indexed, each once) or cyclic (in random order, "
        "epoch after epoch)");
  f.add_switch("no-data-sharding", &data_sharding, false,
               "with --dataloader-type cyclic: the samples are not divided among the ranks before "
               "they are put in random order");
  f.add("model", &model,
        "Hugging Face directory that gives the shape, and with --finetune the weights");
  f.add("sample-interval", &sample_interval,
        "steps between texts that the model writes for the log; default: none");
  f.add("sample-prompt", &sample_prompt, "what they begin with, one text or several");
  f.add("sample-tokens", &sample_tokens, "tokens of each");
}

}  // namespace megatron::training
