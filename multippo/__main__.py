"""``python -m multippo``: the command ``multippo``."""

import sys

from multippo.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
