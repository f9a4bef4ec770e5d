"""Print the oldest version that setup.cfg allows of each requirement, as constraints
for pip.

python tests/oldest.py > oldest.txt; pip install -c oldest.txt -e ".[test]"
"""

import re
from configparser import ConfigParser
from pathlib import Path

if __name__ == "__main__":
    settings = ConfigParser()
    settings.read(Path(__file__).parents[1] / "setup.cfg")
    for section, name in (
        ("options", "install_requires"),
        ("options.extras_require", "test"),
    ):
        bounds = re.findall(
            r"^\s*([\w.-]+)(?:\[\w+\])? *>= *([\w.]+)",
            settings[section][name],
            re.MULTILINE,
        )
        for package, version in dict(
            bounds
        ).items():  # with any later numbers: not all have a release .0
            print(
                f"{package}=={version}.*"
                if "." in version
                else f"{package}=={version}.0.*"
            )
