"""Bring the colours of HDR and wide-gamut video to sRGB, as ITU-R BT.2100 defines them.

FFmpeg's own conversion takes seconds for each file, and older ones have none.
"""

from functools import cache

import numpy as np

# nits of a white page in HDR (ITU-R BT.2408); what is brighter is white, too
WHITE = 203.0
_HLG_PEAK = 1000.0  # nits of the screen for which HLG is computed
_HLG_EXPONENT = 0.2  # gamma of that screen, 1.2, less 1
# Brightness of linear RGB of BT.2020.
_BT2020_LUMA = (0.2627, 0.678, 0.0593)
# transfer functions, numbered as in ITU-T H.273
_PQ = 16
_HLG = 18
HDR = (_PQ, _HLG)
# primaries, numbered as in the same standard
_UNKNOWN = 2
_BT2020 = 9
_DISPLAY_P3 = 12
# From linear RGB of the primaries: rows give red, green and blue of sRGB.
_SRGB = {
    _BT2020: (
        (1.660491, -0.587641, -0.07285),
        (-0.12455, 1.1329, -0.008349),
        (-0.018151, -0.100579, 1.11873),
    ),
    _DISPLAY_P3: (
        (1.22494, -0.22494, 0),
        (-0.042057, 1.042057, 0),
        (-0.019638, -0.078636, 1.098274),
    ),
}


def is_wide(transfer: int, primaries: int) -> bool:
    """Whether the colours of a video need `srgb`.

    They do if brightness is for HDR screens, or the primaries are not those of sRGB.
    """
    return transfer in HDR or primaries in _SRGB


def srgb(pixels: np.ndarray, transfer: int, primaries: int) -> np.ndarray:
    """Convert a video frame in RGB of HDR or of wide gamut to sRGB.

    A white page is white, and brighter or purer colours are cut off.

    Args:
        pixels: `(H, W, 3)` `uint16`, full range.
        transfer: Number of the transfer function; others than PQ and HLG are taken for
            that of sRGB.
        primaries: Number of the primaries; unknown ones of PQ and HLG are taken for
            BT.2020, others for sRGB.

    Returns:
        `(H, W, 3)` `uint8`.
    """
    light = _light_of_signals(transfer)[pixels]  # linear, (H, W, 3)
    if transfer == _HLG:
        # BT.2100's light of the screen, in units of white: that of the scene, times the
        # screen's peak, times the brightness of all three channels to the power of
        # gamma - 1.
        brightness = light @ np.array(_BT2020_LUMA, np.float32)
        gain = _HLG_PEAK / WHITE * np.maximum(brightness, 1e-6) ** _HLG_EXPONENT
        light *= gain[..., None]
    if transfer in HDR and primaries == _UNKNOWN:
        primaries = _BT2020
    matrix = _SRGB.get(primaries)  # from these primaries to those of sRGB
    if matrix is not None:
        light = light @ np.array(matrix, np.float32).T
    light_16bit = np.rint(light.clip(0, 1) * 0xFFFF).astype(np.uint16)
    return _srgb_of_light()[light_16bit]


@cache
def _light_of_signals(transfer: int) -> np.ndarray:
    """Return the linear light of each 16-bit signal of a video, `(65536,)` float32.

    1 is white (PQ, sRGB), or the most that the scene has (HLG). The curves and their
    constants are those of SMPTE ST 2084 (PQ, up to 10,000 cd/m2), ITU-R BT.2100 (HLG)
    and IEC 61966-2-1 (sRGB).

    Args:
        transfer: Number of the transfer function in ITU-T H.273: PQ, HLG, or any other,
            which is taken for that of sRGB.
    """
    signal = np.linspace(0, 1, 1 << 16)
    if transfer == _PQ:  # with the constants m2, c1, c2, c3, m1
        root = signal ** (32 / 2523)
        ratio = np.maximum(root - 3424 / 4096, 0) / ((2413 - 2392 * root) / 128)
        light = 10_000 / WHITE * ratio ** (8192 / 1305)
    elif transfer == _HLG:
        bright = (np.exp((signal - 0.55991073) / 0.17883277) + 0.28466892) / 12
        light = np.where(signal <= 0.5, signal**2 / 3, bright)
    else:
        bright = ((signal + 0.055) / 1.055) ** 2.4
        light = np.where(signal <= 0.04045, signal / 12.92, bright)
    return light.astype(np.float32)


@cache
def _srgb_of_light() -> np.ndarray:
    """Return the 8-bit sRGB value of each 16-bit light, `(65536,)` uint8."""
    light = np.linspace(0, 1, 1 << 16)
    bright = 1.055 * light ** (1 / 2.4) - 0.055
    signal = np.where(light <= 0.0031308, 12.92 * light, bright)
    return np.rint(255 * signal).astype(np.uint8)
