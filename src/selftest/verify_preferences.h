// Compares losses of preferences, from log-probabilities to the gradients of a model, with those of
// another system.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "selftest/report.h"
#include "selftest/verify.h"
#include "settings/preference_settings.h"

namespace megatron::selftest {

// directory: test vectors for the models ../models/policy and ../models/reference, with B pairs of
// at most T tokens. A log-probability [.., t] is that of token t + 1. Files:
//   pairs.json            [{prompt_ids, chosen_ids, rejected_ids, max_length}, ...]; max_length:
//                         tokens that are kept
//   cases.json            {CASE: {loss_type, beta, ..., metrics}} in TRL's names; with cpo_alpha:
//                         kinds of CPO; without loss_type: ORPO. Single completions: labels [2B],
//                         and policy: the model that is trained; the other is the reference
//   losses.safetensors    of B chosen texts, then B rejected ones: input_ids, attention_mask,
//                         completion_mask [2B,T]; log_probs, reference_log_probs of completions,
//                         log_probs_all, log_sum_sq_probs [2B,T-1]; KL_..., with the completion of
//                         the text before; chosen_log_probs, chosen_log_ratio, rejected_... [B];
//                         CASE.loss, CASE.grad [2B,T-1] with respect to the log-probabilities
//   grad_CASE.safetensors   loss, grad.NAME
bool has_preferences(const std::string& directory);
// One report per device.
std::vector<Report> verify_preferences(const std::string& directory, const VerifyOptions& options);

// Settings of a case in cases.json. Throws Error for a key that it does not know.
settings::PreferenceSettings preference_case(const Json& settings);
// The metric's name here, by TRL's; "" if there is none.
std::string preference_metric(std::string_view theirs);

}  // namespace megatron::selftest
