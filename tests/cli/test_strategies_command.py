"""``crumb strategies`` describes all methods, or one."""

from crumb_avalanche.methods.registry import STRATEGIES


def test_every_method_or_one_is_listed_with_what_it_stores(crumb):
    code, out, err = crumb("strategies")
    assert code == 0, err
    for name, entry in STRATEGIES.items():
        block = out[out.index(f"{name}: {entry.summary}") :]
        assert entry.source in block and entry.stores in block and "  budget  " in block
    code, out, _ = crumb("strategies", "image_replay")
    assert code == 0 and out.startswith("image_replay: raw uint8 images") and "crumb:" not in out
    assert "(budget - fixed bytes) / bytes of one memory, rounded down\n" in out
    assert "rounded up if three quarters of a last memory fit" in crumb("strategies", "crumb")[1]
    assert "its size does not depend on the budget" in crumb("strategies", "finetune")[1]
