"""``python -m multippo``: the command ``multippo``."""

import sys

from multippo.cli import main

if __name__ == "__main__":
    sys.exit(main())
