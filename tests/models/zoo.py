#!/usr/bin/env python3
"""Public model classes in small configurations, exported, with PyTorch's own numbers beside them.

Writes NAME.pt2 (NAME.open.pt2 too for some: the batch open), NAME.inputs.safetensors, NAME.f64.safetensors and NAME.f32.safetensors (see
reference.py). Dropout and stochastic depth are zero where a class has them: two programs never draw
the same numbers. Usage: zoo.py --out DIR [--device cuda] [name ...]
"""
import argparse
import pathlib
import sys
import time
import traceback

import torch
import torch.nn.functional as F
from torch import nn

import export_models
import reference
import zoo_features
import zoo_nets
from export_models import Classifier, tokens


def text(causal=True, **more):
    ids = tokens()
    labels = ids.clone() if causal else torch.randint(0, 97, ids.shape)
    return {"input_ids": ids, **more, "labels": labels}


def image(size=32, batch=2):
    return {"image": torch.randn(batch, 3, size, size), "label": torch.randint(0, 10, (batch,))}


def padding():
    """An attention mask: the tail of the second text is padding."""
    mask = torch.ones(2, 16, dtype=torch.int64)
    mask[1, 11:] = 0
    return mask


SMALL = dict(vocab_size=97, hidden_size=32, num_hidden_layers=3, num_attention_heads=4,
             intermediate_size=64, max_position_embeddings=32, bos_token_id=0, eos_token_id=0,
             pad_token_id=0)
GROUPED = dict(SMALL, num_key_value_heads=2, use_cache=False)
ENCODER = dict(SMALL, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


def causal(family, **config):
    import transformers

    kind = getattr(transformers, family + "Config")
    return getattr(transformers, family + "ForCausalLM")(kind(**config)), text()


def gpt_neox():
    return causal("GPTNeoX", **SMALL, use_cache=False, hidden_dropout=0.0, attention_dropout=0.0)


def mistral():
    return causal("Mistral", **GROUPED, sliding_window=5)


def qwen2():
    return causal("Qwen2", **GROUPED, use_sliding_window=True, sliding_window=5,
                  max_window_layers=1)


def qwen3():
    return causal("Qwen3", **GROUPED, head_dim=8, tie_word_embeddings=True)


def gemma():
    return causal("Gemma", **GROUPED, head_dim=8)


def gemma2():
    return causal("Gemma2", **GROUPED, head_dim=8, sliding_window=5, query_pre_attn_scalar=8)


def gemma3():
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    config = Gemma3TextConfig(**GROUPED, head_dim=8, sliding_window=5, query_pre_attn_scalar=8,
                              layer_types=["sliding_attention", "full_attention",
                                           "sliding_attention"])
    return Gemma3ForCausalLM(config), text()


def phi():
    return causal("Phi", **GROUPED, embd_pdrop=0.0, resid_pdrop=0.0, partial_rotary_factor=0.5)


def opt():
    return causal("OPT", vocab_size=97, hidden_size=32, num_hidden_layers=3, ffn_dim=64,
                  num_attention_heads=4, max_position_embeddings=32, dropout=0.0, use_cache=False,
                  word_embed_proj_dim=32, bos_token_id=0, eos_token_id=0, pad_token_id=0)


def bloom():
    return causal("Bloom", vocab_size=97, hidden_size=32, n_layer=3, n_head=4, use_cache=False,
                  hidden_dropout=0.0, attention_dropout=0.0, bos_token_id=0, eos_token_id=0,
                  pad_token_id=0)


def mixtral():
    """Its default experts: an operator transformers registers, transformers::grouped_mm_fallback."""
    return causal("Mixtral", **GROUPED, num_local_experts=4, num_experts_per_tok=2,
                  output_router_logits=True)


def qwen3_moe(implementation="batched_mm"):
    model, inputs = causal("Qwen3Moe", **GROUPED, head_dim=8, num_experts=4, num_experts_per_tok=2,
                           moe_intermediate_size=16, decoder_sparse_step=2)
    model.set_experts_implementation(implementation)
    return model, inputs


def seq2seq(model):
    return model, {"input_ids": tokens(), "attention_mask": padding(),
                   "labels": torch.randint(1, 97, (2, 9))}


def t5(feed_forward="relu", tied=True):
    from transformers import T5Config, T5ForConditionalGeneration

    return seq2seq(T5ForConditionalGeneration(T5Config(
        vocab_size=97, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, dropout_rate=0.0,
        relative_attention_num_buckets=8, relative_attention_max_distance=12, use_cache=False,
        feed_forward_proj=feed_forward, tie_word_embeddings=tied, decoder_start_token_id=0)))


def bart():
    from transformers import BartConfig, BartForConditionalGeneration

    return seq2seq(BartForConditionalGeneration(BartConfig(
        vocab_size=97, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, dropout=0.0,
        max_position_embeddings=32, use_cache=False, bos_token_id=0, eos_token_id=2,
        pad_token_id=1, decoder_start_token_id=2, forced_eos_token_id=2)))


def bert():
    """Two heads, two losses summed; the decoder is tied to the embedding."""
    from transformers import BertConfig, BertForPreTraining

    return BertForPreTraining(BertConfig(**ENCODER)), text(
        False, attention_mask=padding(), token_type_ids=torch.randint(0, 2, (2, 16)),
        next_sentence_label=torch.tensor([0, 1]))


def roberta():
    from transformers import RobertaConfig, RobertaForMaskedLM

    return RobertaForMaskedLM(RobertaConfig(**ENCODER)), text(False, attention_mask=padding())


def distilbert():
    from transformers import DistilBertConfig, DistilBertForQuestionAnswering

    config = DistilBertConfig(vocab_size=97, dim=32, n_layers=3, n_heads=4, hidden_dim=64,
                              dropout=0.0, attention_dropout=0.0, qa_dropout=0.0,
                              max_position_embeddings=32)
    return DistilBertForQuestionAnswering(config), {
        "input_ids": tokens(), "attention_mask": padding(),
        "start_positions": torch.tensor([2, 5]), "end_positions": torch.tensor([4, 9])}


def albert():
    """One layer's weights used by all layers."""
    from transformers import AlbertConfig, AlbertForMaskedLM

    return AlbertForMaskedLM(AlbertConfig(**ENCODER, embedding_size=16)), text(False)


def deberta():
    from transformers import DebertaV2Config, DebertaV2ForMaskedLM

    return DebertaV2ForMaskedLM(DebertaV2Config(
        **ENCODER, relative_attention=True, position_buckets=8, pos_att_type=["p2c", "c2p"],
        pooler_hidden_size=32)), text(False, attention_mask=padding())


def whisper():
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        vocab_size=97, num_mel_bins=8, d_model=32, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64,
        decoder_ffn_dim=64, max_source_positions=20, max_target_positions=16, use_cache=False,
        dropout=0.0, bos_token_id=0, eos_token_id=0, pad_token_id=0, decoder_start_token_id=1)
    return WhisperForConditionalGeneration(config), {
        "input_features": torch.randn(2, 8, 40), "labels": torch.randint(1, 97, (2, 9))}


class Contrastive(nn.Module):
    """CLIP asks for its loss by a flag, which is no tensor."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, input_ids, pixel_values):
        return self.net(input_ids=input_ids, pixel_values=pixel_values, return_loss=True,
                        return_dict=True)


def clip():
    from transformers import CLIPConfig, CLIPModel

    common = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
    config = CLIPConfig(
        text_config=dict(common, vocab_size=97, max_position_embeddings=16, bos_token_id=0,
                         eos_token_id=96),
        vision_config=dict(common, image_size=32, patch_size=8), projection_dim=16)
    return Contrastive(CLIPModel(config)), {"input_ids": tokens(),
                                            "pixel_values": torch.randn(2, 3, 32, 32)}


def vit():
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(hidden_size=32, num_hidden_layers=3, num_attention_heads=4,
                       intermediate_size=64, hidden_dropout_prob=0.0,
                       attention_probs_dropout_prob=0.0, image_size=32, patch_size=8, num_labels=10)
    return ViTForImageClassification(config), {
        "pixel_values": torch.randn(2, 3, 32, 32), "labels": torch.tensor([3, 8])}


def vit_torchvision():
    from torchvision.models import VisionTransformer

    return Classifier(VisionTransformer(32, 8, 3, 4, 32, 64, num_classes=10)), image()


def swin(version=1):
    from torchvision.models import swin_transformer as m

    block, merging = ((m.SwinTransformerBlock, m.PatchMerging) if version == 1 else
                      (m.SwinTransformerBlockV2, m.PatchMergingV2))
    return Classifier(m.SwinTransformer([2, 2], 16, [2, 2], [2, 4], [4, 4],
                                        stochastic_depth_prob=0.0, num_classes=10, block=block,
                                        downsample_layer=merging)), image()


def convnext():
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    stages = [CNBlockConfig(16, 32, 2), CNBlockConfig(32, 64, 2), CNBlockConfig(64, None, 1)]
    return Classifier(ConvNeXt(stages, stochastic_depth_prob=0.0, num_classes=10)), image(64)


def resnet101():
    """The 101 layers, bottlenecks a sixteenth as wide."""
    from torchvision.models.resnet import Bottleneck, ResNet

    return Classifier(ResNet(Bottleneck, [3, 4, 23, 3], num_classes=10, width_per_group=4)), image(64)


def densenet():
    from torchvision.models import DenseNet

    return Classifier(DenseNet(8, (3, 4, 6, 3), 16, num_classes=10)), image()


def efficientnet():
    from torchvision.models.efficientnet import EfficientNet, MBConvConfig

    layers = [MBConvConfig(1, 3, 1, 16, 8, 1), MBConvConfig(6, 3, 2, 8, 16, 2),
              MBConvConfig(6, 5, 2, 16, 24, 2)]
    return Classifier(EfficientNet(layers, dropout=0.0, stochastic_depth_prob=0.0, num_classes=10,
                                   last_channel=64)), image()


def mobilenet_v2():
    from torchvision.models import MobileNetV2

    setting = [[1, 8, 1, 1], [6, 12, 2, 2], [6, 16, 2, 2]]
    return Classifier(MobileNetV2(10, 0.5, setting, 8, dropout=0.0)), image()


def mobilenet_v3():
    from torchvision.models import mobilenetv3 as m

    setting = [m.InvertedResidualConfig(16, 3, 16, 16, True, "RE", 2, 1, 1.0),
               m.InvertedResidualConfig(16, 5, 48, 24, True, "HS", 2, 1, 1.0),
               m.InvertedResidualConfig(24, 5, 72, 24, False, "HS", 1, 1, 1.0)]
    return Classifier(m.MobileNetV3(setting, 64, num_classes=10, dropout=0.0)), image()


def regnet():
    from torchvision.models.regnet import BlockParams, RegNet

    params = BlockParams.from_init_params(depth=5, w_0=8, w_a=8.0, w_m=2.0, group_width=8,
                                          se_ratio=0.25)
    return Classifier(RegNet(params, num_classes=10)), image()


def shufflenet():
    from torchvision.models import ShuffleNetV2

    return Classifier(ShuffleNetV2([2, 2, 2], [8, 16, 24, 32, 48], num_classes=10)), image(64)


def maxvit():
    from torchvision.models import MaxVit

    return Classifier(MaxVit((32, 32), 16, 4, [16, 32], [1, 1], 8, stochastic_depth_prob=0.0,
                             num_classes=10)), image()


class Segmentation(nn.Module):
    """The auxiliary head's loss counts 0.4, as in torchvision's own training script."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, image, label):
        out = self.net(image)
        main, aux = F.cross_entropy(out["out"], label), F.cross_entropy(out["aux"], label)
        return {"loss": main + 0.4 * aux, "out": out["out"], "losses": (main, aux)}


def fcn():
    from torchvision.models import ResNet
    from torchvision.models.resnet import BasicBlock
    from torchvision.models._utils import IntermediateLayerGetter
    from torchvision.models.segmentation.fcn import FCN, FCNHead

    net = ResNet(BasicBlock, [1, 1, 1, 1])
    body = IntermediateLayerGetter(net, {"layer2": "aux", "layer3": "out"})
    heads = FCNHead(256, 5), FCNHead(128, 5)
    for head in heads:
        head[3].p = 0.0  # the class has no argument for its dropout
    return Segmentation(FCN(body, *heads)), {
        "image": torch.randn(2, 3, 32, 32), "label": torch.randint(0, 5, (2, 32, 32))}


def video_resnet():
    from torchvision.models.video import resnet as m

    net = m.VideoResNet(m.BasicBlock, [m.Conv3DSimple] * 4, [1, 1, 1, 1], m.BasicStem, 10)
    return Classifier(net), {"image": torch.randn(2, 3, 4, 16, 16),
                             "label": torch.randint(0, 10, (2,))}


def swin3d():
    from torchvision.models.video import SwinTransformer3d

    net = SwinTransformer3d([2, 2, 2], 16, [2, 2], [2, 4], [2, 4, 4], stochastic_depth_prob=0.0,
                            num_classes=10)
    return Classifier(net), {"image": torch.randn(2, 3, 4, 16, 16),
                             "label": torch.randint(0, 10, (2,))}


MODELS = {
    "gpt_neox": gpt_neox, "mistral": mistral, "qwen2": qwen2, "qwen3": qwen3, "gemma": gemma,
    "gemma2": gemma2, "gemma3": gemma3, "phi": phi, "opt": opt, "bloom": bloom,
    "mixtral": mixtral, "qwen3_moe": qwen3_moe,
    "qwen3_moe_grouped": lambda: qwen3_moe("grouped_mm"),
    "t5": t5, "t5_gated": lambda: t5("gated-gelu", False), "bart": bart, "whisper": whisper,
    "bert": bert, "roberta": roberta, "distilbert": distilbert, "albert": albert,
    "deberta": deberta, "clip": clip,
    "vit": vit, "vit_torchvision": vit_torchvision, "swin": swin, "swin_v2": lambda: swin(2),
    "convnext": convnext, "resnet101": resnet101, "densenet": densenet,
    "efficientnet": efficientnet, "mobilenet_v2": mobilenet_v2, "mobilenet_v3": mobilenet_v3,
    "regnet": regnet, "shufflenet": shufflenet, "maxvit": maxvit, "fcn": fcn,
    "video_resnet": video_resnet, "swin3d": swin3d,
    **zoo_nets.MODELS, **zoo_features.MODELS,
}


OPEN = ["mistral", "bert", "t5", "vit", "swin", "unet", "dit", "lstm", "moe"]


def export_open(name, folder):
    """NAME.open.pt2: the batch left open, example inputs of one sample more."""
    torch.manual_seed(7)
    model, inputs = MODELS[name]()
    model.train()
    batch = torch.export.Dim("batch", min=2, max=64)
    wide = {key: torch.cat([tensor, tensor[:1]]) for key, tensor in inputs.items()}
    program = torch.export.export(model, (), wide, strict=False,
                                  dynamic_shapes={key: {0: batch} for key in wide})
    torch.export.save(program, folder / f"{name}.open.pt2")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("names", nargs="*", default=[])
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    failed = []
    for name in options.names or MODELS:
        start = time.monotonic()
        try:
            export_models.export(name, MODELS[name], options.out)
            reference.compare_with(options.out, name, options.device, training=False)
            if name in OPEN:
                export_open(name, options.out)
        except Exception:  # pylint: disable=broad-except
            traceback.print_exc()
            failed.append(name)
        print(f"{name}: {time.monotonic() - start:.1f} s", flush=True)
    zoo_features.export_refused(options.out)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
