// Token settings from the files next to a tokenizer: tokenizer_config.json and, unless that has
// added_tokens_decoder, special_tokens_map.json and added_tokens.json. Follows the rules of
// transformers 5.24.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "tokenizers/definition.h"

namespace megatron::tokenizers {

struct ConfiguredToken {
  AddedToken token;
  // If false, `token.special` decides whether the token is looked for in the normalised text.
  bool normalized_is_given = false;
};

// Reads a string, which is a special token, or an object. Throws Error naming `where` and `name`.
ConfiguredToken read_configured_token(const Json& value, std::string_view where,
                                      std::string_view name);

class TokenConfiguration {
 public:
  // definition: the directory's tokenizer.json, whose added tokens are used; null if there is none.
  // Throws Error naming the file that is malformed.
  TokenConfiguration(const std::string& directory, const Definition* definition);

  // True if the directory says how transformers opens it: it has tokenizer_config.json, or a
  // config.json with a model_type.
  bool exists() const { return exists_; }
  const Json& model_config() const { return model_config_; }  // config.json
  // A member of tokenizer_config.json; null if it is absent. is_set(): true if it is present, even
  // as null.
  const Json& member(std::string_view key) const;
  bool is_set(std::string_view key) const { return members_.contains(key); }
  // Sets a member that is absent to a class's default.
  void set_default(std::string_view key, Json value);

  // bos_token, eos_token, unk_token, sep_token, pad_token, cls_token, mask_token, then other names
  // that the configuration defines, in its order. Names without a token are omitted.
  struct Named {
    std::string name;
    ConfiguredToken token;
  };
  std::vector<Named> named_tokens() const;
  const std::map<int64_t, ConfiguredToken>& added_tokens() const { return added_; }
  std::map<int64_t, ConfiguredToken>& added_tokens() { return added_; }
  // extra_special_tokens or, where the configuration has no such member, `pieces` (the control and
  // user-defined ones of a SentencePiece model) or, without any, additional_special_tokens.
  std::vector<ConfiguredToken> extra_tokens(const std::vector<ConfiguredToken>& pieces) const;

 private:
  std::vector<ConfiguredToken> list(std::string_view key) const;
  void move_own_names();
  void move_extra_names();
  void read_special_tokens_map(const std::string& directory);
  void read_added_tokens(const std::string& directory);
  void take_added(int64_t id, ConfiguredToken token);

  bool exists_ = false;
  Json members_, model_config_;
  Json own_names_{Json::Object{}};  // named tokens that are unknown to transformers
  std::map<int64_t, ConfiguredToken> added_;
  std::map<std::string, ConfiguredToken, std::less<>> by_content_;  // added tokens by content
};

}  // namespace megatron::tokenizers
