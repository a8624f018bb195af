// Runs one fuzz target without libFuzzer: its seeds, the lines of its corpus file (base64, one
// input a line, # begins a comment), and mutations of both drawn from one seed.
//   NAME_fuzz_test [CORPUS] [MUTATIONS]   all of it; prints the input that breaks the target
//   NAME_fuzz_test --write-seeds DIR      seeds and corpus as files, for libFuzzer to begin with
//   NAME_fuzz_test --pack DIR             the files of a folder as lines of a corpus file
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/hash.h"
#include "base/rng.h"
#include "tests/fuzz/fuzz.h"

namespace {

constexpr std::string_view kDigits =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr uint64_t kSeed = 2026;
constexpr size_t kMaxInputBytes = 1 << 16;

std::string to_base64(std::string_view bytes) {
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const size_t left = std::min<size_t>(3, bytes.size() - i);
    uint32_t block = 0;
    for (size_t k = 0; k < 3; ++k) {
      block = block << 8 | (k < left ? static_cast<unsigned char>(bytes[i + k]) : 0);
    }
    for (size_t k = 0; k < 4; ++k) {
      out += k <= left ? kDigits[block >> (18 - 6 * k) & 63] : '=';
    }
  }
  return out;
}

std::string from_base64(std::string_view text) {
  std::string out;
  uint32_t block = 0;
  int bits = 0;
  for (const char c : text) {
    const size_t digit = kDigits.find(c);
    if (digit == std::string_view::npos) break;
    block = block << 6 | static_cast<uint32_t>(digit);
    bits += 6;
    if (bits >= 8) {
      bits -= 8;
      out += static_cast<char>(block >> bits & 255);
    }
  }
  return out;
}

std::string current_input;

// A name for what was run last is worth more than the signal alone.
void tell_input(int number) {
  std::fprintf(stderr, "signal %d at this input (base64):\n%s\n", number,
               to_base64(current_input).c_str());
  std::fflush(stderr);
  ::signal(number, SIG_DFL);
  ::raise(number);
}

void run(const std::string& input) {
  current_input = input;
  // A copy of its exact size: a read beyond it is one a sanitizer sees.
  std::vector<uint8_t> bytes(input.begin(), input.end());
  LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
}

std::vector<std::string> read_corpus(const std::string& file) {
  std::vector<std::string> inputs;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (!line.empty() && line.front() != '#') inputs.push_back(from_base64(line));
  }
  return inputs;
}

std::string mutated(std::string input, const std::vector<std::string>& all, weft::Rng& rng) {
  static constexpr uint8_t kTelling[] = {0, 1, 0x7f, 0x80, 0xff, '0', '-', '"', '{', '[', '\n'};
  const uint64_t changes = 1 + rng.below(6);
  for (uint64_t i = 0; i < changes; ++i) {
    const size_t at = rng.below(input.size() + 1);
    switch (rng.below(7)) {
      case 0:
        if (at < input.size()) input[at] = static_cast<char>(input[at] ^ (1 << rng.below(8)));
        break;
      case 1:
        if (at < input.size()) input[at] = static_cast<char>(kTelling[rng.below(11)]);
        break;
      case 2:
        input.insert(at, 1, static_cast<char>(kTelling[rng.below(11)]));
        break;
      case 3:
        input.erase(at, 1 + rng.below(8));
        break;
      case 4:
        if (rng.below(4) == 0) input.resize(at);
        break;
      case 5:
        input.insert(at, input.substr(at, 1 + rng.below(16)));
        break;
      default: {
        const std::string& other = all[rng.below(all.size())];
        if (other.empty()) break;
        input.replace(at, rng.below(16), other, rng.below(other.size()), 1 + rng.below(32));
      }
    }
  }
  if (input.size() > kMaxInputBytes) input.resize(kMaxInputBytes);
  return input;
}

int write_seeds(const std::filesystem::path& folder, const std::vector<std::string>& inputs) {
  std::filesystem::create_directories(folder);
  for (const std::string& input : inputs) {
    std::ofstream(folder / weft::sha256_hex(std::string_view(input)), std::ios::binary) << input;
  }
  return 0;
}

int pack(const std::filesystem::path& folder) {
  std::vector<std::string> inputs;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::ifstream in(entry.path(), std::ios::binary);
    inputs.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  std::sort(inputs.begin(), inputs.end(), [](const std::string& a, const std::string& b) {
    return std::pair(a.size(), a) < std::pair(b.size(), b);
  });
  for (const std::string& input : inputs) std::printf("%s\n", to_base64(input).c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  for (const int number : {SIGABRT, SIGSEGV, SIGFPE, SIGILL, SIGBUS}) ::signal(number, tell_input);
  if (argc == 3 && std::strcmp(argv[1], "--pack") == 0) return pack(argv[2]);
  std::vector<std::string> inputs = weft::fuzz::seeds();
  if (argc >= 3 && std::strcmp(argv[1], "--write-seeds") == 0) {
    if (argc == 4) {
      const auto more = read_corpus(argv[3]);
      inputs.insert(inputs.end(), more.begin(), more.end());
    }
    return write_seeds(argv[2], inputs);
  }
  if (argc >= 2) {
    const auto more = read_corpus(argv[1]);
    inputs.insert(inputs.end(), more.begin(), more.end());
  }
  const long mutations = argc >= 3 ? std::strtol(argv[2], nullptr, 10) : 2000;
  run("");
  for (const std::string& input : inputs) run(input);
  weft::Rng rng(kSeed);
  for (long i = 0; i < mutations; ++i) run(mutated(inputs[rng.below(inputs.size())], inputs, rng));
  std::printf("%zu seeds and corpus inputs, %ld mutations\n", inputs.size(), mutations);
  return 0;
}
