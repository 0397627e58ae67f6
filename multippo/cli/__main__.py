"""The command ``multippo``, as ``python -m multippo.cli``."""

import sys

from multippo.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
