"""``crumb strategies`` describes all methods, or one."""

from crumb_avalanche.methods.registry import STRATEGIES


def test_every_method_is_listed_with_what_it_stores(crumb):
    code, out, _ = crumb("strategies")
    assert code == 0
    for name, entry in STRATEGIES.items():
        block = out[out.index(f"{name}: {entry.summary}") :]
        assert entry.source in block and entry.stores in block and "  budget  " in block


def test_one_method(crumb):
    code, out, _ = crumb("strategies", "image_replay")
    assert code == 0 and out.startswith("image_replay: raw uint8 images") and "crumb:" not in out
    assert "(budget - fixed bytes) / bytes of one memory, rounded down\n" in out
    assert "rounded up if three quarters of a last memory fit" in crumb("strategies", "crumb")[1]
    assert "its size does not depend on the budget" in crumb("strategies", "finetune")[1]


def test_an_unknown_method(crumb):
    code, _, err = crumb("strategies", "ewk")
    assert code == 1 and "strategy 'ewk' is unknown; known are crumb, " in err


def test_settings_of_a_method_come_from_a_file(crumb, tiny, tmp_path):
    file = tmp_path / "own.yaml"
    arguments = (*tiny, "--strategy", "finetune", "--output", tmp_path / "run", "--strategy-config", file)
    code, _, err = crumb(*arguments)
    assert code == 1 and f"there is no strategy config {file}" in err
    file.write_text("alpha: 1.0\n")
    code, _, err = crumb(*arguments)
    assert code == 1 and "strategy finetune has no setting 'alpha'; it has none of its own" in err
    file.write_text("- 1\n")
    assert "it must hold settings, one 'name: value' per line" in crumb(*arguments)[2]
    file.write_text("a: [\n")
    assert f"{file} is not valid YAML" in crumb(*arguments)[2]
    file.write_text("{}\n")
    assert crumb(*arguments)[0] == 0
