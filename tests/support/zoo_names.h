// Names of tests/models/zoo.py, by kind: every test of the zoo runs all of them.
#pragma once

#include <string>
#include <vector>

namespace weft::executor::testing {

inline const std::vector<std::string> kZooLanguage{"gpt_neox",
                                                   "mistral",
                                                   "qwen2",
                                                   "qwen3",
                                                   "gemma",
                                                   "gemma2",
                                                   "gemma3",
                                                   "phi",
                                                   "opt",
                                                   "bloom",
                                                   "mixtral",
                                                   "qwen3_moe",
                                                   "qwen3_moe_grouped",
                                                   "t5",
                                                   "t5_gated",
                                                   "bart",
                                                   "whisper",
                                                   "bert",
                                                   "roberta",
                                                   "distilbert",
                                                   "albert",
                                                   "deberta",
                                                   "clip"};
inline const std::vector<std::string> kZooVision{
    "vit",       "vit_torchvision", "swin",         "swin_v2",      "convnext",
    "resnet101", "densenet",        "efficientnet", "mobilenet_v2", "mobilenet_v3",
    "regnet",    "shufflenet",      "maxvit",       "fcn",          "video_resnet",
    "swin3d"};
inline const std::vector<std::string> kZooNets{"unet", "stereo",    "dit", "lstm",
                                               "gru",  "graphsage", "moe"};
// Exported with an open batch, too.
inline const std::vector<std::string> kZooOpen{"mistral", "bert", "t5",   "vit", "swin",
                                               "unet",    "dit",  "lstm", "moe"};
inline const std::vector<std::string> kZooFeatures{"nested",  "edges",        "buffers",
                                                   "tied",    "frozen",       "lists",
                                                   "no_grad", "checkpointed", "autocast_off"};

}  // namespace weft::executor::testing
