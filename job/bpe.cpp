#include "job/bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <queue>
#include <unordered_map>

#include "job/json_read.h"
#include "job/regex_split.h"

namespace weft::job {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxTokenizerBytes = 256 << 20;
constexpr int64_t kMaxId = 1 << 24;
constexpr size_t kMaxCachedWords = 1 << 18;
constexpr uint32_t kNoId = UINT32_MAX;

struct Merge {
  uint32_t rank = 0, id = 0;
};

struct AddedToken {
  std::string content;
  uint32_t id = 0;
};

uint64_t pair_key(uint32_t left, uint32_t right) {
  return uint64_t{left} << 32 | right;
}

// GPT-2's printable stand-ins for bytes: printable Latin-1 stays, the rest follows from U+0100.
std::array<std::string, 256> byte_characters() {
  std::array<std::string, 256> out;
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable =
        (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    const uint32_t point = printable ? byte : next++;
    std::string& text = out[byte];
    if (point < 0x80) {
      text = static_cast<char>(point);
    } else {
      text = {static_cast<char>(0xC0 | (point >> 6)), static_cast<char>(0x80 | (point & 0x3F))};
    }
  }
  return out;
}

Error refused(const std::string& what) {
  return make_error(
      Code::kRefused, fmt::format("tokenizer.json: {} is not supported", what),
      "weft reads byte-level BPE (GPT-2, LLaMA 3); tokenize with Python and write the "
      "ids as a uint16 or uint32 file with its .json sidecar");
}

Error broken(const std::string& what) {
  return make_error(Code::kCorrupt, "tokenizer.json: " + what);
}

std::string type_of(const json& section) {
  if (!section.is_object()) return "";
  const auto type = section.find("type");
  return type != section.end() && type->is_string() ? type->get<std::string>() : "";
}

const json& member(const json& object, const char* name) {
  static const json kNull;
  if (!object.is_object()) return kNull;
  const auto found = object.find(name);
  return found == object.end() ? kNull : *found;
}

bool is_true(const json& value) {
  return value.is_boolean() && value.get<bool>();
}

Result<uint32_t> read_id(const json& value) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() >= uint64_t{kMaxId}) {
    return broken("a token id is not a whole number in range");
  }
  return value.get<uint32_t>();
}

}  // namespace

struct ByteLevelBpe::State {
  std::unordered_map<std::string, uint32_t> ids;  // by stand-in characters
  std::unordered_map<uint64_t, Merge> merges;     // by pair of ids
  std::array<std::string, 256> characters = byte_characters();
  std::array<uint32_t, 256> byte_ids{};
  std::vector<AddedToken> added;  // longest first
  std::optional<RegexSplit> pattern;
  bool add_prefix_space = false;
  bool ignore_merges = false;
  int64_t vocabulary = 0;
  std::unordered_map<std::string, std::vector<uint32_t>> cache;

  Status read(const json& file);
  Status read_model(const json& model);
  Status read_merges(const json& list);
  Status read_pre_tokenizer(const json& section);
  Status read_byte_level(const json& section);
  Status read_added(const json& list);
  Result<uint32_t> id_of(const std::string& token) const;

  Status encode_segment(std::string_view text, std::vector<uint32_t>& out);
  Status encode_word(std::string_view word, std::vector<uint32_t>& out);
  Result<std::vector<uint32_t>> merge_word(std::string_view word) const;
  void count_id(uint32_t id) { vocabulary = std::max(vocabulary, int64_t{id} + 1); }
};

Result<uint32_t> ByteLevelBpe::State::id_of(const std::string& token) const {
  const auto found = ids.find(token);
  if (found == ids.end()) return broken(fmt::format("\"{}\" of a merge is no token", token));
  return found->second;
}

Status ByteLevelBpe::State::read_merges(const json& list) {
  if (!list.is_array()) return broken("there are no merges");
  for (size_t rank = 0; rank < list.size(); ++rank) {
    std::string left, right;
    const json& entry = list[rank];
    if (entry.is_string()) {
      const std::string text = entry.get<std::string>();
      const size_t space = text.find(' ');
      if (space == std::string::npos) return broken(fmt::format("merge {} is no pair", rank));
      left = text.substr(0, space);
      right = text.substr(space + 1);
    } else if (entry.is_array() && entry.size() == 2 && entry[0].is_string() &&
               entry[1].is_string()) {
      left = entry[0].get<std::string>();
      right = entry[1].get<std::string>();
    } else {
      return broken(fmt::format("merge {} is no pair", rank));
    }
    WEFT_TRY(const uint32_t left_id, id_of(left));
    WEFT_TRY(const uint32_t right_id, id_of(right));
    WEFT_TRY(const uint32_t id, id_of(left + right));
    merges.insert_or_assign(pair_key(left_id, right_id), Merge{static_cast<uint32_t>(rank), id});
  }
  return {};
}

Status ByteLevelBpe::State::read_model(const json& model) {
  if (type_of(model) != "BPE") return refused(fmt::format("model type \"{}\"", type_of(model)));
  for (const char* option : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const json& value = member(model, option);
    if (!value.is_null() && value != "") return refused(option);
  }
  const json& dropout = member(model, "dropout");
  if (!dropout.is_null() && dropout != 0) return refused("dropout of merges");
  if (is_true(member(model, "byte_fallback"))) return refused("byte_fallback");
  ignore_merges = is_true(member(model, "ignore_merges"));
  const json& vocab = member(model, "vocab");
  if (!vocab.is_object()) return broken("there is no vocabulary");
  for (const auto& [token, value] : vocab.items()) {
    WEFT_TRY(const uint32_t id, read_id(value));
    ids.emplace(token, id);
    count_id(id);
  }
  for (size_t byte = 0; byte < 256; ++byte) {
    const auto found = ids.find(characters[byte]);
    byte_ids[byte] = found == ids.end() ? kNoId : found->second;
  }
  return read_merges(member(model, "merges"));
}

Status ByteLevelBpe::State::read_byte_level(const json& section) {
  add_prefix_space = is_true(member(section, "add_prefix_space"));
  const json& use_regex = member(section, "use_regex");  // absent in old files: true
  if (!use_regex.is_null() && !is_true(use_regex)) return {};
  if (pattern) return refused("two splitting patterns");
  WEFT_TRY(auto compiled, RegexSplit::compile(kGpt2Pattern));
  pattern.emplace(std::move(compiled));
  return {};
}

// ByteLevel alone (GPT-2), or Split by a pattern and then ByteLevel (LLaMA 3).
Status ByteLevelBpe::State::read_pre_tokenizer(const json& section) {
  const std::string type = type_of(section);
  if (type == "ByteLevel") return read_byte_level(section);
  const json& steps = member(section, "pretokenizers");
  const bool split_first = type == "Sequence" && steps.is_array() && steps.size() == 2 &&
                           type_of(steps[0]) == "Split" && type_of(steps[1]) == "ByteLevel";
  if (!split_first) return refused(fmt::format("pre_tokenizer \"{}\"", type));
  const json& regex = member(member(steps[0], "pattern"), "Regex");
  if (!regex.is_string() || member(steps[0], "behavior") != "Isolated" ||
      is_true(member(steps[0], "invert"))) {
    return refused("this form of the pre_tokenizer \"Split\"");
  }
  if (is_true(member(steps[1], "add_prefix_space"))) return refused("add_prefix_space after Split");
  WEFT_TRY(auto compiled, RegexSplit::compile(regex.get_ref<const std::string&>()));
  pattern.emplace(std::move(compiled));
  return read_byte_level(steps[1]);
}

Status ByteLevelBpe::State::read_added(const json& list) {
  if (list.is_null()) return {};
  if (!list.is_array()) return broken("added_tokens is no list");
  for (const json& entry : list) {
    const json& content = member(entry, "content");
    if (!content.is_string() || content == "") return broken("an added token has no content");
    AddedToken token{content.get<std::string>(), 0};
    for (const char* option : {"single_word", "lstrip", "rstrip"}) {
      if (is_true(member(entry, option))) {
        return refused(fmt::format("{} of the added token \"{}\"", option, token.content));
      }
    }
    WEFT_TRY(token.id, read_id(member(entry, "id")));
    count_id(token.id);
    added.push_back(std::move(token));
  }
  std::stable_sort(added.begin(), added.end(), [](const AddedToken& a, const AddedToken& b) {
    return a.content.size() > b.content.size();
  });
  return {};
}

Status ByteLevelBpe::State::read(const json& file) {
  if (!file.is_object()) return broken("this is no tokenizer file");
  if (!member(file, "normalizer").is_null()) {
    return refused(fmt::format("normalizer \"{}\"", type_of(member(file, "normalizer"))));
  }
  WEFT_TRY_STATUS(read_model(member(file, "model")));
  WEFT_TRY_STATUS(read_pre_tokenizer(member(file, "pre_tokenizer")));
  return read_added(member(file, "added_tokens"));
}

// The pair of lowest rank first, leftmost among equals, until no pair merges.
Result<std::vector<uint32_t>> ByteLevelBpe::State::merge_word(std::string_view word) const {
  struct Symbol {
    uint32_t id;
    int64_t before, after;  // -1: none
    bool alive;
  };
  struct Candidate {
    uint32_t rank;
    int64_t at;
    uint32_t left, right, id;
    bool operator>(const Candidate& other) const {
      return std::pair(rank, at) > std::pair(other.rank, other.at);
    }
  };
  const int64_t count = static_cast<int64_t>(word.size());
  std::vector<Symbol> symbols;
  for (int64_t i = 0; i < count; ++i) {
    const auto byte = static_cast<unsigned char>(word[static_cast<size_t>(i)]);
    if (byte_ids[byte] == kNoId) {
      return make_error(Code::kInvalid,
                        fmt::format("the tokenizer has no token for byte 0x{:02x}", byte),
                        "train the tokenizer with the whole byte alphabet");
    }
    symbols.push_back({byte_ids[byte], i - 1, i + 1 < count ? i + 1 : -1, true});
  }
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> heap;
  const auto symbol = [&](int64_t i) -> Symbol& { return symbols[static_cast<size_t>(i)]; };
  const auto consider = [&](int64_t at) {
    if (at < 0 || symbol(at).after < 0) return;
    const uint32_t left = symbol(at).id, right = symbol(symbol(at).after).id;
    const auto found = merges.find(pair_key(left, right));
    if (found != merges.end()) heap.push({found->second.rank, at, left, right, found->second.id});
  };
  for (int64_t i = 0; i < count; ++i) consider(i);
  while (!heap.empty()) {
    const Candidate best = heap.top();
    heap.pop();
    Symbol& left = symbol(best.at);
    if (!left.alive || left.id != best.left || left.after < 0) continue;
    Symbol& right = symbol(left.after);
    if (right.id != best.right) continue;
    left.id = best.id;
    right.alive = false;
    left.after = right.after;
    if (left.after >= 0) symbol(left.after).before = best.at;
    consider(left.before);
    consider(best.at);
  }
  std::vector<uint32_t> out;
  for (int64_t i = count > 0 ? 0 : -1; i >= 0; i = symbol(i).after) out.push_back(symbol(i).id);
  return out;
}

Status ByteLevelBpe::State::encode_word(std::string_view word, std::vector<uint32_t>& out) {
  const std::string key(word);
  if (const auto found = cache.find(key); found != cache.end()) {
    out.insert(out.end(), found->second.begin(), found->second.end());
    return {};
  }
  std::vector<uint32_t> tokens;
  std::string stand_in;
  if (ignore_merges) {
    for (const char c : word) stand_in += characters[static_cast<unsigned char>(c)];
  }
  if (const auto whole = ids.find(stand_in); ignore_merges && whole != ids.end()) {
    tokens = {whole->second};
  } else {
    WEFT_TRY(tokens, merge_word(word));
  }
  out.insert(out.end(), tokens.begin(), tokens.end());
  if (cache.size() < kMaxCachedWords) cache.emplace(key, std::move(tokens));
  return {};
}

Status ByteLevelBpe::State::encode_segment(std::string_view text, std::vector<uint32_t>& out) {
  if (text.empty()) return {};
  std::string prefixed;
  if (add_prefix_space && text[0] != ' ') {
    prefixed = ' ';
    prefixed += text;
    text = prefixed;
  }
  if (!pattern) return encode_word(text, out);
  return pattern->split(text, [&](std::string_view word) { return encode_word(word, out); });
}

ByteLevelBpe::ByteLevelBpe(std::unique_ptr<State> state) : state_(std::move(state)) {}
ByteLevelBpe::ByteLevelBpe(ByteLevelBpe&&) noexcept = default;
ByteLevelBpe& ByteLevelBpe::operator=(ByteLevelBpe&&) noexcept = default;
ByteLevelBpe::~ByteLevelBpe() = default;

Result<ByteLevelBpe> ByteLevelBpe::parse(std::string_view tokenizer_json) {
  WEFT_TRY(const json file, parse_json(tokenizer_json, "tokenizer.json"));
  auto state = std::make_unique<State>();
  WEFT_TRY_STATUS(state->read(file));
  return ByteLevelBpe(std::move(state));
}

Result<ByteLevelBpe> ByteLevelBpe::load(const os::Path& path) {
  WEFT_TRY(const std::string text, os::read_file(path, kMaxTokenizerBytes));
  return parse(text);
}

int64_t ByteLevelBpe::vocabulary() const {
  return state_->vocabulary;
}

// Added tokens are cut out first, leftmost, the longest among those that begin at one place.
Result<std::vector<uint32_t>> ByteLevelBpe::encode(std::string_view text) {
  std::vector<uint32_t> out;
  std::vector<size_t> next(state_->added.size(), 0);  // where each occurs next
  for (size_t i = 0; i < next.size(); ++i) next[i] = text.find(state_->added[i].content);
  for (size_t at = 0; at < text.size();) {
    size_t cut = text.size(), which = next.size();
    for (size_t i = 0; i < next.size(); ++i) {
      if (next[i] != std::string_view::npos && next[i] < at) {
        next[i] = text.find(state_->added[i].content, at);
      }
      if (next[i] < cut) {
        cut = next[i];
        which = i;
      }
    }
    WEFT_TRY_STATUS(state_->encode_segment(text.substr(at, cut - at), out));
    if (which == next.size()) break;
    out.push_back(state_->added[which].id);
    at = cut + state_->added[which].content.size();
  }
  return out;
}

}  // namespace weft::job
