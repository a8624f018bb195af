#include "executor/feed_job.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <numeric>

#include "job/sample_order.h"
#include "job/token_file.h"

namespace weft::executor {
namespace {

opdag::Graph graph_with(const std::vector<std::pair<std::string, opdag::TensorMeta>>& inputs) {
  opdag::Graph graph;
  for (const auto& [name, meta] : inputs) {
    opdag::Value value;
    value.id = static_cast<opdag::ValueId>(graph.values.size());
    value.name = name;
    value.meta = meta;
    opdag::Leaf leaf;
    leaf.kind = opdag::LeafKind::kUserInput;
    leaf.value = value.id;
    leaf.target = name;
    graph.values.push_back(value);
    graph.leaves.push_back(leaf);
  }
  return graph;
}

opdag::TensorMeta meta_of(DType dtype, std::vector<int64_t> sizes) {
  opdag::TensorMeta meta;
  meta.dtype = dtype;
  meta.strides = contiguous_strides(sizes);
  meta.sizes = std::move(sizes);
  return meta;
}

// An embedding of `rows` rows that reads input 0, so that the vocabulary is known.
void add_embedding(opdag::Graph& graph, int64_t rows) {
  opdag::Value table, out;
  table.id = static_cast<opdag::ValueId>(graph.values.size());
  table.meta = meta_of(DType::kFloat32, {rows, 4});
  graph.values.push_back(table);
  out.id = table.id + 1;
  graph.values.push_back(out);
  opdag::Node node;
  node.id = 0;
  node.op = "aten::embedding";
  node.arguments = {{"weight", opdag::ValueArg{table.id}}, {"indices", opdag::ValueArg{0}}};
  node.outputs = {out.id};
  graph.nodes.push_back(node);
}

job::Binding bind(const std::string& input, const std::string& column) {
  job::Binding binding;
  binding.input = input;
  binding.column = column;
  return binding;
}

std::string token_file(const char* name, uint32_t count, uint32_t modulus) {
  const std::string path = ::testing::TempDir() + name;
  std::vector<uint32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), 0u);
  for (uint32_t& token : tokens) token %= modulus;
  EXPECT_TRUE(job::write_token_file(path, tokens, modulus).ok());
  return path;
}

// A version 1.0 .npy file of bytes.
std::string npy_file(const char* name, const std::vector<int64_t>& sizes) {
  const std::string path = ::testing::TempDir() + name;
  std::string shape;
  int64_t count = 1;
  for (const int64_t size : sizes) {
    shape += std::to_string(size) + ",";
    count *= size;
  }
  std::string header = "{'descr': '|u1', 'fortran_order': False, 'shape': (" + shape + "), }";
  while ((header.size() + 11) % 64 != 0) header += ' ';
  header += '\n';
  std::ofstream file(path, std::ios::binary);
  file << "\x93NUMPY" << '\x01' << '\0' << static_cast<char>(header.size() & 0xff)
       << static_cast<char>(header.size() >> 8) << header;
  for (int64_t i = 0; i < count; ++i) file.put(static_cast<char>(i % 251));
  return path;
}

struct TokenJob {
  job::JobSpec spec;
  opdag::Graph graph = graph_with(
      {{"ids", meta_of(DType::kInt64, {2, 5})}, {"labels", meta_of(DType::kInt64, {2, 5})}});
  FeedFiles files;

  TokenJob() {
    spec.train.batch = 6;
    spec.train.seed = 11;
    spec.data.bindings = {bind("ids", "tokens"), bind("labels", "next_tokens")};
    files.paths = {{"train", token_file("weft-train.bin", 101, 90)},
                   {"eval", token_file("weft-eval.bin", 58, 90)}};
  }
  Result<std::unique_ptr<Feed>> make() const {
    return make_feed(graph, graph, spec, files, {"ids", "labels"});
  }
};

TEST(Feed, MicroBatchesFollowTheSampleOrder) {
  const TokenJob job;
  const auto made = job.make();
  ASSERT_TRUE(made.ok()) << made.error().text();
  Feed& feed = **made;
  auto order = job::SampleOrder::make(20, 6, 11);
  ASSERT_TRUE(order.ok());
  for (const int64_t step : {0, 1, 5, 2}) {
    const auto samples = order->at(step);
    for (int32_t micro_batch = 0; micro_batch < 3; ++micro_batch) {
      const auto ids = feed.input("ids", Split::kTrain, step, micro_batch);
      const auto labels = feed.input("labels", Split::kTrain, step, micro_batch);
      ASSERT_TRUE(ids.ok() && labels.ok());
      ASSERT_EQ(ids->sizes(), at::IntArrayRef({2, 5}));
      EXPECT_EQ(ids->scalar_type(), at::kLong);
      for (int64_t row = 0; row < 2; ++row) {
        const int64_t sample = samples[static_cast<size_t>(micro_batch * 2 + row)];
        for (int64_t column = 0; column < 5; ++column) {
          EXPECT_EQ((*ids)[row][column].item<int64_t>(), (sample * 5 + column) % 90);
          EXPECT_EQ((*labels)[row][column].item<int64_t>(), (sample * 5 + column + 1) % 90);
        }
      }
    }
  }
}

TEST(Feed, EvalRunsInOrderInWholeMicroBatches) {
  const TokenJob job;
  const auto made = job.make();
  ASSERT_TRUE(made.ok()) << made.error().text();
  // 57 / 5 = 11 samples: five micro-batches of two, one sample dropped.
  EXPECT_EQ((*made)->eval_micro_batches(), 5);
  const auto last = (*made)->input("ids", Split::kEval, 0, 4);
  ASSERT_TRUE(last.ok());
  EXPECT_EQ((*last)[0][0].item<int64_t>(), 40);
  EXPECT_FALSE((*made)->input("ids", Split::kEval, 0, 5).ok());
  EXPECT_FALSE((*made)->input("nothing", Split::kEval, 0, 0).ok());
}

TEST(Feed, RefusesWhatDoesNotFit) {
  TokenJob job;
  job.spec.train.batch = 7;
  EXPECT_NE(job.make().error().message.find("batch 7 is not a multiple"), std::string::npos);
  job.spec.train.batch = 22;
  EXPECT_FALSE(job.make().ok());  // 20 samples
  job.spec.train.batch = 6;
  job.spec.data.bindings.pop_back();
  EXPECT_NE(job.make().error().message.find("labels"), std::string::npos);
  job.spec.loss = job::LossSource::kCrossEntropy;  // the one input left is the target
  job.spec.loss_target = "next_tokens";
  EXPECT_TRUE(job.make().ok()) << job.make().error().text();
  job.files.paths.erase("train");
  EXPECT_NE(job.make().error().message.find("no data file"), std::string::npos);
}

TEST(Feed, RefusesTokensBeyondTheEmbedding) {
  TokenJob job;
  add_embedding(job.graph, 64);
  EXPECT_NE(job.make().error().message.find("vocabulary of 90"), std::string::npos);
  // Workers have no sidecar: the ids themselves are looked at.
  std::filesystem::remove(job.files.paths["train"] + ".json");
  std::filesystem::remove(job.files.paths["eval"] + ".json");
  job.files.token_dtype = "uint16";
  const auto made = job.make();
  ASSERT_TRUE(made.ok()) << made.error().text();
  const auto bad = (*made)->input("ids", Split::kEval, 0, 0);
  EXPECT_TRUE(bad.ok());
  bool refused = false;
  for (int32_t m = 0; m < 3; ++m) {
    for (int64_t step = 0; step < 3; ++step) {
      const auto rows = (*made)->input("ids", Split::kTrain, step, m);
      if (!rows.ok()) {
        refused = true;
        EXPECT_NE(rows.error().message.find("64 rows"), std::string::npos);
      }
    }
  }
  EXPECT_TRUE(refused);
}

TEST(Feed, ArraysAreCastAndScaled) {
  job::JobSpec spec;
  spec.train.batch = 4;
  job::ArrayFile images;
  images.name = "images";
  spec.data.arrays = {images};
  job::Binding binding = bind("x", "images");
  binding.scale = 0.5;
  spec.data.bindings = {binding};
  auto graph = graph_with({{"x", meta_of(DType::kFloat64, {2, 3, 2})}});
  FeedFiles files;
  files.paths = {{"train/images", npy_file("weft-images.npy", {8, 3, 2})}};
  const auto made = make_feed(graph, graph, spec, files, {"x"});
  ASSERT_TRUE(made.ok()) << made.error().text();
  EXPECT_EQ((*made)->eval_micro_batches(), 0);
  const auto rows = (*made)->input("x", Split::kTrain, 0, 1);
  ASSERT_TRUE(rows.ok()) << rows.error().text();
  EXPECT_EQ(rows->scalar_type(), at::kDouble);
  auto order = job::SampleOrder::make(8, 4, 0);
  const double sample = static_cast<double>(order->at(0)[2]);
  EXPECT_EQ((*rows)[0][2][1].item<double>(), (sample * 6 + 5) * 0.5);

  auto other = graph_with({{"x", meta_of(DType::kFloat32, {2, 6})}});
  const auto refused = make_feed(other, other, spec, files, {"x"});
  EXPECT_NE(refused.error().message.find("shape [3, 2]"), std::string::npos);
}

TEST(Feed, AStageWithoutInputsNeedsNoFiles) {
  TokenJob job;
  job.files.paths.clear();
  const auto made = make_feed(job.graph, job.graph, job.spec, job.files, {});
  ASSERT_TRUE(made.ok()) << made.error().text();
  EXPECT_FALSE((*made)->input("ids", Split::kTrain, 0, 0).ok());
}

}  // namespace
}  // namespace weft::executor
