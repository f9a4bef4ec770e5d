"""Small networks of timm's classes, registered with timm under names of their own."""

from timm.models import (
    VisionTransformer,
    build_model_with_cfg,
    generate_default_cfgs,
    register_model,
)
from timm.models.swin_transformer import SwinTransformer

_USUAL = dict(
    url="",
    input_size=(3, 64, 64),
    fixed_input_size=True,
    interpolation="bicubic",
    crop_pct=1.0,
)
_USUAL |= dict(first_conv="patch_embed.proj")
# As DINOv2: no classifier, a class token and registers.
_DINO = dict(
    num_classes=0, mean=(0.4, 0.5, 0.6), std=(0.2, 0.2, 0.3), classifier="head"
)
_SWIN = dict(
    num_classes=10,
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
    classifier="head.fc",
)
# As CLIP: its head projects to the space of texts. SigLIP has none.
_CLIP = dict(num_classes=8, mean=(0.4,) * 3, std=(0.3,) * 3, classifier="head")
_SIGLIP = dict(num_classes=0, mean=(0.5,) * 3, std=(0.5,) * 3, classifier="head")
default_cfgs = generate_default_cfgs(
    {
        "small_dinov2.untrained": _USUAL | _DINO,
        "small_swin.untrained": _USUAL | _SWIN,
        "small_clip.untrained": _USUAL | _CLIP,
        "small_siglip.untrained": _USUAL | _SIGLIP,
    }
)
# Three blocks of 32 channels, and patches of 8 pixels.
_SMALL = dict(img_size=64, patch_size=8, embed_dim=32, depth=3, num_heads=2)


@register_model
def small_dinov2(pretrained=False, **kwargs):
    """A class token and four registers."""
    usual = dict(_SMALL, init_values=1e-5, reg_tokens=4, no_embed_class=True)
    return build_model_with_cfg(
        VisionTransformer, "small_dinov2", pretrained, **{**usual, **kwargs}
    )


@register_model
def small_clip(pretrained=False, **kwargs):
    """A class token, and a norm before the blocks."""
    usual = dict(_SMALL, pre_norm=True)
    return build_model_with_cfg(
        VisionTransformer, "small_clip", pretrained, **{**usual, **kwargs}
    )


@register_model
def small_siglip(pretrained=False, **kwargs):
    """Patches alone, pooled by attention."""
    usual = dict(_SMALL, class_token=False, global_pool="map")
    return build_model_with_cfg(
        VisionTransformer, "small_siglip", pretrained, **{**usual, **kwargs}
    )


@register_model
def small_swin(pretrained=False, **kwargs):
    """Four stages of 16 to 128 channels, which are the last axis of their maps."""
    usual = dict(
        img_size=64,
        window_size=4,
        embed_dim=16,
        depths=(1, 1, 2, 1),
        num_heads=(1, 2, 4, 8),
    )
    return build_model_with_cfg(
        SwinTransformer, "small_swin", pretrained, **{**usual, **kwargs}
    )
