// A small .pt2 made by hand, every piece of it at hand to be changed or damaged.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "opdag/import.h"
#include "tests/support/zip_writer.h"

namespace weft::opdag::testing {

using Json = nlohmann::json;
using weft::testing::ZipWriter;

inline Json meta(std::vector<int64_t> sizes, int dtype = 7, bool grad = false) {
  Json out = {{"dtype", dtype},
              {"sizes", Json::array()},
              {"requires_grad", grad},
              {"device", {{"type", "cpu"}, {"index", nullptr}}},
              {"strides", Json::array()},
              {"storage_offset", {{"as_int", 0}}},
              {"layout", 7}};
  int64_t stride = 1;
  for (size_t i = sizes.size(); i-- > 0; stride *= sizes[i]) {
    out["strides"].insert(out["strides"].begin(), Json{{"as_int", stride}});
  }
  for (int64_t size : sizes) out["sizes"].push_back({{"as_int", size}});
  return out;
}

inline Json tensor(const std::string& name) {
  return {{"as_tensor", {{"name", name}}}};
}
inline Json argument(const std::string& name, Json value) {
  return {{"name", name}, {"arg", value}};
}
// A list of one in braces is a list to g++ and its only element to clang.
inline Json as_list(const Json& json) {
  return json.is_array() ? json : Json::array({json});
}
inline Json node(const std::string& target, const Json& inputs, const Json& outputs) {
  return {{"target", target},
          {"inputs", as_list(inputs)},
          {"outputs", as_list(outputs)},
          {"metadata", Json::object()}};
}
inline Json payload(const std::string& path, Json tensor_meta) {
  return {
      {"path_name", path}, {"is_param", true}, {"use_pickle", false}, {"tensor_meta", tensor_meta}};
}

// x [2,3] times tied weights w and v [3,3], a counter buffer, dropout, mean: the loss.
struct Pt2Model {
  Json program, weights, constants = Json::object();
  std::map<std::string, std::string> files;

  Pt2Model() {
    Json& graph = program["graph_module"]["graph"];
    graph["tensor_values"] = {{"p_w", meta({3, 3}, 7, true)}, {"p_v", meta({3, 3}, 7, true)},
                              {"b_n", meta({}, 5)},           {"x", meta({2, 3})},
                              {"add_", meta({}, 5)},          {"linear", meta({2, 3})},
                              {"relu_", meta({2, 3})},        {"dropout", meta({2, 3})},
                              {"linear_1", meta({2, 3})},     {"mean", meta({})}};
    graph["nodes"] = {
        node("torch.ops.aten._assert_tensor_metadata.default", Json::array(), Json::array()),
        node("torch.ops.aten.add_.Tensor",
             {argument("self", tensor("b_n")), argument("other", {{"as_int", 1}})},
             {tensor("add_")}),
        node("torch.ops.aten.linear.default",
             {argument("input", tensor("x")), argument("weight", tensor("p_w"))},
             {tensor("linear")}),
        node("torch.ops.aten.relu_.default", {argument("self", tensor("linear"))},
             {tensor("relu_")}),
        node("torch.ops.aten.dropout.default",
             {argument("input", tensor("linear")), argument("p", {{"as_float", 0.5}}),
              argument("train", {{"as_bool", true}})},
             {tensor("dropout")}),
        node("torch.ops.aten.linear.default",
             {argument("input", tensor("dropout")), argument("weight", tensor("p_v")),
              argument("bias", {{"as_none", true}})},
             {tensor("linear_1")}),
        node("torch.ops.aten.mean.default", {argument("self", tensor("linear_1"))},
             {tensor("mean")})};
    const auto arg = [](const std::string& name) { return Json{{"name", name}}; };
    program["graph_module"]["signature"] = {
        {"input_specs",
         {{{"parameter", {{"arg", arg("p_w")}, {"parameter_name", "w"}}}},
          {{"parameter", {{"arg", arg("p_v")}, {"parameter_name", "v"}}}},
          {{"buffer", {{"arg", arg("b_n")}, {"buffer_name", "n"}, {"persistent", true}}}},
          {{"user_input", {{"arg", tensor("x")}}}}}},
        {"output_specs",
         {{{"user_output", {{"arg", tensor("linear_1")}}}},
          {{"user_output", {{"arg", tensor("mean")}}}}}}};
    const std::string spec =
        R"([1, {"type": "builtins.dict", "context": "[\"logits\", \"loss\"]", "children_spec": [)"
        R"({"type": null, "context": null, "children_spec": []},)"
        R"({"type": null, "context": null, "children_spec": []}]}])";
    program["graph_module"]["module_call_graph"] = {
        {{"fqn", ""}, {"signature", {{"out_spec", spec}}}}};
    program["schema_version"] = {{"major", 8}, {"minor", 17}};
    program["torch_version"] = "2.11.0";
    weights = {{"w", payload("weight_0", meta({3, 3}, 7, true))},
               {"v", payload("weight_0", meta({3, 3}, 7, true))},
               {"n", payload("weight_1", meta({}, 5))}};
    files = {{"weight_0", std::string(36, 'w')}, {"weight_1", std::string(8, 'n')}};
  }

  Json& nodes() { return program["graph_module"]["graph"]["nodes"]; }
  Json& value(const std::string& name) {
    return program["graph_module"]["graph"]["tensor_values"][name];
  }

  Result<Graph> import(const ImportOptions& options = {}) const {
    return import_json(program.dump(), options);
  }
  Result<Graph> import_json(const std::string& json, const ImportOptions& options = {}) const {
    ZipWriter zip;
    for (const auto& [name, bytes] : files) zip.add("m/data/weights/" + name, bytes);
    zip.add("m/data/weights/model_weights_config.json", Json{{"config", weights}}.dump());
    zip.add("m/data/constants/model_constants_config.json", Json{{"config", constants}}.dump());
    zip.add("m/models/model.json", json, true);
    zip.add("m/byteorder", "little");
    const std::string path = ::testing::TempDir() + "hand_made.pt2";
    WEFT_TRY(const Archive archive, Archive::open(ZipWriter::write(path, zip.finish())));
    return import_graph(archive, options);
  }
};

}  // namespace weft::opdag::testing
