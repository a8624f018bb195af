// Sample order, token files, .npy, safetensors, checkpoints.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "base/hash.h"
#include "base/rng.h"
#include "job/checkpoint.h"
#include "job/safetensors.h"
#include "job/sample_order.h"
#include "job/token_file.h"
#include "python.h"

namespace weft::job {
namespace {

using nlohmann::json;

Buffer buffer_of(const std::string& text) {
  std::vector<std::byte> bytes(text.size());
  if (!text.empty()) std::memcpy(bytes.data(), text.data(), text.size());
  return Buffer(std::move(bytes));
}

std::string text_of(const Buffer& buffer) {
  return std::string(reinterpret_cast<const char*>(buffer.data()), buffer.size());
}

class DataTest : public ::testing::Test {
 protected:
  void SetUp() override { dir_ = fresh_dir("data_test", ::testing::TempDir()); }
  void TearDown() override { (void)os::remove_all(dir_); }
  os::Path write(const std::string& name, std::string_view text) {
    EXPECT_TRUE(os::write_file_atomic(dir_ / name, text).ok());
    return dir_ / name;
  }
  os::Path dir_;
};

// ---- sample order ----

RC_GTEST_PROP(SampleOrder, EachEpochVisitsDistinctSamples, (uint64_t seed)) {
  Rng rng(seed);
  const auto samples = static_cast<int64_t>(1 + rng.below(300));
  const auto batch = static_cast<int64_t>(1 + rng.below(uint64_t(samples)));
  Result<SampleOrder> order = SampleOrder::make(samples, batch, seed);
  RC_ASSERT(order.ok());
  const int64_t steps = order->steps_per_epoch();
  RC_ASSERT(steps == samples / batch);
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::set<int64_t> seen;
    for (int64_t step = 0; step < steps; ++step) {
      const auto at = order->at(epoch * steps + step);
      RC_ASSERT(at.size() == size_t(batch));
      for (int64_t sample : at) {
        RC_ASSERT(sample >= 0 && sample < samples);
        RC_ASSERT(seen.insert(sample).second);
      }
    }
  }
}

TEST(SampleOrder, IsAPureFunctionOfSeedAndStep) {
  SampleOrder a = *SampleOrder::make(1000, 32, 5), b = *SampleOrder::make(1000, 32, 5);
  const auto late = a.at(77);
  EXPECT_EQ(b.at(77), late);  // without having been asked for the steps before
  EXPECT_EQ(a.at(3), b.at(3));
  EXPECT_EQ(a.at(77), late);
  EXPECT_NE(SampleOrder::make(1000, 32, 6)->at(77), late);
  EXPECT_NE(a.at(0), a.at(31));  // another epoch, another shuffle
  const auto first = SampleOrder::make(10, 5, 1)->at(0);
  EXPECT_EQ(first, SampleOrder::make(10, 5, 1)->at(0));
}

TEST(SampleOrder, TooFewSamplesAreRefused) {
  EXPECT_EQ(SampleOrder::make(3, 4, 0).error().code, Code::kInvalid);
  EXPECT_EQ(SampleOrder::make(3, 0, 0).error().code, Code::kInvalid);
  EXPECT_FALSE(SampleOrder::make(-3, 4, 0).ok());
}

// ---- token files ----

TEST_F(DataTest, TokenFilesRoundTrip) {
  for (int64_t vocabulary : {int64_t{256}, int64_t{65536}, int64_t{65537}, int64_t{1} << 32}) {
    const auto last = static_cast<uint32_t>(vocabulary - 1);
    const os::Path path = dir_ / "t.bin";
    ASSERT_TRUE(write_token_file(path, {0, 1, last}, vocabulary).ok());
    Result<TokenFile> file = open_token_file(path);
    ASSERT_TRUE(file.ok()) << file.error().text();
    EXPECT_EQ(file->count, 3);
    EXPECT_EQ(file->vocabulary, vocabulary);
    EXPECT_EQ(file->dtype, vocabulary <= 65536 ? DType::kUint16 : DType::kUint32);
    uint32_t read = 0;
    const size_t unit = dtype_bytes(file->dtype);
    std::memcpy(&read, file->bytes.data() + 2 * unit, unit);
    EXPECT_EQ(read, last);
  }
}

TEST_F(DataTest, TokenFilesThatCannotBeAreRefused) {
  EXPECT_FALSE(write_token_file(dir_ / "t.bin", {256}, 256).ok());
  const os::Path path = write("t.bin", "12345");
  EXPECT_EQ(open_token_file(path).error().code, Code::kNotFound);  // no sidecar
  EXPECT_EQ(open_token_file(path, "uint16").error().code, Code::kCorrupt);
  EXPECT_EQ(open_token_file(path, "float32").error().code, Code::kInvalid);
  write("t.bin", "1234");
  EXPECT_EQ(open_token_file(path, "uint16")->count, 2);
  for (const char* sidecar : {"", "{", "[]", "{\"dtype\":3}", "{\"dtype\":\"uint16\",\"count\":3}",
                              "{\"dtype\":\"uint16\",\"vocabulary\":0}", "{\"count\":2}"}) {
    write("t.bin.json", sidecar);
    EXPECT_FALSE(open_token_file(path).ok()) << sidecar;
  }
  write("t.bin.json", "{\"dtype\":\"uint16\",\"count\":2,\"vocabulary\":9}");
  EXPECT_TRUE(open_token_file(path).ok());
}

TEST(TokenSamples, LeaveRoomForTheShift) {
  EXPECT_EQ(token_samples(0, 4), 0);
  EXPECT_EQ(token_samples(4, 4), 0);
  EXPECT_EQ(token_samples(5, 4), 1);
  EXPECT_EQ(token_samples(9, 4), 2);
  EXPECT_EQ(token_samples(9, 0), 0);
}

// ---- npy ----

std::string npy(const std::string& header, const std::string& data, int major = 1) {
  std::string text = "\x93NUMPY";
  text += static_cast<char>(major);
  text += '\0';
  for (int i = 0; i < (major == 1 ? 2 : 4); ++i) {
    text += static_cast<char>(header.size() >> (8 * i) & 0xff);
  }
  return text + header + data;
}

TEST_F(DataTest, NpyReadsEveryVersionAndDtype) {
  const std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }  \n";
  for (int major : {1, 2, 3}) {
    Result<NpyArray> array = open_npy(write("a.npy", npy(header, std::string(24, 'x'), major)));
    ASSERT_TRUE(array.ok()) << array.error().text();
    EXPECT_EQ(array->dtype, DType::kFloat32);
    EXPECT_EQ(array->sizes, (std::vector<int64_t>{2, 3}));
    EXPECT_EQ(array->bytes.size(), 24u);
  }
  Result<NpyArray> empty =
      open_npy(write("e.npy", npy("{'descr':'|u1','fortran_order':False,'shape':(0,)}", "")));
  ASSERT_TRUE(empty.ok()) << empty.error().text();
  EXPECT_EQ(empty->dtype, DType::kUint8);
}

TEST_F(DataTest, NpyThatCannotBeIsRefused) {
  const auto code = [&](const std::string& text) {
    Result<NpyArray> array = open_npy(write("a.npy", text));
    return array.ok() ? std::string("ok") : std::string(code_name(array.error().code));
  };
  const auto with = [&](const std::string& descr, const std::string& order,
                        const std::string& shape, size_t bytes) {
    return code(
        npy("{'descr': " + descr + ", 'fortran_order': " + order + ", 'shape': " + shape + "}",
            std::string(bytes, 'x')));
  };
  EXPECT_EQ(with("'<i2'", "False", "(2,)", 4), "ok");
  EXPECT_EQ(with("'<i2'", "False", "(2,)", 5), "corrupt");
  EXPECT_EQ(with("'<i2'", "False", "(2,)", 3), "corrupt");
  EXPECT_EQ(with("'>i2'", "False", "(2,)", 4), "refused");
  EXPECT_EQ(with("'|O'", "False", "(2,)", 4), "refused");
  EXPECT_EQ(with("[('a','<i2')]", "False", "(2,)", 4), "corrupt");
  EXPECT_EQ(with("'<i2'", "True", "(2, 1)", 4), "refused");
  EXPECT_EQ(with("'<i2'", "True", "(2,)", 4), "ok");
  EXPECT_EQ(with("'<i2'", "False", "()", 2), "refused");
  EXPECT_EQ(with("'<i2'", "False", "(9223372036854775807, 9223372036854775807)", 4), "corrupt");
  EXPECT_EQ(with("'<i2'", "False", "(92233720368547758080,)", 4), "corrupt");
  EXPECT_EQ(with("'<i2'", "False", "(-2,)", 4), "corrupt");
  EXPECT_EQ(with("'<i2'", "__import__('os')", "(2,)", 4), "corrupt");
  EXPECT_EQ(code(""), "corrupt");
  EXPECT_EQ(code(std::string("\x93NUMPY\x01\0\xff\xff", 10) + "{}"), "corrupt");
  EXPECT_EQ(code(npy("{'descr': '<i2'}", "")), "corrupt");
  EXPECT_EQ(code(std::string("\x93NUMPY\x02\0\xff\xff\xff\xff", 12)), "corrupt");
}

// ---- safetensors ----

Safetensors sample() {
  Safetensors content;
  content.metadata = {{"format", "pt"}, {"note", "a \"quoted\" note"}};
  content.tensors["w"] = {DType::kFloat32, {2, 2}, buffer_of(std::string(16, 'w'))};
  content.tensors["a.b"] = {DType::kBFloat16, {3}, buffer_of("abcdef")};
  content.tensors["empty"] = {DType::kInt64, {0, 5}, buffer_of("")};
  content.tensors["scalar"] = {DType::kBool, {}, buffer_of("\x01")};
  return content;
}

TEST_F(DataTest, SafetensorsRoundTrip) {
  const os::Path path = dir_ / "s.safetensors";
  ASSERT_TRUE(write_safetensors(path, sample()).ok());
  Result<Safetensors> read = read_safetensors(path);
  ASSERT_TRUE(read.ok()) << read.error().text();
  EXPECT_EQ(read->metadata, sample().metadata);
  ASSERT_EQ(read->tensors.size(), 4u);
  for (const auto& [name, view] : sample().tensors) {
    EXPECT_EQ(read->tensors.at(name).dtype, view.dtype);
    EXPECT_EQ(read->tensors.at(name).sizes, view.sizes);
    EXPECT_EQ(text_of(read->tensors.at(name).bytes), text_of(view.bytes));
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir_), {}), 1);  // nothing left over
  Safetensors wrong = sample();
  wrong.tensors["w"].sizes = {5};
  EXPECT_EQ(write_safetensors(path, wrong).error().code, Code::kInvalid);
  EXPECT_EQ(write_safetensors(dir_ / "no" / "s", sample()).error().code, Code::kIo);
}

std::string file_of(const std::string& header, size_t data_bytes) {
  std::string text;
  for (size_t i = 0; i < 8; ++i) text += static_cast<char>(header.size() >> (8 * i) & 0xff);
  return text + header + std::string(data_bytes, 'x');
}

TEST_F(DataTest, HostileSafetensorsAreErrors) {
  const auto refused = [&](const std::string& text) {
    return !read_safetensors(write("h.safetensors", text)).ok();
  };
  const auto tensor = [](const std::string& shape, const std::string& offsets) {
    return R"({"t":{"dtype":"F32","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
  };
  EXPECT_FALSE(refused(file_of(tensor("[2]", "[0,8]"), 8)));
  EXPECT_FALSE(refused(file_of("{}", 0)));
  EXPECT_TRUE(refused(""));
  EXPECT_TRUE(refused("1234567"));
  EXPECT_TRUE(refused(std::string(8, '\xff') + "{}"));
  EXPECT_TRUE(refused(file_of("[]", 0)));
  EXPECT_TRUE(refused(file_of(std::string(100000, '['), 0)));
  EXPECT_TRUE(refused(file_of("{\"t\":3}", 0)));
  EXPECT_TRUE(refused(file_of(tensor("[2]", "[0,8]"), 7)));
  EXPECT_TRUE(refused(file_of(tensor("[2]", "[0,8]"), 9)));  // bytes of no tensor
  EXPECT_TRUE(refused(file_of(tensor("[3]", "[0,8]"), 8)));
  EXPECT_TRUE(refused(file_of(tensor("[2]", "[8,0]"), 8)));
  EXPECT_TRUE(refused(file_of(tensor("[2]", "[1,9]"), 9)));  // a hole
  EXPECT_TRUE(refused(file_of(tensor("[-2]", "[0,8]"), 8)));
  EXPECT_TRUE(refused(file_of(tensor("[2.0]", "[0,8]"), 8)));
  EXPECT_TRUE(refused(file_of(tensor("[2]", "[0]"), 8)));
  EXPECT_TRUE(refused(file_of(tensor("[2]", "[0,18446744073709551615]"), 8)));
  EXPECT_TRUE(refused(file_of(tensor("[4611686018427387904,4]", "[0,0]"), 0)));
  EXPECT_TRUE(refused(file_of(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                              R"("b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
                              6)));
  EXPECT_TRUE(refused(file_of(R"({"t":{"dtype":"F8","shape":[0],"data_offsets":[0,0]}})", 0)));
  EXPECT_TRUE(refused(file_of(R"({"__metadata__":{"a":1}})", 0)));
}

RC_GTEST_PROP(SafetensorsFuzz, FlippedBytesNeverCrash, (uint64_t seed)) {
  const os::Path dir = fresh_dir("fuzz", ::testing::TempDir());
  const os::Path path = dir / "f.safetensors";
  RC_ASSERT(write_safetensors(path, sample()).ok());
  std::string text = *os::read_file(path);
  Rng rng(seed);
  for (int i = 0; i < 3; ++i) text[rng.below(text.size())] = static_cast<char>(rng.next());
  text.resize(text.size() - rng.below(4));
  RC_ASSERT(os::write_file_atomic(path, text).ok());
  (void)read_safetensors(path);
  (void)os::remove_all(dir);
}

TEST_F(DataTest, PythonReadsOursAndWeReadPythons) {
  if (!have_python()) GTEST_SKIP() << "no .venv";
  const os::Path ours = dir_ / "ours.safetensors";
  Safetensors content = sample();
  const float values[] = {1.5f, -2.0f, 3.25f, 0.0f};
  content.tensors["w"].bytes =
      buffer_of(std::string(reinterpret_cast<const char*>(values), sizeof values));
  ASSERT_TRUE(write_safetensors(ours, content).ok());
  ASSERT_TRUE(run_python(R"(
import sys, numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file
d = sys.argv[1]
with safe_open(d + '/ours.safetensors', 'np') as f:
    assert f.metadata()['note'] == 'a "quoted" note'
    assert sorted(f.keys()) == ['a.b', 'empty', 'scalar', 'w'], list(f.keys())
    assert (f.get_tensor('w') == np.array([[1.5, -2], [3.25, 0]], np.float32)).all()
    assert f.get_tensor('empty').shape == (0, 5)
save_file({'x': np.arange(6, dtype=np.int64).reshape(2, 3), 'y': np.ones((), np.float16)},
          d + '/theirs.safetensors', metadata={'k': 'v'})
for t in 'u1 i1 i2 i4 i8 f2 f4 f8 b1 u2'.split():
    np.save(f'{d}/{t}.npy', np.arange(6).reshape(3, 2).astype(t))
np.save(d + '/fortran.npy', np.asfortranarray(np.ones((3, 2))))
)",
                         {dir_.string()}));
  Result<Safetensors> theirs = read_safetensors(dir_ / "theirs.safetensors");
  ASSERT_TRUE(theirs.ok()) << theirs.error().text();
  EXPECT_EQ(theirs->metadata.at("k"), "v");
  EXPECT_EQ(theirs->tensors.at("x").sizes, (std::vector<int64_t>{2, 3}));
  int64_t last = 0;
  std::memcpy(&last, theirs->tensors.at("x").bytes.data() + 40, 8);
  EXPECT_EQ(last, 5);
  EXPECT_TRUE(theirs->tensors.at("y").sizes.empty());
  for (const char* name : {"u1", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "b1", "u2"}) {
    Result<NpyArray> array = open_npy(dir_ / (std::string(name) + ".npy"));
    ASSERT_TRUE(array.ok()) << array.error().text();
    EXPECT_EQ(array->sizes, (std::vector<int64_t>{3, 2}));
    EXPECT_EQ(dtype_bytes(array->dtype), static_cast<size_t>(name[1] - '0'));
  }
  EXPECT_EQ(open_npy(dir_ / "fortran.npy").error().code, Code::kRefused);
}

// ---- checkpoints ----

TEST(Checkpoint, MergeKeepsTheModelAndChecksTiedTensors) {
  const TensorView tied{DType::kUint8, {2}, buffer_of("ab")};
  Safetensors first, second;
  first.tensors = {{"a", tied},
                   {"wte.weight", tied},
                   {"weft.optimizer.exp_avg/a", {DType::kUint8, {1}, buffer_of("z")}}};
  second.tensors = {{"wte.weight", tied}, {"lm_head.weight", tied}};
  Result<Safetensors> merged = merge_export({first, second});
  ASSERT_TRUE(merged.ok()) << merged.error().text();
  EXPECT_EQ(merged->tensors.size(), 3u);
  EXPECT_FALSE(merged->tensors.count("weft.optimizer.exp_avg/a"));
  second.tensors["wte.weight"].bytes = buffer_of("ac");
  EXPECT_EQ(merge_export({first, second}).error().code, Code::kCorrupt);
  EXPECT_EQ(merge_export({}).error().code, Code::kInvalid);
}

}  // namespace
}  // namespace weft::job
