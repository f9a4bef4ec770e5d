"""Settings as the flags of a command."""


def flags(settings: dict | None = None, **more) -> list[str]:
    """Return ``--NAME VALUE`` of each setting.

    ``True`` and ``False`` are in lower case.

    Underscores of keywords become dashes; names in ``settings`` stay as they are.
    """
    named = {name.replace("_", "-"): value for name, value in more.items()}
    words = []
    for name, value in {**(settings or {}), **named}.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        words += [f"--{name}", text]
    return words
