#include "job/tokenize.h"

#include <gtest/gtest.h>

#include <cstring>

#include "job/bpe.h"
#include "job/token_file.h"
#include "python.h"

namespace weft::job {
namespace {

class TokenizeTest : public ::testing::Test {
 protected:
  void SetUp() override { dir_ = fresh_dir("tokenize_test", ::testing::TempDir()); }
  void TearDown() override { (void)os::remove_all(dir_); }
  os::Path write(const std::string& name, std::string_view text) {
    EXPECT_TRUE(os::write_file_atomic(dir_ / name, text).ok());
    return dir_ / name;
  }
  os::Path dir_;
};

TEST_F(TokenizeTest, BytesAreSplitIntoTrainingAndEvaluation) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += static_cast<char>(i);
  const os::Path input = write("book.txt", text);
  Result<TokenizeReport> report = tokenize_file(input, (dir_ / "book").string(), "");
  ASSERT_TRUE(report.ok()) << report.error().text();
  EXPECT_EQ(report->vocabulary, 256);
  EXPECT_EQ(report->dtype, "uint16");
  EXPECT_EQ(report->train_tokens, 950);
  EXPECT_EQ(report->eval_tokens, 50);
  Result<TokenFile> train = open_token_file(dir_ / "book.train.bin");
  Result<TokenFile> eval = open_token_file(dir_ / "book.eval.bin");
  ASSERT_TRUE(train.ok() && eval.ok());
  EXPECT_EQ(train->count, 950);
  uint16_t first = 0;
  std::memcpy(&first, eval->bytes.data(), 2);
  EXPECT_EQ(first, 950 % 256);
  EXPECT_TRUE(std::filesystem::exists(dir_ / "book.train.bin.json"));

  report = tokenize_file(input, (dir_ / "whole").string(), "", 0);
  ASSERT_TRUE(report.ok());
  EXPECT_TRUE(report->eval_path.empty());
  EXPECT_FALSE(std::filesystem::exists(dir_ / "whole.eval.bin"));
}

TEST_F(TokenizeTest, ImpossibleRequestsAreRefused) {
  const os::Path input = write("t.txt", "short");
  const std::string out = (dir_ / "o").string();
  EXPECT_EQ(tokenize_file(dir_ / "none.txt", out, "").error().code, Code::kNotFound);
  EXPECT_EQ(tokenize_file(input, out, "").error().code, Code::kInvalid);  // no evaluation token
  EXPECT_EQ(tokenize_file(input, out, "", 1.0).error().code, Code::kInvalid);
  EXPECT_EQ(tokenize_file(input, out, (dir_ / "none.json").string()).error().code, Code::kNotFound);
  EXPECT_EQ(tokenize_file(write("e.txt", ""), out, "", 0).error().code, Code::kInvalid);
}

constexpr const char* kTiny = R"({
 "added_tokens": [{"id": 9, "content": "<end>", "single_word": false, "lstrip": false,
                   "rstrip": false, "normalized": false, "special": true}],
 "normalizer": null,
 "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true},
 "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
  "vocab": {"a": 0, "b": 1, "Ġ": 2, "ab": 3, "Ġab": 4, "aba": 5},
  "merges": ["a b", ["Ġ", "ab"], "ab a"]}})";

TEST_F(TokenizeTest, MergesByRankThenFromTheLeft) {
  Result<ByteLevelBpe> bpe = ByteLevelBpe::parse(kTiny);
  ASSERT_TRUE(bpe.ok()) << bpe.error().text();
  EXPECT_EQ(bpe->vocabulary(), 10);
  EXPECT_EQ(*bpe->encode("ab ab"), (std::vector<uint32_t>{3, 4}));
  EXPECT_EQ(*bpe->encode("aba<end>ab"), (std::vector<uint32_t>{5, 9, 3}));
  EXPECT_EQ(*bpe->encode("<end><end>"), (std::vector<uint32_t>{9, 9}));
  EXPECT_EQ(*bpe->encode(""), std::vector<uint32_t>{});
  EXPECT_EQ(bpe->encode(std::string(300000, 'a'))->size(), 300000u);
  EXPECT_EQ(bpe->encode("c").error().code, Code::kInvalid);      // no such byte
  EXPECT_EQ(bpe->encode("a\xff").error().code, Code::kInvalid);  // not UTF-8
}

TEST_F(TokenizeTest, OtherTokenizersAreRefusedByName) {
  const auto error = [](const std::string& from, const std::string& to) {
    std::string text = kTiny;
    text.replace(text.find(from), from.size(), to);
    Result<ByteLevelBpe> bpe = ByteLevelBpe::parse(text);
    return bpe.ok() ? "no error" : bpe.error().text();
  };
  EXPECT_NE(error("\"BPE\"", "\"Unigram\"").find("Unigram"), std::string::npos);
  EXPECT_NE(error("\"ByteLevel\"", "\"Metaspace\"").find("Metaspace"), std::string::npos);
  EXPECT_NE(error("\"normalizer\": null", R"("normalizer": {"type": "NFC"})").find("NFC"),
            std::string::npos);
  EXPECT_NE(error("\"lstrip\": false", "\"lstrip\": true").find("lstrip"), std::string::npos);
  EXPECT_NE(error("\"ab a\"", "\"ab q\"").find("is no token"), std::string::npos);
  EXPECT_NE(error("\"ab a\"", "3").find("no pair"), std::string::npos);
  EXPECT_NE(error("\"b\": 1", "\"b\": -1").find("token id"), std::string::npos);
  for (const char* text : {"", "[]", "{}", "{\"model\":3}", "{\"model\":{\"type\":\"BPE\"}}"}) {
    EXPECT_FALSE(ByteLevelBpe::parse(text).ok()) << text;
  }
}

// Both forms of file, on the Bible where Debian's is installed and on awkward text everywhere.
TEST_F(TokenizeTest, EqualsPythonTokenizers) {
  if (!have_python()) GTEST_SKIP() << "no .venv";
  ASSERT_TRUE(run_python(R"(
import json, shutil, subprocess, sys
import numpy as np
from tokenizers import Tokenizer, Regex, models, pre_tokenizers, trainers
d = sys.argv[1]
text = ''
if shutil.which('bible'):
    text = subprocess.run(['bible', '-f', 'gen1:1-exo40:38'], capture_output=True, text=True,
                          check=True).stdout[:400000]
text += """It's we'll I'D they're  two  spaces\t\ttabs\r\n\n  3rd 1234567 x^2+y² naïve ÀÉÎ — “quotes” …
日本語テキスト 한국어 العربية हिन्दी \u00a0nbsp\u2003em\u3000wide\u180e\u0085 e\u0301 🙂👩‍👩‍👧 <|end|>after<|end|>   
 trailing spaces   """
open(d + '/text.txt', 'w', newline='').write(text)
llama = Regex(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
pres = {
  'gpt2': pre_tokenizers.ByteLevel(add_prefix_space=False),
  'prefix': pre_tokenizers.ByteLevel(add_prefix_space=True),
  'llama3': pre_tokenizers.Sequence([pre_tokenizers.Split(llama, 'isolated'),
                                     pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]),
}
for name, pre in pres.items():
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre
    tok.train_from_iterator([text], trainers.BpeTrainer(
        vocab_size=1200, special_tokens=['<|end|>'], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tok.save(f'{d}/{name}.json')
    ids = tok.encode(text, add_special_tokens=False).ids
    np.array(ids, np.uint16).tofile(f'{d}/{name}.ids')
    old = json.load(open(f'{d}/{name}.json'))   # merges as texts, the older form
    old['model']['merges'] = [m if isinstance(m, str) else ' '.join(m) for m in old['model']['merges']]
    json.dump(old, open(f'{d}/{name}.old.json', 'w'))
)",
                         {dir_.string()}));
  for (const std::string name : {"gpt2", "prefix", "llama3"}) {
    Result<TokenFile> expected = open_token_file(dir_ / (name + ".ids"), "uint16");
    ASSERT_TRUE(expected.ok());
    for (const char* form : {".json", ".old.json"}) {
      Result<TokenizeReport> report = tokenize_file(dir_ / "text.txt", (dir_ / "out").string(),
                                                    (dir_ / (name + form)).string(), 0);
      ASSERT_TRUE(report.ok()) << report.error().text();
      EXPECT_LE(report->vocabulary, 1200);
      Result<TokenFile> got = open_token_file(dir_ / "out.train.bin");
      ASSERT_TRUE(got.ok());
      ASSERT_EQ(got->count, expected->count) << name << form;
      EXPECT_EQ(std::memcmp(got->bytes.data(), expected->bytes.data(), got->bytes.size()), 0)
          << name << form;
    }
  }
}

}  // namespace
}  // namespace weft::job
