"""Print the oldest version that setup.cfg allows of each requirement, as constraints for pip.

python tests/oldest.py > oldest.txt; pip install -c oldest.txt -e ".[test]"
"""

import re
from configparser import ConfigParser
from pathlib import Path


def oldest(text: str) -> dict[str, str]:
    """Return what follows ``>=`` by the name of the requirement, with any later numbers: not all have a release .0."""
    found = re.findall(r"^\s*([\w.-]+)(?:\[\w+\])? *>= *([\w.]+)", text, re.MULTILINE)
    return {name: f"{number}.*" if "." in number else f"{number}.0.*" for name, number in found}


if __name__ == "__main__":
    settings = ConfigParser()
    settings.read(Path(__file__).parents[1] / "setup.cfg")
    for section, name in (("options", "install_requires"), ("options.extras_require", "test")):
        for package, version in oldest(settings[section][name]).items():
            print(f"{package}=={version}")
